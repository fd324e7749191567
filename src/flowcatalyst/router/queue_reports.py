"""QueueReports: what the polls of one queue tell operators about it. Nothing here suspends."""

from collections.abc import Sequence
from typing import Final

import structlog

from flowcatalyst.core.clock import Clock
from flowcatalyst.core.message import Severity
from flowcatalyst.core.warnings import MAX_MESSAGE_CHARS, WarningBook, WarningCode, WarningFilter
from flowcatalyst.queues.contract import Loss, Queue
from flowcatalyst.router.settler import Settler

UNREADABLE_PERIOD_S: Final = 60.0  # between two warnings about messages that cannot be read

log = structlog.get_logger("flowcatalyst.consumer")


class QueueReports:
    """Whether polls succeed, what the queue lost, how it is set up, and which messages could not be read."""

    def __init__(self, queue: Queue, settler: Settler, warnings: WarningBook, clock: Clock) -> None:
        self.last_poll_at: float | None = None  # monotonic; of successful polls only
        self.last_error = ""  # why the newest poll failed; empty when it did not
        self.losses: list[Loss] = []  # so far
        self._queue = queue
        self._settler = settler
        self._warnings = warnings
        self._clock = clock
        self._failing_since = 0.0  # monotonic
        self._told_of_setup: Sequence[str] = ()  # what was passed on since the queue recovered
        self._unreadable = 0  # since the last warning about them
        self._unreadable_why = ""  # of the newest
        self._unreadable_told_at = -UNREADABLE_PERIOD_S  # monotonic

    def failed(self, why: str) -> None:
        """A poll failed."""
        self._tell_of_losses()
        if not self.last_error:
            self._failing_since = self._clock.monotonic()
        self.last_error = why

    def succeeded(self) -> None:
        """A poll succeeded, whether or not it brought something."""
        self._tell_of_losses()
        self.last_poll_at = self._clock.monotonic()
        name = self._queue.name
        if self.last_error:
            self.last_error, self._told_of_setup = "", ()
            after_s = round(self.last_poll_at - self._failing_since, 1)
            self._warnings.end(WarningCode.QUEUE_UNAVAILABLE, f"queue {name} can be read again", f"queue {name}")
            log.warning("queue_recovered", action="queue_recovered", queue=name, after_s=after_s)
        if self._queue.setup_warnings != self._told_of_setup:
            news = [text for text in self._queue.setup_warnings if text not in self._told_of_setup]
            self._told_of_setup = self._queue.setup_warnings
            for text in news:
                self._warnings.add(WarningCode.QUEUE_SETUP, Severity.WARN, f"queue {name}: {text}", "consumer")

    def unreadable(self, reasons: Sequence[str]) -> None:
        """Messages of a poll that nobody can read, if any; told at once, then once in a while."""
        self._unreadable += len(reasons)
        self._unreadable_why = reasons[-1] if reasons else self._unreadable_why
        now = self._clock.monotonic()
        if not self._unreadable or now - self._unreadable_told_at < UNREADABLE_PERIOD_S:
            return  # a sender with a bug has thousands of them
        count = "a message" if self._unreadable == 1 else f"{self._unreadable} messages"
        text = f"queue {self._queue.name}: {count} could not be read and became dead letters; the latest: "
        self._warnings.add(WarningCode.MESSAGES_UNREADABLE, Severity.WARN, f"{text}{self._unreadable_why}", "consumer")
        self._unreadable, self._unreadable_told_at = 0, now

    def _tell_of_losses(self) -> None:
        while losses := self._queue.losses:
            loss = losses.pop(0)
            if loss.withdrawn:
                self._withdraw(loss)
                continue
            in_hand = self._settler.in_hand
            had = f"; {in_hand} of its messages were in this router" if in_hand else ""
            text = f"queue {self._queue.name}: {loss.text}{had}"
            self.losses.append(Loss(text, loss.messages))
            self._warnings.add(WarningCode.MESSAGES_LOST, Severity.ERROR, text, "consumer")
            log.error("messages_lost", action="messages_lost", queue=self._queue.name, loss=text, in_hand=in_hand)

    def _withdraw(self, again: Loss) -> None:
        begins = f"queue {self._queue.name}: {again.text}"
        for loss in [loss for loss in self.losses if loss.text.startswith(begins)]:
            self.losses.remove(loss)
            told = WarningFilter(code=WarningCode.MESSAGES_LOST, source="consumer", text=loss.text[:MAX_MESSAGE_CHARS])
            self._warnings.acknowledge_all(told)
            log.warning("loss_withdrawn", action="loss_withdrawn", queue=self._queue.name, loss=loss.text)
