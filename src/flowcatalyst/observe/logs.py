"""Logs: one line per event, with a stable `action` key. Tokens and message bodies never get here."""

import logging
import sys
from pathlib import Path
from typing import Any, BinaryIO, Literal, TextIO

import msgspec
import structlog

from flowcatalyst.message import Ack, Delivery, Nack, Outcome, Reject, Result, Retry, Verdict

LogFormat = Literal["auto", "json", "console"]
_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


def configure_logs(level: str, log_format: LogFormat, file: Path | None = None) -> None:
    """Send logs to a file or to standard error: as JSON lines, or for people when standard error is a terminal."""
    processors: list[structlog.typing.Processor] = [
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    for_people = log_format == "console" or (log_format == "auto" and file is None and sys.stderr.isatty())
    factory: Any
    if for_people:
        text: TextIO = sys.stderr if file is None else file.open("a")
        processors += [structlog.dev.ConsoleRenderer(colors=text.isatty())]
        factory = structlog.WriteLoggerFactory(text)
    else:
        raw: BinaryIO = sys.stderr.buffer if file is None else file.open("ab")
        processors += [structlog.processors.format_exc_info, _render_json]
        factory = structlog.BytesLoggerFactory(raw)
    structlog.configure(
        processors=processors,
        wrapper_class=structlog.make_filtering_bound_logger(_LEVELS[level]),
        logger_factory=factory,
        cache_logger_on_first_use=False,
    )


_encode = msgspec.json.Encoder(enc_hook=repr).encode


def _render_json(logger: object, method: str, event: structlog.typing.EventDict) -> bytes:
    return _encode(event)


class AttemptLogger:
    """One wide line per finished attempt."""

    def __init__(self) -> None:
        self._log = structlog.get_logger("flowcatalyst.attempt").bind()
        self._successes_are_logged = self._log.is_enabled_for(logging.INFO)

    def attempt(self, pool: str, delivery: Delivery, outcome: Outcome, verdict: Verdict, duration_s: float) -> None:
        succeeded = outcome.result is Result.SUCCESS
        if succeeded and not self._successes_are_logged:
            return
        write = self._log.info if succeeded else self._log.warning
        pointer = delivery.pointer
        write(
            "attempt",
            action="attempt",
            message=pointer.id,
            group=delivery.group,
            pool=pool,
            queue=delivery.source.name,
            target=pointer.mediation_target,
            mode=pointer.dispatch_mode,
            attempt=delivery.tries,
            received=delivery.receive_count,
            result=outcome.result,
            error=outcome.error,
            status=outcome.status,
            detail=outcome.detail,
            verdict=_VERDICT_WORDS[type(verdict)],
            delay_s=_delay_of(verdict),
            duration_ms=round(duration_s * 1000, 3),
            waited_ms=round((delivery.attempt_at - delivery.arrived_at) * 1000, 3),
        )


_VERDICT_WORDS = {Ack: "ack", Retry: "retry", Nack: "nack", Reject: "dead_letter"}


def _delay_of(verdict: Verdict) -> float | None:
    match verdict:
        case Retry(after_s):
            return after_s
        case Nack(delay_s):
            return delay_s
        case _:
            return None
