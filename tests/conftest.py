"""What every test run shares."""

import asyncio
import gc
import subprocess
import sys
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, Final

import hypothesis
import pytest
import structlog
import uvloop

from flowcatalyst.core import interpreter
from tests.servers import NOT_TESTED, AmqpClientFinder, ServerMissingError, needs, program, skip_or_fail
from tests.support.scratch import NoScratchError, scratch
from tests.support.shares import Shares
from tests.support.virtual_loop import VirtualLoop

LOG_LINES: Final = 30  # of a failed test; more would hide what failed
BROKER_TESTS = {
    "amqp_servers_test.py",
    "two_routers_test.py",
    "broker_kill_test.py",
    "half_dead_connection_test.py",
    "jobs_kill_test.py",
    "losses_test.py",
    "broker_router_test.py",
    "mixed_queues_test.py",
    "move_brokers_test.py",
    "postgres_bugs_test.py",
    "postgres_cost_test.py",
    "postgres_division_test.py",
    "postgres_queue_test.py",
    "postgres_server_test.py",
    "postgres_shared_test.py",
    "postgres_storage_test.py",
    "processes_test.py",
    "raw_queue_router_test.py",
    "servers_test.py",
}
BROKER_FOLDERS = {"activemq", "nats", "sqs"}  # the tests of each share its servers
# What `make quick` leaves to `make test`: whole suites that take minutes, wait in real time, or are about processes.
THOROUGH = {
    "cancel_sweep_test.py",
    "chaos_test.py",
    "demo_test.py",
    "embedded_queue_cost_test.py",
    "full_disk_test.py",
    "job_store_cost_test.py",
    "mutants_test.py",
    "packaging_test.py",
    "reload_test.py",
    "schema_fuzz_test.py",
    "seed_test.py",
    "seeds_test.py",
    "simulate_command_test.py",
    "strangers_test.py",
    "witness_test.py",
}
THOROUGH_FOLDERS = {"browser", "conformance", "crash", "mutants"}
# What these prepare once for all their tests takes long.
SHARED_PREPARATION = {
    "distribution_test.py",
    "example_receivers_test.py",
    "group_guard_test.py",
    "mutants_test.py",
    "schema_fuzz_test.py",
    "seeds_test.py",
}
# A run says the same of a commit wherever and whenever it happens; `make soak` looks where nobody has looked.
hypothesis.settings.register_profile("fixed", derandomize=True)
hypothesis.settings.register_profile("explore", derandomize=False, print_blob=True)
hypothesis.settings.register_profile("quick", derandomize=True, max_examples=10)
hypothesis.settings.load_profile("fixed")
sys.meta_path.append(AmqpClientFinder)
# Of what a test logs only the text is looked at. The default draws each traceback as a coloured table, in 0.1 s.
structlog.configure(
    processors=[
        *structlog.get_config()["processors"][:-1],
        structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback),
    ]
)
gc.disable()  # until all tests are known: nothing of what is imported will ever be garbage


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--quick", action="store_true", help="only what needs no server and no process, with few examples")


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):  # the processes of a run have folders in that of the first
        until_the_end = ExitStack()
        config.add_cleanup(until_the_end.close)
        try:
            until_the_end.enter_context(scratch(partial(print, file=sys.stderr, flush=True)))
        except NoScratchError as error:
            raise pytest.UsageError(str(error)) from None
    if config.getoption("--quick"):
        hypothesis.settings.load_profile("quick")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """A file of which nothing is going to run is not read: every process reads all files, and that takes seconds."""
    if collection_path.name in BROKER_FOLDERS:  # nor are the fixtures of a folder, which need the clients of its broker
        return config.getoption("--quick") or config.getoption("-m") == "not brokers" or None
    if not collection_path.name.endswith("_test.py"):
        return None
    match config.getoption("--quick"), config.getoption("-m"):
        case True, _:
            return _is_of_brokers(collection_path) or _is_thorough(collection_path) or None
        case _, "brokers":
            return not _is_of_brokers(collection_path) or None
        case _, "not brokers":
            return _is_of_brokers(collection_path) or None
    return None


@pytest.fixture(scope="session", autouse=True)
def _no_processes(request: pytest.FixtureRequest) -> Iterator[None]:
    """With --quick a test that starts a process, itself or for a server it needs, is left to `make test`."""

    def leave_to_the_whole_run(*_: Any, **__: Any) -> None:
        pytest.skip("starts a process: `make test` runs it")

    with pytest.MonkeyPatch.context() as patch:
        if request.config.getoption("--quick"):
            patch.setattr(subprocess.Popen, "__init__", leave_to_the_whole_run)
        yield


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The loop of an async test by its marker: one that jumps from timer to timer, or production's beside asyncio's."""
    if item.get_closest_marker("virtual_time"):
        return {"virtual": VirtualLoop}
    both = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}
    return both if item.get_closest_marker("both_loops") else {"asyncio": asyncio.new_event_loop}


@pytest.fixture(autouse=True)
def _logs_as_they_were() -> Iterator[None]:
    """A test that silences the log, or sends it to a file, does so for itself alone."""
    before = structlog.get_config()
    yield
    structlog.configure(**before)


@pytest.hookimpl(tryfirst=True)  # before xdist looks for groups
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """`make test` has a run of its own for those of brokers, with many processes, since they mostly wait.

    Those of one group run one after the other: they share servers, which some of them kill, or a long preparation.
    """
    for item in items:
        if _is_of_brokers(item.path):
            item.add_marker("brokers")
            item.add_marker(pytest.mark.xdist_group(_group_of(item)))
        elif item.path.name in SHARED_PREPARATION:
            item.add_marker(pytest.mark.xdist_group(item.path.name))
        if _is_thorough(item.path):
            item.add_marker("thorough")
    if config.getoption("--quick"):
        left = {item for item in items if item.get_closest_marker("thorough") or item.get_closest_marker("brokers")}
        config.hook.pytest_deselected(items=list(left))
        items[:] = [item for item in items if item not in left]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Shares | None:
    return Shares(config, log, lambda file: _is_thorough(Path(file))) if config.option.dist == "loadgroup" else None


def pytest_collection_finish() -> None:
    """What a process holds now it holds to its end, so that looking through it again and again finds nothing."""
    gc.freeze()
    gc.set_threshold(interpreter.YOUNG_OBJECTS, 20, 20)  # as in a router
    gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show the end of what a failed test printed: the log of a router under load has thousands of lines."""
    report = yield
    report.sections = [(name, _end_of(text)) for name, text in report.sections]
    return report


def _is_of_brokers(path: Path) -> bool:
    return path.name in BROKER_TESTS or path.parent.name in {*BROKER_FOLDERS, "conformance"}


def _is_thorough(path: Path) -> bool:
    return path.name in THOROUGH or path.parent.name in THOROUGH_FOLDERS


def _end_of(text: str) -> str:
    lines = text.splitlines(keepends=True)
    cut = len(lines) - LOG_LINES
    return f"[{cut} lines before]\n" + "".join(lines[cut:]) if cut > 0 else text


def _group_of(item: pytest.Item) -> str:
    """Its class or module; where a module goes through all kinds of brokers, each kind by itself."""
    if item.path.parent.name in BROKER_FOLDERS:
        return item.path.parent.name
    call = getattr(item, "callspec", None)
    kind = getattr(call and call.params.get("kind"), "name", "")
    return f"{item.path.name} {getattr(item.parent, 'name', '')} {kind}"


@pytest.fixture(scope="session")
def nginx() -> str:
    """The path of a real nginx."""
    try:
        return program("nginx")
    except ServerMissingError as error:
        skip_or_fail(error)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    skips = [report.longrepr[2] for report in terminalreporter.stats.get("skipped", [])]
    reasons = [why.partition(NOT_TESTED)[2] for why in skips if NOT_TESTED in why]
    for reason in dict.fromkeys(reasons):
        left_out = f"SKIPPED {reasons.count(reason)} TIMES, NO REAL SERVER: {reason}"
        terminalreporter.write_sep("!", left_out, red=True, bold=True)
    if reason := needs.nats_failure():
        terminalreporter.write_sep("!", f"NATS WAS DEBIAN'S, NOT {needs.NATS_VERSION}: {reason}", red=True, bold=True)
