"""What every test run shares."""

from collections.abc import Generator
from typing import Final

import pytest

from tests.servers import ServerMissingError, missing, program, skip_or_fail

LOG_LINES: Final = 30  # of a failed test; more would hide what failed
BROKER_TESTS = {
    "activemq_queue_test.py",
    "two_routers_test.py",
    "nats_cluster_test.py",
    "broker_kill_test.py",
    "half_dead_connection_test.py",
    "losses_test.py",
    "broker_router_test.py",
    "mixed_queues_test.py",
    "nats_queue_test.py",
    "servers_test.py",
    "sqs_cost_test.py",
    "sqs_queue_test.py",
}
# What these prepare once for all their tests takes long.
SHARED_PREPARATION = {"mutants_test.py", "schema_fuzz_test.py", "seeds_test.py"}


@pytest.hookimpl(tryfirst=True)  # before xdist looks for groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """`make test` runs tests side by side, those of brokers by themselves: many at once, since they mostly wait.

    Those of one group run one after the other: they share servers, which some of them kill, or a long preparation.
    """
    for item in items:
        if item.path.name in BROKER_TESTS or item.path.parent.name == "conformance":
            item.add_marker("brokers")
            item.add_marker(pytest.mark.xdist_group(_group_of(item)))
        elif item.path.name in SHARED_PREPARATION:
            item.add_marker(pytest.mark.xdist_group(item.path.name))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show the end of what a failed test printed: the log of a router under load has thousands of lines."""
    report = yield
    report.sections = [(name, _end_of(text)) for name, text in report.sections]
    return report


def _end_of(text: str) -> str:
    lines = text.splitlines(keepends=True)
    cut = len(lines) - LOG_LINES
    return f"[{cut} lines before]\n" + "".join(lines[cut:]) if cut > 0 else text


def _group_of(item: pytest.Item) -> str:
    """Its class or module; where a module goes through all kinds of brokers, each kind by itself."""
    call = getattr(item, "callspec", None)
    kind = getattr(call and call.params.get("kind"), "name", "")
    return f"{item.path.name} {getattr(item.parent, 'name', '')} {kind}"


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
