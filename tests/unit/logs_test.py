"""The log: one wide JSON line per attempt, and never a secret."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from flowcatalyst.message import ACK, Delivery, MessagePointer, Retry, encode_pointer
from flowcatalyst.observe.logs import AttemptLogger, LogFormat, close_logs, configure_logs
from flowcatalyst.routing.policy import interpret
from tests.support.clocks import SetClock
from tests.support.deliveries import RecordingSource

OK = interpret(200, None, b'{"ack":true}', 0.0)
FAILED = interpret(500, None, b"oops", 0.0)


@pytest.fixture(autouse=True)
def _restore() -> Iterator[None]:
    yield
    close_logs()
    structlog.reset_defaults()


def delivery() -> Delivery:
    pointer = MessagePointer(id="m1", mediation_target="http://x.test/hook", auth_token="top-secret")
    made = Delivery("q-1", 1, encode_pointer(pointer).decode(), "g")
    made.pointer, made.source, made.tries, made.attempt_at = pointer, RecordingSource(), 2, 1.5
    return made


def lines_of(file: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_an_attempt_is_one_line_with_everything_about_it_but_the_token(tmp_path: Path) -> None:
    configure_logs("info", "json", tmp_path / "log")
    AttemptLogger(SetClock()).attempt("POOL", delivery(), FAILED, Retry(2.0), 0.25)
    [line] = lines_of(tmp_path / "log")
    expected = {
        "action": "attempt",
        "level": "warning",
        "message": "m1",
        "group": "g",
        "pool": "POOL",
        "target": "http://x.test/hook",
        "attempt": 2,
        "result": "ERROR_PROCESS",
        "error": "HTTP_ERROR",
        "status": 500,
        "detail": "HTTP 500",
        "verdict": "retry",
        "delay_s": 2.0,
        "duration_us": 250_000,
        "waited_us": 1_500_000,
    }
    assert {key: line[key] for key in expected} == expected
    assert line["timestamp"] == "1970-01-12T13:46:40Z"
    assert "top-secret" not in (tmp_path / "log").read_text()


def test_level_warning_leaves_out_attempts_that_succeeded(tmp_path: Path) -> None:
    configure_logs("warning", "json", tmp_path / "log")
    logger = AttemptLogger(SetClock())
    logger.attempt("POOL", delivery(), OK, ACK, 0.1)
    logger.attempt("POOL", delivery(), FAILED, Retry(1.0), 0.1)
    assert [line["verdict"] for line in lines_of(tmp_path / "log")] == ["retry"]


async def test_lines_written_together_keep_their_order_and_what_was_true_then(tmp_path: Path) -> None:
    configure_logs("info", "json", tmp_path / "log")
    logger, moving = AttemptLogger(SetClock()), delivery()
    for tries in range(1, 1001):  # as many as are written at once
        moving.tries = tries
        logger.attempt("POOL", moving, OK, ACK, 0.1)
    assert [line["attempt"] for line in lines_of(tmp_path / "log")] == list(range(1, 1001))


@pytest.mark.parametrize("log_format", ["json", "console"])
def test_errors_are_logged_with_their_cause(tmp_path: Path, log_format: LogFormat) -> None:
    configure_logs("info", log_format, tmp_path / "log")
    structlog.get_logger("x").error("task_died", action="task_died", exc_info=ValueError("the cause"))
    structlog.get_logger("x").debug("unseen", action="unseen")
    text = (tmp_path / "log").read_text()
    assert "task_died" in text
    assert "the cause" in text
    assert "unseen" not in text


def test_console_lines_are_for_people(tmp_path: Path) -> None:
    configure_logs("info", "console", tmp_path / "log")
    AttemptLogger(SetClock()).attempt("POOL", delivery(), OK, ACK, 0.1)
    text = (tmp_path / "log").read_text()
    assert "HTTP 200, ack" in text
    assert "top-secret" not in text
