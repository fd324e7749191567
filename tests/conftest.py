"""What every test run shares."""

import pytest

from tests.servers import REQUIRED, ServerMissingError, program

_missing: list[str] = []


@pytest.fixture(scope="session")
def nginx() -> str:
    """The path of a real nginx."""
    try:
        return program("nginx", "nginx-light")
    except ServerMissingError as error:
        _missing.append(str(error))
        if REQUIRED:
            pytest.fail(f"a real server is required here: {error}")
        pytest.skip(f"NOT TESTED: {error}")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for missing in _missing:
        terminalreporter.write_sep("!", f"SKIPPED, NO REAL SERVER: {missing}", red=True, bold=True)
