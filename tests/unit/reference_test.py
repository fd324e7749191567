"""docs/reference.md says what the code does: every number, answer, delay, warning and metric is compared with it."""

import ast
import importlib
import re
from collections.abc import Iterator
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from inspect import signature
from math import isclose
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from flowcatalyst.app.router import App
from flowcatalyst.control.metrics import StoredFigures, lines
from flowcatalyst.control.platform_settings import PlatformSettings
from flowcatalyst.control.settings import Settings
from flowcatalyst.core import errors
from flowcatalyst.core.message import Ack, ErrorKind, Nack, Outcome, Reject, Result, Retry
from flowcatalyst.core.warnings import WarningCode
from flowcatalyst.dispatch.store.contract import Figures
from flowcatalyst.http.interpret import FAILURES, interpret, interpret_failure
from flowcatalyst.router.limits import PoolLimits
from flowcatalyst.router.policy import decide
from tests.support.deliveries import ORDERED, delivery

ROOT = Path(__file__).parent.parent.parent
SRC = ROOT / "src" / "flowcatalyst"
REFERENCE = ROOT / "docs" / "reference.md"
UNITS = {
    "": 1.0,
    "ms": 0.001,
    "s": 1.0,
    "minutes": 60.0,
    "hour": 3600.0,
    "hours": 3600.0,
    "day": 86_400.0,
    "KiB": 1024.0,
    "MiB": 1024.0**2,
    "%": 0.01,
}
# Numbers without a meaning for somebody who operates or extends the router.
NOT_TOLD = re.compile(
    r"(sandbox|simulation|cli|queues\.memory|queues\.memory_lanes)\..*"
    r"|.*\.(GRAIN_S|CLOCK_GRAIN_S|TIMER_GRAIN_S|KIB|NANO)"
    r"|router\.alarm\.SHORTEST_S|http\.http1\.(connection\.NO_DEADLINE|pool\.NEVER)"  # how exact timers are; infinity
    r"|queues\.division\.NOBODY"  # no number
    r"|queues\.nats\.(link\.NOT_FOUND|publish\.TOO_LARGE)"  # codes
    r"|control\.(dead_letters\.MAX_NUMBER|retention\.DAY_S)"  # the largest integer, a day
    r"|queues\.embedded\.inspect\.BEGIN"  # no number
    r"|dispatch\.(housekeeping\.DAY_S|store\.postgres_search\.NEWEST)"
)

Row = dict[str, str]


@cache
def tables() -> list[list[Row]]:
    """All tables of the document: a list of rows each, by the names of their columns."""
    found: list[list[list[str]]] = []
    inside = False
    for line in REFERENCE.read_text().splitlines():
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip("|"))] if line.startswith("|") else []
        if cells and not inside:
            found.append([])
        inside = bool(cells)
        if inside:
            found[-1].append(cells)
    return [[dict(zip(rows[0], row, strict=True)) for row in rows[2:]] for rows in found]


def table_with(*columns: str) -> list[Row]:
    (table,) = [table for table in tables() if set(columns) <= table[0].keys()]
    return table


def numbers() -> list[tuple[str, str]]:
    """(name of a constant, what the document says it is)."""
    return [
        (row["constant"].strip("`"), row["value"])
        for table in tables()
        if "constant" in table[0]
        for row in table
        if row["constant"]
    ]


def value_said(text: str) -> list[float]:
    match = re.fullmatch(r"([\d.,]+(?:, [\d.,]+)*) ?([A-Za-z%]*)", text)
    assert match, f"{text!r} is not a number with a unit"
    return [float(one.replace(",", "")) * UNITS[match[2]] for one in match[1].split(", ")]


def value_of(name: str) -> list[float]:
    """What module.NAME is, or the default of module.Class.field, or of module.Class.parameter."""
    parts = name.split(".")
    files = (SRC / "/".join(parts[:n]) for n in range(1, len(parts)))
    last_module = max(n for n, path in enumerate(files, 1) if path.with_suffix(".py").exists() or path.is_dir())
    found: Any = pytest.importorskip(".".join(["flowcatalyst", *parts[:last_module]]), exc_type=ImportError)
    for part in parts[last_module:]:
        found = _member(found, part)
    scale = 0.001 if name.lower().endswith("_ms") else 1.0
    return [float(one) * scale for one in (found if isinstance(found, tuple | list) else [found])]


def _member(owner: Any, name: str) -> Any:
    if isinstance(owner, type) and issubclass(owner, BaseModel):
        return owner.model_fields[name].get_default(call_default_factory=True)
    if isinstance(owner, type) and is_dataclass(owner):
        (field,) = [field for field in fields(owner) if field.name == name]
        assert field.default is not MISSING, f"{name} has no default"
        return field.default
    if isinstance(owner, type) and name in (parameters := signature(owner).parameters):
        return parameters[name].default
    return getattr(owner, name)


def numbers_in_the_code() -> Iterator[str]:
    for path in sorted(SRC.rglob("*.py")):
        module = ".".join(path.relative_to(SRC).with_suffix("").parts).removesuffix(".__init__")
        if module == "__init__":
            continue
        for node in ast.parse(path.read_text()).body:
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            if not isinstance(node, ast.Assign | ast.AnnAssign) or not isinstance(targets[0], ast.Name):
                continue
            name = targets[0].id
            if not re.fullmatch(r"[A-Z][A-Z0-9_]+", name):
                continue
            try:
                value = getattr(importlib.import_module(f"flowcatalyst.{module}"), name)
            except ImportError:  # of an extra that is not installed
                continue
            parts = value if isinstance(value, tuple) else (value,)
            if parts and all(type(part) in (int, float) for part in parts):
                yield f"{module}.{name}"


@pytest.mark.parametrize(("name", "said"), numbers())
def test_a_number_of_the_reference_is_that_of_the_code(name: str, said: str) -> None:
    wanted, found = value_said(said), value_of(name)
    assert len(wanted) == len(found), f"docs/reference.md: {name} is {found}, not {said}"
    assert all(map(isclose, wanted, found)), f"docs/reference.md: {name} is {found}, not {said}"


def test_the_reference_has_every_number_of_the_code_once() -> None:
    told = [name for name, _ in numbers()]
    assert sorted(told) == sorted(set(told)), "docs/reference.md has a number twice"
    missing = [name for name in numbers_in_the_code() if name not in told and not NOT_TOLD.fullmatch(name)]
    assert not missing, f"docs/reference.md has no row for {', '.join(missing)}"


def word_for(outcome: Outcome) -> str:
    """What follows from the first attempt at a message of a queue that redelivers in order."""
    message = delivery("m")
    message.failures = int(outcome.counts)
    verdict = decide(outcome, message, ORDERED, PoolLimits(concurrency=1))
    return {Ack: "ack", Retry: "retry", Nack: "nack", Reject: "dead-letter"}[type(verdict)]


def row_of(outcome: Outcome) -> Row:
    return {
        "result": f"`{outcome.result}`",
        "error": f"`{outcome.error}`",
        "counts": "yes" if outcome.counts else "no",
        "breaker": "yes" if outcome.trips_breaker else "no",
        "warning": str(outcome.warning or ("WARN, once" if outcome.note else "")),
        "first time": word_for(outcome),
    }


def outcomes_of(answer: str, seen: set[int]) -> Iterator[Outcome]:
    """What is made of the answers that a row is about, but for the statuses of the rows before it."""
    bodies = {"`ack` is not `true`": b'{"ack":false}', "unclear": b'{"ack":'}
    if match := re.fullmatch(r"(\d+)(?:-(\d+))?", answer):
        for status in set(range(int(match[1]), int(match[2] or match[1]) + 1)) - seen:
            seen.add(status)
            yield interpret(status, None, b"", 0.0)
    elif answer.startswith("2xx, "):
        yield interpret(200, None, bodies[answer.removeprefix("2xx, ")], 0.0)
    elif answer == "any other error":
        yield interpret_failure(ValueError("?"))
    else:
        yield interpret_failure(getattr(errors, answer.strip("`"))("?"))


def test_the_response_table_is_that_of_the_code() -> None:
    seen: set[int] = set()
    rows = table_with("answer", "first time")
    for row in rows:
        for outcome in outcomes_of(row["answer"], seen):
            said = {column: row[column] for column in row_of(outcome)}
            assert said == row_of(outcome), f"docs/reference.md on {row['answer']}"
    assert set(range(1000)) == seen, "docs/reference.md leaves statuses out"
    named = {row["answer"].strip("`") for row in rows}
    assert {kind.__name__ for kind in FAILURES} <= named


def test_the_retry_schedule_is_that_of_the_code() -> None:
    failed = Outcome(Result.ERROR_PROCESS, ErrorKind.HTTP_ERROR, retryable=True)
    rows = table_with("failed attempts", "wait")
    for number, row in enumerate(rows, 1):
        message = delivery("m")
        message.failures = number
        verdict = decide(failed, message, ORDERED, PoolLimits(concurrency=1))
        (wait_s,) = value_said(row["wait"])
        assert verdict == (Retry(wait_s) if "in the router" in row["where"] else Nack(wait_s)), f"failure {number}"
        assert row["failed attempts"] == (f"{number} or more" if number == len(rows) else str(number))


def test_every_warning_code_is_in_the_reference_with_its_severities() -> None:
    rows = {row["code"].strip("`"): row for row in table_with("code", "severity")}
    assert set(rows) == set(WarningCode)
    for path in SRC.rglob("*.py"):
        for code, severity in re.findall(r"WarningCode\.(\w+),\s+Severity\.(\w+)", path.read_text()):
            assert severity in rows[code]["severity"], f"docs/reference.md: {code} can be {severity}, see {path.name}"


def test_every_metric_is_in_the_reference(tmp_path: Path) -> None:
    app = App(Settings(data_dir=tmp_path, platform=PlatformSettings(enabled=True)))
    text = "".join(lines(app, StoredFigures(jobs=Figures(0, 0, 0, 0, 0, {}, None))))
    real = dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE))
    assert {row["metric"].strip("`"): row["kind"] for row in table_with("metric", "kind")} == real


def test_nobody_cites_a_document_that_is_not_in_the_repository() -> None:
    """Rules used to be cited by the number of a document elsewhere. An ADR may tell where they came from."""
    texts = [*(ROOT / "docs").glob("*.md"), *(ROOT / "bench").rglob("*.py"), *(ROOT / "tests").rglob("*.py")]
    texts += [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *SRC.rglob("*.py")]
    cited = re.compile(r"(?<![\w.,:\\-])00[0-4]\b(?![-:])")
    assert [str(path) for path in texts if cited.search(path.read_text())] == []
