"""Keeps the repository tidy: layers, banned calls, sizes, and nothing of one machine in tracked files."""

import ast
import re
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from tools import package_graph

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "flowcatalyst"
PURE = [
    *(SOURCE / "core" / f"{name}.py" for name in ("message", "receipts", "payload", "headers", "errors", "targets")),
    *(SOURCE / "core" / f"{name}.py" for name in ("json_words", "spelling", "webhook", "words")),
    *(SOURCE / "http" / f"{name}.py" for name in ("contract", "answer", "interpret", "signing")),
    SOURCE / "queues" / "contract.py",
    SOURCE / "queues" / "address.py",
    SOURCE / "queues" / "settings.py",
    SOURCE / "queues" / "raw.py",
    SOURCE / "queues" / "sharing.py",
    *(
        SOURCE / "dispatch" / f"{name}.py"
        for name in (
            "job",
            "event",
            "event_types",
            "cloudevents",
            "conditions",
            "filters",
            "subscription",
            "subscription_index",
            "matcher",
        )
    ),
    *(SOURCE / "dispatch" / f"{name}.py" for name in ("stamp", "catalog_entries")),
    SOURCE / "core" / "settings.py",
    SOURCE / "sandbox" / "order_judge.py",
    SOURCE / "control" / "router_config.py",
    SOURCE / "simulation" / "history.py",
    SOURCE / "simulation" / "checker.py",
    *sorted((SOURCE / "simulation" / "rules").glob("*.py")),
    *(
        SOURCE / "router" / f"{name}.py"
        for name in (
            "groups",
            "policy",
            "rate",
            "blocked",
            "breaker",
            "tracker",
            "limits",
            "fence",
            "shares",
            "endpoints",
            "failure_memory",
            "group",
            "admission",
            "cause",
            "explain",
            "pauses",
            "recent",
            "skips",
            "stats",
            "slow_groups",
            "top_groups",
            "windows",
        )
    ),
]
# Call -> files that are its home. Everybody else gets a clock, an id source or `Tasks` handed in.
BANNED = {
    "asyncio.wait_for": [],  # swallows cancellation on Python 3.11; asyncio.timeout does not
    "time.time": ["clock.py"],
    "time.monotonic": ["clock.py"],
    "time.perf_counter": [],
    "time.sleep": [],
    "datetime.now": [],
    "datetime.utcnow": [],
    "datetime.datetime.now": [],
    "asyncio.create_task": ["tasks.py"],
    "asyncio.ensure_future": ["tasks.py"],
}
# The pleasant codebases stay below these in more than nine of ten cases. The pain is always in the tail.
LONG_FILE, LONG_FUNCTION = 450, 60
LONG_TEST_FILE = 500


def python_files(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.py"))


@cache
def nodes_of(path: Path) -> list[ast.AST]:
    return list(ast.walk(ast.parse(path.read_text())))


@cache
def attributes_of(path: Path) -> list[tuple[str, int]]:
    """`time.time` and the like, and the line where it is used."""
    return [(dotted(node), node.lineno) for node in nodes_of(path) if isinstance(node, ast.Attribute)]


def dotted(node: ast.expr) -> str:
    """`ast.unparse` of names with dots, which takes fifty times as long."""
    match node:
        case ast.Name(name):
            return name
        case ast.Attribute(value, name):
            return f"{dotted(value)}.{name}"
    return "?"


def imports_of(path: Path) -> Iterator[str]:
    for node in nodes_of(path):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""


@pytest.mark.parametrize("path", PURE, ids=lambda path: path.name)
def test_the_pure_core_knows_no_loop_no_clock_and_no_adapter(path: Path) -> None:
    allowed_here = {str(pure.relative_to(SOURCE.parent).with_suffix("")).replace("/", ".") for pure in PURE}
    allowed_here |= {"flowcatalyst.router", "flowcatalyst.simulation.rules"}
    assert not [node for node in nodes_of(path) if isinstance(node, ast.AsyncFunctionDef | ast.Await)] or (
        path.name == "contract.py"  # Protocols of the shell's side have async methods without a body
    )
    for name in imports_of(path):
        assert name.split(".")[0] not in {"asyncio", "threading", "socket", "sqlite3", "time", "random", "uvloop"}
        if name.startswith("flowcatalyst"):
            assert name in allowed_here, f"{path.name} imports {name}"


def test_the_package_graph_in_the_docs_is_that_of_the_imports() -> None:
    page = package_graph.PAGE.read_text()
    assert package_graph.BEGIN in page
    assert package_graph.in_page(page) == page, "run: python tools/package_graph.py --write"


@pytest.mark.parametrize(
    "room", sorted(path.parent for path in SOURCE.glob("*/__init__.py")), ids=lambda path: path.name
)
def test_every_room_says_what_it_knows_and_what_it_does_not(room: Path) -> None:
    said = ast.get_docstring(ast.parse((room / "__init__.py").read_text()))
    assert said, room.name
    assert len(said.split(". ")) + said.count(".\n") >= 2, f"{room}: what it knows, and what it must not know"


@pytest.mark.parametrize("call", BANNED)
def test_banned_calls_stay_in_their_homes(call: str) -> None:
    for path in python_files(SOURCE):
        if path.name in BANNED[call]:
            continue
        used = [f"{path.relative_to(ROOT)}:{line}" for name, line in attributes_of(path) if name == call]
        assert used == [], call


def test_randomness_comes_from_the_id_source_only() -> None:
    users = [path for path in python_files(SOURCE) if "random" in imports_of(path) and path.name != "clock.py"]
    assert [path for path in users if path.parent.name != "simulation"] == []  # there everything comes from the seed


def test_every_test_file_tests_something() -> None:
    for path in python_files(ROOT / "tests"):
        if path.name.endswith("_test.py"):
            assert re.search(r"def test_|TestCase|RuleBasedStateMachine|QueueSuite|JobStoreSuite", path.read_text()), (
                path
            )


def test_no_file_of_tests_outgrows_what_one_reads_in_one_go() -> None:
    lines = {path.relative_to(ROOT): path.read_text().count("\n") for path in python_files(ROOT / "tests")}
    assert {path: count for path, count in lines.items() if count > LONG_TEST_FILE} == {}, "split these by topic"


def test_tracked_files_name_no_registry_and_no_machine_path() -> None:
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True).stdout.split()
    leak = re.compile(r"/roo[t]/|/wor[k]/main|--(extra-)?index-ur[l]|registry *= *\"?http")
    for name in tracked:
        path = ROOT / name
        if path.suffix in {".png", ".db"} or not path.is_file():
            continue
        for number, line in enumerate(path.read_text().splitlines(), 1):
            assert not leak.search(line), f"{name}:{number}: {line.strip()}"


def test_lock_files_pin_every_package_once_as_a_plain_version() -> None:
    files = sorted(ROOT.glob("requirements*.lock"))
    assert {"requirements.lock", "requirements-dev.lock"} <= {file.name for file in files}
    pinned: list[str] = []
    for file in files:
        for line in file.read_text().splitlines():
            assert re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9._!+-]+", line), f"{file.name}: {line}"
            pinned.append(re.sub(r"[-_.]+", "-", line.partition("==")[0]).lower())
    assert sorted(pinned) == sorted(set(pinned)), "a package is pinned once"


def test_reading_path_in_the_docs_names_things_that_exist() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    found = re.search(r"`(Consumer\.run -> .*?)`", text)
    assert found, "docs/architecture.md does not quote the reading path"
    sources = "\n".join(path.read_text() for path in python_files(SOURCE))
    for step in found[1].split(" -> "):
        owner, name = step.split(".")
        assert re.search(rf"def {name}\(", sources), step
        assert owner == "policy" or re.search(rf"class {owner}\b", sources), step


def test_no_file_or_function_outgrows_our_figures() -> None:
    long: list[str] = []
    for path in python_files(SOURCE):
        text = path.read_text()
        if (lines := text.count("\n")) > LONG_FILE:
            long.append(f"{path.relative_to(ROOT)}: {lines} lines")
        for node in nodes_of(path):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                size = (node.end_lineno or 0) - node.lineno + 1
                if size > LONG_FUNCTION:
                    long.append(f"{path.relative_to(ROOT)}:{node.lineno} {node.name}: {size} lines")
    assert long == [], "split these by what they know"
