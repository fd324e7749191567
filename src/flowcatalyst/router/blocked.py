"""BlockedGroups: which groups wait for a message that was tried and is not settled, and since when. Pure, and bounded.

The message may be in the router or back in its queue until it is due again, so the scheduler alone cannot tell. A
success that never failed before does not come here.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from flowcatalyst.core.message import Delivery, Nack, Outcome, Retry, Verdict

MOST_REMEMBERED: Final = 10_000  # further ones are not noted: those that wait longer matter more
RETURN_S: Final = 600.0  # a message that did not come again so long after it was due went to somebody else


@dataclass(slots=True)
class BlockedGroup:
    """A group and the message that keeps it waiting."""

    group: str
    pool: str
    broker_id: str
    message_id: str
    since: float  # monotonic, when its first attempt began
    due_at: float  # when it is tried again, or may be
    detail: str  # what its latest attempt got


class BlockedGroups:
    """All groups of a router that wait for a failed message, longest first."""

    def __init__(self) -> None:
        self.by_message: dict[str, BlockedGroup] = {}  # empty: nothing to note of a success

    def note(self, delivery: Delivery, outcome: Outcome, verdict: Verdict, pool: str, now: float) -> None:
        """An attempt was made; only one that leaves a message which blocks its group changes anything, or its end."""
        key = delivery.broker_id or delivery.pointer.id
        if not isinstance(verdict, Retry | Nack) or not delivery.ordered or not delivery.blocks_group:
            self.by_message.pop(key, None)
            return
        due_at = now + (verdict.after_s if isinstance(verdict, Retry) else verdict.delay_s)
        known = self.by_message.get(key)
        if known is not None:
            known.pool, known.due_at, known.detail = pool, due_at, outcome.detail
        elif len(self.by_message) < MOST_REMEMBERED:
            self.by_message[key] = BlockedGroup(
                delivery.group or "",
                pool,
                delivery.broker_id,
                delivery.pointer.id,
                delivery.attempt_at,
                due_at,
                outcome.detail,
            )

    def knows(self, delivery: Delivery) -> bool:
        return (delivery.broker_id or delivery.pointer.id) in self.by_message

    def longer_than(
        self, seconds: float, now: float, owned: Callable[[str], Delivery | None]
    ) -> Iterator[BlockedGroup]:
        """Those blocked for longer than that, longest first. One whose message is not here and did not come when it
        was due is forgotten. `owned` finds the messages of the router by broker id.
        """
        for key, one in sorted(self.by_message.items(), key=lambda item: item[1].since):
            if one.since > now - seconds:
                return
            if now > one.due_at + RETURN_S and owned(one.broker_id) is None:
                del self.by_message[key]
            else:
                yield one
