"""The log: one wide JSON line per attempt, and never a secret."""

import asyncio
import json
import logging
import os
import threading
from collections.abc import Iterator
from math import inf
from pathlib import Path

import pytest
import structlog

from flowcatalyst.core import logs
from flowcatalyst.core.block_writer import BlockWriter
from flowcatalyst.core.logs import AttemptLogger, LineSink, LogFormat, close_logs, configure_logs
from flowcatalyst.core.message import ACK, Delivery, MessagePointer, Nack, Retry, encode_pointer
from flowcatalyst.http.interpret import interpret
from tests.support.clocks import SetClock
from tests.support.deliveries import RecordingSource

OK = interpret(200, None, b'{"ack":true}', 0.0)
FAILED = interpret(500, None, b"oops", 0.0)


@pytest.fixture(autouse=True)
def _restore(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(logging, "lastResort", logging.lastResort)
    yield
    close_logs()
    structlog.reset_defaults()


class Pipe:
    """A pipe with a log at one end and nobody who reads at the other, unless asked to."""

    def __init__(self) -> None:
        self.there, here = os.pipe()
        self.here = os.fdopen(here, "wb")

    def sink(self, most_bytes: int = 1_000_000) -> LineSink:
        return LineSink(BlockWriter(self.here, most_bytes), lambda count: b"dropped %d" % count)

    def read_to_end(self) -> bytes:
        """Everything that comes until the log is closed."""
        found = b""
        while data := os.read(self.there, 65536):
            found += data
        return found

    def close(self) -> None:
        self.here.close()
        os.close(self.there)


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    made = Pipe()
    yield made
    made.close()


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


def test_the_number_of_an_attempt_goes_on_after_a_redelivery_as_in_its_request(tmp_path: Path) -> None:
    configure_logs("info", "json", tmp_path / "log")
    again = delivery()
    again.earlier = 3
    AttemptLogger(SetClock()).attempt("POOL", again, FAILED, Retry(2.0), 0.25)
    [line] = lines_of(tmp_path / "log")
    assert line["attempt"] == again.number == 5


def test_level_warning_leaves_out_attempts_that_succeeded(tmp_path: Path) -> None:
    configure_logs("warning", "json", tmp_path / "log")
    logger = AttemptLogger(SetClock())
    logger.attempt("POOL", delivery(), OK, ACK, 0.1)
    logger.attempt("POOL", delivery(), FAILED, Retry(1.0), 0.1)
    assert [line["verdict"] for line in lines_of(tmp_path / "log")] == ["retry"]


def test_an_attempt_that_nobody_repeats_by_itself_says_so_instead_of_an_endless_wait(tmp_path: Path) -> None:
    configure_logs("info", "json", tmp_path / "log")
    AttemptLogger(SetClock()).attempt("POOL", delivery(), FAILED, Nack(inf), 0.1)
    [line] = lines_of(tmp_path / "log")
    assert (line["verdict"], line.get("delay_s")) == ("park", None)


async def test_lines_written_together_keep_their_order_and_what_was_true_then(tmp_path: Path) -> None:
    configure_logs("info", "json", tmp_path / "log")
    logger, moving = AttemptLogger(SetClock()), delivery()
    for tries in range(1, 1001):  # as many as are written at once
        moving.tries = tries
        logger.attempt("POOL", moving, OK, ACK, 0.1)
    close_logs()
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


async def test_reader_that_stalls_stops_nobody_and_gets_everything_in_order_later(pipe: Pipe) -> None:
    sink = pipe.sink()
    for number in range(5000):  # far more than a pipe holds
        sink.msg(b"%d " % number + b"x" * 100)
    sink.flush()
    reading = asyncio.get_running_loop().run_in_executor(None, pipe.read_to_end)
    await asyncio.to_thread(sink.close)
    pipe.here.close()
    lines = (await reading).splitlines()
    assert [int(line.split()[0]) for line in lines] == list(range(5000))
    assert sink.writer.dropped == 0


async def test_lines_beyond_the_bound_are_dropped_and_their_number_stands_in_their_place(pipe: Pipe) -> None:
    sink = pipe.sink(most_bytes=300_000)
    for number in range(10_000):
        sink.msg(b"%d " % number + b"x" * 100)
    sink.flush()
    dropped = sink.writer.dropped
    assert dropped > 5000
    reading = asyncio.get_running_loop().run_in_executor(None, pipe.read_to_end)
    await asyncio.to_thread(sink.writer.wait, 60.0)
    sink.msg(b"10000")
    await asyncio.to_thread(sink.close)
    pipe.here.close()
    *kept, told, last = (await reading).splitlines()
    assert [int(line.split()[0]) for line in kept] == list(range(10_000 - dropped))
    assert (told, last) == (b"dropped %d" % dropped, b"10000")


def test_process_can_end_while_its_reader_stalls(pipe: Pipe, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "LAST_WORDS_S", 0.01)
    sink = pipe.sink()
    sink.msg(b"x" * 200_000)
    sink.close()  # returns
    assert os.read(pipe.there, 10) == b"x" * 10


@pytest.mark.parametrize("blocking", [True, False])
def test_line_longer_than_a_pipe_holds_arrives_whole(pipe: Pipe, blocking: bool) -> None:
    os.set_blocking(pipe.here.fileno(), blocking)
    sink, found = pipe.sink(), list[bytes]()
    reading = threading.Thread(target=lambda: found.append(pipe.read_to_end()))
    reading.start()
    sink.msg(b"x" * 500_000)
    sink.close()
    pipe.here.close()
    reading.join()
    assert found == [b"x" * 500_000 + b"\n"]


def test_closed_reader_costs_the_lines_and_nothing_else(pipe: Pipe) -> None:
    sink = pipe.sink()
    os.close(pipe.there)
    sink.msg(b"to nobody")
    assert sink.writer.dropped == 1
    sink.close()
    pipe.there = os.dup(0)


@pytest.mark.parametrize("log_format", ["json", "console"])
def test_line_about_dropped_ones_looks_like_any_other(tmp_path: Path, log_format: LogFormat) -> None:
    configure_logs("info", log_format, tmp_path / "log")
    (sink,) = logs._sinks
    sink.writer.dropped = 7
    structlog.get_logger("x").info("after", action="after")
    first, second = (tmp_path / "log").read_text().splitlines()
    assert "log_lines_dropped" in first
    assert "7" in first
    assert "after" in second
    assert logs.dropped_lines() == 7


def test_what_libraries_say_goes_the_same_way(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    configure_logs("info", "json", tmp_path / "log")
    record = logging.LogRecord("some.library", logging.ERROR, "x.py", 1, "odd: %s", ("thing",), None)
    assert logging.lastResort is not None
    logging.lastResort.handle(record)
    [line] = lines_of(tmp_path / "log")
    assert (line["action"], line["logger"], line["text"]) == ("library_says", "some.library", "odd: thing")
    assert capfd.readouterr().err == ""


ESCAPES = "\x1b]0;gone\x07\x9b2J\x7f\r\u202e\ud800"


def assert_steers_no_terminal(text: str) -> None:
    assert [one for one in text if not one.isprintable() and one != "\n"] == []
    assert "\\x1b" in text or "\\u001b" in text


@pytest.mark.parametrize("more", ["", " with spaces"])
def test_nothing_that_others_wrote_steers_the_terminal_of_who_reads_the_log(tmp_path: Path, more: str) -> None:
    configure_logs("info", "console", tmp_path / "log")
    hostile = ESCAPES + more
    log = structlog.get_logger("x")
    log.warning(f"event {hostile}", action="x", reason=hostile, several=[hostile], error=ValueError(hostile))
    try:
        raise ValueError(f"line 1\n{hostile}")
    except ValueError as error:
        log.error("task_died", action="task_died", exc_info=error)
    moving = delivery()
    moving.group = hostile
    AttemptLogger(SetClock()).attempt("POOL", moving, FAILED, Retry(2.0), 0.25)
    close_logs()
    text = (tmp_path / "log").read_text()
    assert_steers_no_terminal(text)
    for part in ("gone", "event ", "task_died", "ValueError: line 1\n", "HTTP 500"):
        assert part in text


def test_json_lines_steer_no_terminal_either_and_say_the_same(tmp_path: Path) -> None:
    configure_logs("info", "json", tmp_path / "log")
    hostile = "\x1b]0;gone\x07\x9b2J\x7f\r é"
    moving = delivery()
    moving.group = hostile
    AttemptLogger(SetClock()).attempt("POOL", moving, FAILED, Retry(2.0), 0.25)
    close_logs()
    assert_steers_no_terminal((tmp_path / "log").read_text())
    [line] = lines_of(tmp_path / "log")
    assert line["group"] == hostile
