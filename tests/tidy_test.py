"""Keeps the repository tidy: layers, banned calls, sizes, and nothing of one machine in tracked files."""

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "flowcatalyst"
PURE = [
    SOURCE / "message.py",
    SOURCE / "errors.py",
    SOURCE / "delivery" / "contract.py",
    SOURCE / "delivery" / "answer.py",
    SOURCE / "queues" / "contract.py",
    SOURCE / "web" / "order_judge.py",
    SOURCE / "operations" / "router_config.py",
    SOURCE / "simulation" / "history.py",
    SOURCE / "simulation" / "checker.py",
    *sorted((SOURCE / "simulation" / "rules").glob("*.py")),
    *(
        SOURCE / "routing" / f"{name}.py"
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
            "explain",
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


def python_files(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.py"))


def imports_of(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""


@pytest.mark.parametrize("path", PURE, ids=lambda path: path.name)
def test_the_pure_core_knows_no_loop_no_clock_and_no_adapter(path: Path) -> None:
    allowed_here = {str(pure.relative_to(SOURCE.parent).with_suffix("")).replace("/", ".") for pure in PURE}
    allowed_here |= {"flowcatalyst.routing", "flowcatalyst.simulation.rules"}
    tree = ast.parse(path.read_text())
    assert not [node for node in ast.walk(tree) if isinstance(node, ast.AsyncFunctionDef | ast.Await)] or (
        path.name == "contract.py"  # Protocols of the shell's side have async methods without a body
    )
    for name in imports_of(path):
        assert name.split(".")[0] not in {"asyncio", "threading", "socket", "sqlite3", "time", "random", "uvloop"}
        if name.startswith("flowcatalyst"):
            assert name in allowed_here, f"{path.name} imports {name}"


def test_arrows_point_one_way_routing_never_imports_adapters() -> None:
    adapters = re.compile(
        r"flowcatalyst\.(web|cli|app|config|queues\.(embedded|sqs|nats|activemq|memory)|delivery\.http)"
    )
    for path in python_files(SOURCE / "routing") + python_files(SOURCE / "queues") + python_files(SOURCE / "delivery"):
        for name in imports_of(path):
            mine = path.stem.split("_")[0]
            assert not adapters.match(name) or mine in name, f"{path.relative_to(SOURCE)} imports {name}"


@pytest.mark.parametrize("call", BANNED)
def test_banned_calls_stay_in_their_homes(call: str) -> None:
    for path in python_files(SOURCE):
        if path.name in BANNED[call]:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute):
                assert ast.unparse(node) != call, f"{path.relative_to(ROOT)}:{node.lineno} uses {call}"


def test_randomness_comes_from_the_id_source_only() -> None:
    users = [path for path in python_files(SOURCE) if "random" in imports_of(path) and path.name != "clock.py"]
    assert [path for path in users if path.parent.name != "simulation"] == []  # there everything comes from the seed


def test_production_code_does_not_know_the_simulation() -> None:
    for path in python_files(SOURCE):
        if path.relative_to(SOURCE).parts[0] not in ("simulation", "cli"):
            assert not [name for name in imports_of(path) if name.startswith("flowcatalyst.simulation")], path


def test_every_test_file_tests_something() -> None:
    for path in python_files(ROOT / "tests"):
        if path.name.endswith("_test.py"):
            assert re.search(r"def test_|TestCase|RuleBasedStateMachine|QueueSuite", path.read_text()), path


def test_tracked_files_name_no_registry_and_no_machine_path() -> None:
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True).stdout.split()
    leak = re.compile(r"/roo[t]/|/wor[k]/main|--(extra-)?index-ur[l]|registry *= *\"?http")
    for name in tracked:
        path = ROOT / name
        if path.suffix in {".png", ".db"} or not path.is_file():
            continue
        for number, line in enumerate(path.read_text().splitlines(), 1):
            assert not leak.search(line), f"{name}:{number}: {line.strip()}"


def test_lock_file_pins_every_package_as_a_plain_version() -> None:
    for line in (ROOT / "requirements.lock").read_text().splitlines():
        assert re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9._!+-]+", line), line


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
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                size = (node.end_lineno or 0) - node.lineno + 1
                if size > LONG_FUNCTION:
                    long.append(f"{path.relative_to(ROOT)}:{node.lineno} {node.name}: {size} lines")
    assert long == [], "split these by what they know"
