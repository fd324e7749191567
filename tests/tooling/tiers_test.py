"""Which tests a run has, and how they are shared out among processes.

A long preparation is made once, a server has one owner, and nobody reads files of which nothing is going to run.
"""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import hypothesis
import pytest
from xdist.remote import Producer

from tests.conftest import pytest_ignore_collect
from tests.support.shares import TOGETHER, Shares

TESTS = Path(__file__).parent.parent
UNIT, BROKER = TESTS / "unit" / "tracker_test.py", TESTS / "conformance" / "nats_test.py"
THOROUGH = TESTS / "sim" / "seeds_test.py"


@pytest.mark.xdist_group("one group")
def test_tests_of_one_group_run_in_one_process(request: pytest.FixtureRequest) -> None:
    """pytest-xdist 3.8 marks them in a way that pytest 9.2 no longer reads: every process prepared everything."""
    if getattr(request.config.option, "loadgroup", False):
        assert request.node.nodeid.endswith("@one group")


def test_tests_of_a_file_are_handed_out_some_at_once_but_those_that_take_long_by_themselves() -> None:
    config: Any = SimpleNamespace(getvalue=lambda _: ["popen"], option=SimpleNamespace(tx=["popen"]))
    shares = Shares(config, Producer("test"), lambda file: "slow" in file)
    ids = [f"tests/quick_test.py::test[{n}]" for n in range(TOGETHER + 1)]
    assert len({shares._split_scope(one) for one in ids[:-1]}) == 1
    assert shares._split_scope(ids[-1]) != shares._split_scope(ids[0])
    assert [shares._split_scope(one) for one in ids] == [shares._split_scope(one) for one in ids]
    assert shares._split_scope("tests/slow_test.py::test_a") != shares._split_scope("tests/slow_test.py::test_b")
    assert shares._split_scope("tests/a_test.py::test@group") == shares._split_scope("tests/b_test.py::test@group")


@pytest.mark.parametrize(
    ("quick", "markers", "read"),
    [
        (True, "", {UNIT}),
        (False, "brokers", {BROKER}),
        (False, "not brokers", {UNIT, THOROUGH}),
        (False, "", {UNIT, BROKER, THOROUGH}),
        (False, "not brokers and hypothesis", {UNIT, BROKER, THOROUGH}),
    ],
)
def test_files_of_which_nothing_runs_are_not_read(quick: bool, markers: str, read: set[Path]) -> None:
    config: Any = SimpleNamespace(getoption={"--quick": quick, "-m": markers}.__getitem__)
    assert {path for path in (UNIT, BROKER, THOROUGH) if not pytest_ignore_collect(path, config)} == read
    assert not pytest_ignore_collect(TESTS / "unit", config)


def test_whether_a_test_is_one_of_brokers_is_said_by_its_file() -> None:
    """Else neither half of `make test` would run it."""
    marked = "mark." + "brokers"
    assert [path for path in TESTS.rglob("*.py") if marked in path.read_text()] == []


def test_a_quick_run_tries_few_examples(request: pytest.FixtureRequest) -> None:
    quick = request.config.getoption("--quick")
    assert hypothesis.settings().max_examples <= 10 if quick else hypothesis.settings().max_examples >= 100
