"""What every test run shares."""

import pytest

from tests.servers import ServerMissingError, missing, program, skip_or_fail


@pytest.fixture(scope="session")
def nginx() -> str:
    """The path of a real nginx."""
    try:
        return program("nginx", "nginx-light")
    except ServerMissingError as error:
        skip_or_fail(error)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for reason in missing:
        terminalreporter.write_sep("!", f"SKIPPED, NO REAL SERVER: {reason}", red=True, bold=True)
