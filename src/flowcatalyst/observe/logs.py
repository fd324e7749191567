"""Logs: one line per event, with a stable `action` key. Tokens and message bodies never get here.

Lines are collected for a moment and written together: at thousands of attempts a second a system call per line would
cost more than the attempts.
"""

import asyncio
import atexit
import logging
import sys
from collections.abc import Callable
from contextlib import ExitStack, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO, Final, Literal

import msgspec
import structlog

from flowcatalyst.clock import Clock
from flowcatalyst.message import Ack, Delivery, Nack, Outcome, Reject, Result, Retry, Verdict

LogFormat = Literal["auto", "json", "console"]
FLUSH_AFTER_S: Final = 0.05
FLUSH_AFTER_LINES: Final = 1000
_LEVELS: Final = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}

_encode = msgspec.json.Encoder(enc_hook=repr).encode


def flush_logs() -> None:
    """Write what still waits; for a process that ends without the usual ceremony."""
    _opened.close()


class LineSink:
    """Writes lines to a file, soon. While no event loop runs, at once.

    A line is bytes, or a function that makes them: many made in one go cost far less than each in between other work.
    """

    def __init__(self, file: BinaryIO, for_people: bool = False) -> None:
        self.for_people = for_people
        self._file = file
        self._lines: list[bytes | Callable[[], bytes]] = []

    def msg(self, line: bytes | Callable[[], bytes]) -> None:
        self._lines.append(line)
        if len(self._lines) == 1:
            self._flush_later()
        elif len(self._lines) >= FLUSH_AFTER_LINES:
            self.flush()

    debug = info = warning = error = msg  # what structlog calls

    def flush(self) -> None:
        if self._lines:
            lines, self._lines = self._lines, []
            text = b"\n".join([line if isinstance(line, bytes) else line() for line in lines])
            with suppress(OSError, ValueError):  # a full disk or a closed terminal must not stop the router
                self._file.write(text + b"\n")
                self._file.flush()

    def _flush_later(self) -> None:
        try:
            asyncio.get_running_loop().call_later(FLUSH_AFTER_S, self.flush)
        except RuntimeError:
            self.flush()


_opened = ExitStack()  # what the log in force has open


def close_logs() -> None:
    """Write what is left and close the log file."""
    _opened.close()


atexit.register(close_logs)


def configure_logs(level: str, log_format: LogFormat, file: Path | None = None) -> None:
    """Send logs to a file or to standard error: as JSON lines, or for people when standard error is a terminal."""
    processors: list[structlog.typing.Processor] = [
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    close_logs()
    for_people = log_format == "console" or (log_format == "auto" and file is None and sys.stderr.isatty())
    sink = LineSink(sys.stderr.buffer if file is None else _opened.enter_context(file.open("ab")), for_people)
    _opened.callback(sink.flush)
    if for_people:
        in_colour = file is None and sys.stderr.isatty()
        # Not the one with local variables, which hold keys and tokens.
        renderer = structlog.dev.ConsoleRenderer(colors=in_colour, exception_formatter=structlog.dev.plain_traceback)
        processors += [_without_action, lambda *event: renderer(*event).encode()]
    else:
        processors += [structlog.processors.format_exc_info, _render_json]
    structlog.configure(
        processors=processors,
        wrapper_class=structlog.make_filtering_bound_logger(_LEVELS[level]),
        logger_factory=lambda *_: sink,
        cache_logger_on_first_use=False,
    )


def _render_json(logger: object, method: str, event: structlog.typing.EventDict) -> bytes:
    event.pop("event", None)  # `action` says the same
    return _encode(event)


def _without_action(logger: object, method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    event.pop("action", None)  # people read the same word as the event
    return event


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
        if outcome.result is Result.SUCCESS and not self._successes_are_logged:
            return
        # What changes between now and the moment the line is made is noted now.
        noted = (self._clock.wall(), delivery.tries, delivery.attempt_at - delivery.arrived_at)
        if self._sink is not None:
            self._sink.msg(lambda: _encode(_line(noted, pool, delivery, outcome, verdict, duration_s)))
        else:
            self._write_for_people(_line(noted, pool, delivery, outcome, verdict, duration_s))

    def _write_for_people(self, line: AttemptLine) -> None:
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
    noted: tuple[float, int, float],
    pool: str,
    delivery: Delivery,
    outcome: Outcome,
    verdict: Verdict,
    duration_s: float,
) -> AttemptLine:
    wall, tries, waited_s = noted
    pointer = delivery.pointer
    return AttemptLine(
        "attempt",
        "info" if outcome.result is Result.SUCCESS else "warning",
        datetime.fromtimestamp(wall, UTC),
        pointer.id,
        delivery.group,
        pool,
        delivery.source.name,
        pointer.mediation_target.partition("?")[0],  # a query may hold secrets
        pointer.dispatch_mode,
        tries,
        delivery.receive_count,
        outcome.result,
        outcome.error,
        outcome.status,
        outcome.detail,
        _VERDICT_WORDS[type(verdict)],
        _delay_of(verdict),
        int(duration_s * 1e6),
        int(waited_s * 1e6),
    )


_VERDICT_WORDS: Final = {Ack: "ack", Retry: "retry", Nack: "nack", Reject: "dead_letter"}


def _delay_of(verdict: Verdict) -> float | None:
    match verdict:
        case Retry(after_s):
            return after_s
        case Nack(delay_s):
            return delay_s
        case _:
            return None
