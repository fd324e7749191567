"""Logs: one line per event, with a stable `action` key. Tokens and message bodies never get here.

Lines are collected for a moment and written together: at thousands of attempts a second a system call per line would
cost more than the attempts. A thread writes them, so that a reader who stalls does not stop the router: while too much
waits for it lines are dropped, and a line `log_lines_dropped` tells how many.

Senders, endpoints and brokers have a hand in what is logged, and lines end up on terminals: no control character gets
there as it is.
"""

import asyncio
import atexit
import errno
import io
import logging
import os
import re
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from functools import partial
from math import isinf
from pathlib import Path
from typing import Any, Final, Literal, TextIO

import msgspec
import structlog

from flowcatalyst.core.block_writer import BlockWriter
from flowcatalyst.core.clock import Clock
from flowcatalyst.core.errors import ConfigurationError
from flowcatalyst.core.message import ACK, SUCCESS, Ack, Delivery, Nack, Outcome, Reject, Result, Retry, Verdict
from flowcatalyst.core.terminal import visible

LogFormat = Literal["auto", "json", "console"]
FLUSH_AFTER_S: Final = 0.05
FLUSH_AFTER_LINES: Final = 1000
LAST_WORDS_S: Final = 2.0  # for a reader that stalls when the process ends
_LEVELS: Final = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}

_encode = msgspec.json.Encoder(enc_hook=repr).encode
_CONTROLS_LEFT_BY_JSON: Final = re.compile(rb"\x7f|\xc2[\x80-\x9f]")  # in UTF-8


class LineSink:
    """Writes lines to a file, soon. While no event loop runs, the main thread waits until they are written.

    A line is bytes, or a function that makes what is written as JSON: many made in one go cost far less than each in
    between other work.
    `tell_dropped` makes the line that says how many were dropped before it.
    """

    def __init__(self, writer: BlockWriter, tell_dropped: Callable[[int], bytes], for_people: bool = False) -> None:
        self.for_people = for_people
        self.writer = writer
        self._tell_dropped = tell_dropped
        self._told = 0  # of the dropped ones
        self._lines: list[bytes | Callable[[], object]] = []
        self._flushing = threading.RLock()  # threads of libraries log too, and destructors at any moment

    def msg(self, line: bytes | Callable[[], object]) -> None:
        lines = self._lines
        lines.append(line)
        if len(lines) == 1:
            try:
                asyncio.get_running_loop().call_later(FLUSH_AFTER_S, self.flush)
            except RuntimeError:
                self.flush()
                if threading.current_thread() is threading.main_thread():
                    self.writer.wait(LAST_WORDS_S)
        elif len(lines) >= FLUSH_AFTER_LINES:
            self.flush()

    debug = info = warning = error = msg  # what structlog calls

    def flush(self) -> None:
        """Hand what was collected to the writer."""
        with self._flushing:
            lines, self._lines = self._lines, []
            made = [line if isinstance(line, bytes) else _encode(line()) for line in lines]
            dropped = self.writer.dropped
            if dropped > self._told:
                made.insert(0, self._tell_dropped(dropped - self._told))
            if made:
                block = b"\n".join(made) + b"\n"
                if b"\x7f" in block or b"\xc2" in block:  # DEL, and one beyond ASCII that is an escape, too
                    block = _CONTROLS_LEFT_BY_JSON.sub(lambda found: b"\\u00%02x" % found[0][-1], block)
                self.writer.put(block, len(lines))
                if self.writer.dropped == dropped:
                    self._told = dropped

    def close(self) -> None:
        """Write everything, as far as the reader lets us in a moment."""
        self.flush()
        self.writer.close(LAST_WORDS_S)


_opened = ExitStack()  # what the log in force has open
_sinks: list[LineSink] = []  # the one in force, if any
_level: list[str] = []  # the one in force, if any


def close_logs() -> None:
    """Write what is left and close the log file; also for a process that ends without the usual ceremony."""
    _opened.close()


def debug_is_on() -> bool:
    """Whether anybody wants to know of every poll and message; asked once by those who would tell, as telling costs."""
    return "debug" in _level


def dropped_lines() -> int:
    """How many lines of the log in force nobody took in time."""
    return sum(sink.writer.dropped for sink in _sinks)


atexit.register(close_logs)


def problem_with_log_file(file: Path) -> str:
    """What keeps a log from being appended to the file, told without making it; empty if nothing."""
    try:
        if file.is_dir():
            return "is a folder: name a file in it"
        if not file.parent.is_dir():
            return f"cannot be opened: there is no folder {file.parent}"
        writable = os.access(file if file.exists() else file.parent, os.W_OK)
    except PermissionError:
        writable = False
    return "" if writable else f"cannot be opened: {os.strerror(errno.EACCES)}"


def configure_logs(level: str, log_format: LogFormat, file: Path | None = None) -> None:
    """Send logs to a file or to standard error: as JSON lines, or for people when standard error is a terminal.

    Raises `ConfigurationError` if the file cannot be opened.
    """
    try:
        opened = None if file is None else file.open("ab")
    except OSError as error:
        problem = problem_with_log_file(file) if file is not None else ""
        raise ConfigurationError(f"log.file {file} {problem or f'cannot be opened: {error.strerror}'}") from None
    processors: list[structlog.typing.Processor] = [
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    close_logs()
    _level[:] = [level]
    for_people = log_format == "console" or (log_format == "auto" and file is None and sys.stderr.isatty())
    writer = BlockWriter(sys.stderr.buffer if opened is None else _opened.enter_context(opened))
    sink = LineSink(writer, lambda count: _dropped_line(processors, count), for_people)
    _opened.callback(sink.close)
    _sinks[:] = [sink]
    if for_people:
        in_colour = file is None and sys.stderr.isatty()
        # Not the one with local variables, which hold keys and tokens.
        renderer = structlog.dev.ConsoleRenderer(colors=in_colour, exception_formatter=_visible_traceback)
        processors += [_for_people, lambda *event: renderer(*event).encode()]
    else:
        processors += [structlog.processors.format_exc_info, _render_json]
    structlog.configure(
        processors=processors,
        wrapper_class=structlog.make_filtering_bound_logger(_LEVELS[level]),
        logger_factory=lambda *_: sink,
        cache_logger_on_first_use=False,
    )
    logging.lastResort = _ToOurLog(logging.WARNING)  # Python's own writes to standard error and waits for its reader


class _ToOurLog(logging.Handler):
    """What libraries say that have no handler of their own."""

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        log = structlog.get_logger(record.name)
        log.warning("library_says", action="library_says", logger=record.name, text=record.getMessage(), exc_info=error)


def _dropped_line(processors: Sequence[structlog.typing.Processor], count: int) -> bytes:
    event: Any = {"event": "log_lines_dropped", "action": "log_lines_dropped", "lines": count}
    for process in processors:
        event = process(None, "warning", event)
    assert isinstance(event, bytes)
    return event


def _render_json(logger: object, method: str, event: structlog.typing.EventDict) -> bytes:
    event.pop("event", None)  # `action` says the same
    return _encode(event)


def _for_people(logger: object, method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    event.pop("action", None)  # people read the same word as the event
    for name, value in event.items():
        if isinstance(value, str) and not value.isprintable():
            event[name] = visible(value) if name == "event" else _Quoted(value)
    return event


class _Quoted:
    """A text that the renderer shows in quotes and with its control characters written out."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return repr(self._text)


def _visible_traceback(target: TextIO, error: structlog.typing.ExcInfo) -> None:
    text = io.StringIO()
    structlog.dev.plain_traceback(text, error)
    target.write(visible(text.getvalue(), keep="\n"))


class AttemptLine(msgspec.Struct):
    """One finished attempt: everything about it in one line."""

    action: str
    level: str
    timestamp: datetime
    message: str
    group: str | None
    pool: str
    queue: str
    target: str
    mode: str | None
    attempt: int
    received: int
    result: Result
    error: str
    status: int | None
    detail: str
    verdict: str
    delay_s: float | None
    duration_us: int
    waited_us: int  # from the router's receipt to the start of this attempt


class AttemptLogger:
    """Writes attempts past structlog's pipeline when lines are JSON: they are most of the log."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._log = structlog.get_logger("flowcatalyst.attempt").bind()
        self._successes_are_logged = self._log.is_enabled_for(logging.INFO)
        sink = getattr(self._log, "_logger", None)
        self._sink = sink if isinstance(sink, LineSink) and not sink.for_people else None

    def attempt(self, pool: str, delivery: Delivery, outcome: Outcome, verdict: Verdict, duration_s: float) -> None:
        if outcome.result is SUCCESS and not self._successes_are_logged:
            return
        # What changes between now and the moment the line is made is noted now.
        number, waited_s = delivery.earlier + delivery.tries, delivery.attempt_at - delivery.arrived_at
        line_of = partial(_line, self._clock.wall(), number, waited_s, pool, delivery, outcome, verdict, duration_s)
        if self._sink is not None:
            self._sink.msg(line_of)
            return
        line = line_of()
        write = self._log.info if line.level == "info" else self._log.warning
        write(
            f"{line.detail}, {line.verdict}" + ("" if line.delay_s is None else f" in {line.delay_s:g} s"),
            message=line.message,
            group=line.group,
            target=line.target,
            attempt=line.attempt,
            ms=line.duration_us // 1000,
        )


def _line(
    wall: float,
    number: int,
    waited_s: float,
    pool: str,
    delivery: Delivery,
    outcome: Outcome,
    verdict: Verdict,
    duration_s: float,
) -> AttemptLine:
    pointer = delivery.pointer
    target = pointer.mediation_target
    word, delay_s = ("ack", None) if verdict is ACK else told_as(verdict)
    return AttemptLine(
        "attempt",
        "info" if outcome.result is SUCCESS else "warning",
        datetime.fromtimestamp(wall, UTC),
        pointer.id,
        delivery.group,
        pool,
        delivery.source.name,
        target.partition("?")[0] if "?" in target else target,  # a query may hold secrets
        pointer.dispatch_mode,
        number,
        delivery.receive_count,
        outcome.result,
        outcome.error,
        outcome.status,
        outcome.detail,
        word,
        delay_s,
        int(duration_s * 1e6),
        int(waited_s * 1e6),
    )


def told_as(verdict: Verdict) -> tuple[str, float | None]:
    """The word for a verdict, and its delay."""
    match verdict:
        case Retry(after_s):
            return "retry", after_s
        case Nack(delay_s):
            return ("park", None) if isinf(delay_s) else ("nack", delay_s)
        case Reject():
            return "dead_letter", None
        case Ack():
            return "ack", None
