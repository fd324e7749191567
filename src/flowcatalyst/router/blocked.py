"""FailedMessages: messages that were tried and are not settled, and which groups wait for them. Pure, and bounded.

The message may be in the router or back in its queue until it is due again, so the scheduler alone cannot tell. A
success that never failed before does not come here.
"""

from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from flowcatalyst.core.message import Ack, Delivery, MessagePointer, Nack, Outcome, Retry, Verdict
from flowcatalyst.core.payload import NO_PAYLOAD

MOST_REMEMBERED: Final = 10_000  # further ones are not noted: those that wait longer matter more
RETURN_S: Final = 600.0  # a message that did not come again so long after it was due went to somebody else


@dataclass(slots=True)
class FailedMessage:
    """A message that was tried and is not settled."""

    group: str
    pool: str
    broker_id: str
    message_id: str
    since: float  # monotonic, when its first attempt began
    due_at: float  # when it is tried again, or may be
    detail: str  # what its latest attempt got
    queue: str = ""
    pointer: MessagePointer | None = None  # without its payload
    failures: int = 0
    status: int | None = None
    excerpt: str = ""
    answered_at: float | None = None  # monotonic; None: it was never tried here
    blocks: bool = True  # its group waits for it
    is_nacked: bool = False  # it went back to its queue then
    receipt: Any = None  # that it was nacked with


class FailedMessages:
    """All messages of a router that failed and are not settled."""

    def __init__(self) -> None:
        self.by_message: dict[str, FailedMessage] = {}  # empty: nothing to note of a success

    def note(self, delivery: Delivery, outcome: Outcome, verdict: Verdict, pool: str, now: float) -> None:
        """An attempt was made; only one that leaves its message unsettled changes anything, or its end. One that was
        given up is known until its dead letter is recorded (`forget`)."""
        key = _key(delivery)
        if not isinstance(verdict, Retry | Nack):
            if isinstance(verdict, Ack):
                self.by_message.pop(key, None)
            return
        known = self.by_message.get(key)
        if known is None:
            if len(self.by_message) >= MOST_REMEMBERED:
                return
            known = self.by_message[key] = FailedMessage(
                (delivery.group or "") if delivery.ordered else "",
                pool,
                delivery.broker_id,
                delivery.pointer.id,
                delivery.attempt_at,
                now,
                outcome.detail,
                delivery.source.name,
                _without_payload(delivery.pointer),
                blocks=delivery.ordered and delivery.blocks_group,
            )
        known.due_at = now + (verdict.after_s if isinstance(verdict, Retry) else verdict.delay_s)
        known.pool, known.detail, known.failures = pool, outcome.detail, delivery.failures
        known.status, known.excerpt, known.answered_at = outcome.status, outcome.excerpt, now
        known.is_nacked, known.receipt = isinstance(verdict, Nack), delivery.receipt

    def hurried(self, delivery: Delivery, now: float) -> None:
        """Somebody wants it tried now."""
        if (known := self.by_message.get(_key(delivery))) is not None:
            known.due_at = now

    def forget(self, delivery: Delivery) -> None:
        self.by_message.pop(_key(delivery), None)

    def find(self, name: str) -> FailedMessage | None:
        """By its broker id or its application id."""
        if (known := self.by_message.get(name)) is not None:
            return known
        return next((one for one in self.by_message.values() if one.message_id == name), None)

    def of(self, delivery: Delivery) -> FailedMessage | None:
        return self.by_message.get(_key(delivery))

    def knows(self, delivery: Delivery) -> bool:
        """Whether a group is known to wait for it."""
        known = self.of(delivery)
        return known is not None and known.blocks

    def longer_than(
        self, seconds: float, now: float, owned: Callable[[str], Delivery | None], paused: Container[str] = ()
    ) -> Iterator[FailedMessage]:
        """Those that have blocked their group for longer than that, longest first. One that is not here and did not
        come when it was due is forgotten, unless its pool is paused and asks for nothing. `owned` finds the messages of
        the router by broker id.
        """
        for key, one in sorted(self.by_message.items(), key=lambda item: item[1].since):
            if one.since > now - seconds:
                return
            if now > one.due_at + RETURN_S and one.pool not in paused and owned(one.broker_id) is None:
                del self.by_message[key]
            elif one.blocks:
                yield one


def _without_payload(pointer: MessagePointer) -> MessagePointer:
    return msgspec.structs.replace(pointer, payload=NO_PAYLOAD) if pointer.payload else pointer


def _key(delivery: Delivery) -> str:
    return delivery.broker_id or delivery.pointer.id
