"""Whether webhooks of a group come one after the other, each once (docs/receivers.md tells what follows from what)."""

import threading
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, Protocol

from flowcatalyst.receiver.verify import Webhook

REMEMBERED: Final = 1000


class Verdict(Enum):
    """What a webhook is to those of its group that were done."""

    NEXT = "next"
    """It comes after all of them, and nothing that the sender knows as delivered is missing."""
    REPEAT = "repeat"
    """It was done: answer 200 and do nothing."""
    GAP = "gap"
    """The sender knows something as delivered that was not done here."""
    REGRESSION = "regression"
    """It was not done, but something behind it was: it comes late."""
    UNORDERED = "unordered"
    """It has no position in a group."""


@dataclass(frozen=True, slots=True)
class Known:
    """What a store knows of a group, as far as it concerns one webhook."""

    last: int = 0  # the highest position that was done; 0: none was
    floor: int = 0  # up to here it is not remembered, or does not matter, which positions were done
    done_at: int = 0  # the position at which this very webhook was done, by its id; 0: it was not
    prev_done: bool = False  # whether something was done at the position that it names as delivered before

    def after(self, seq: int, prev: int) -> tuple[int, int]:
        """`last` and `floor` when the webhook was done. Who does what follows a gap has accepted the gap."""
        floor = self.floor if self.prev_done else max(self.floor, prev)
        last = max(self.last, seq, floor)
        return last, max(floor, last - REMEMBERED)


class GuardStore(Protocol):
    """Where a guard remembers. What several processes handle needs a store that they share."""

    def get(self, group: str, webhook_id: str, prev: int) -> Known:
        """What is known of the group; `Known()` if nothing is."""

    def advance(self, group: str, seq: int, webhook_id: str, prev: int) -> Known:
        """Record that this was done, and say what was known before, in one step that nobody else comes between.

        Afterwards both are what `Known.after` says.
        """

    def resume_after(self, group: str, seq: int) -> None:
        """Raise `last` and `floor` to at least `seq`."""


def judge(webhook: Webhook, known: Known) -> Verdict:
    """The rules, in their order: what is a repeat is nothing else, and a gap is worse than being late."""
    seq, prev = webhook.group_seq, webhook.group_prev
    if webhook.group is None or seq is None or prev is None:
        return Verdict.UNORDERED
    if known.done_at:
        return Verdict.REPEAT
    if prev > known.floor and not known.prev_done:
        return Verdict.GAP
    return Verdict.NEXT if seq > known.last else Verdict.REGRESSION


class GroupGuard:
    """Remembers what was done of each group, and judges what comes by it. Any number of threads may use one."""

    def __init__(self, store: GuardStore) -> None:
        self._store = store

    def check(self, webhook: Webhook) -> Verdict:
        """What this webhook is. Changes nothing, but for a repeat that comes at another position: what follows it will
        call that one delivered."""
        if webhook.group is None or webhook.group_seq is None or webhook.group_prev is None:
            return Verdict.UNORDERED
        known = self._store.get(webhook.group, webhook.id, webhook.group_prev)
        if known.done_at not in (0, webhook.group_seq):
            self._store.advance(webhook.group, webhook.group_seq, webhook.id, webhook.group_prev)
        return judge(webhook, known)

    def done(self, webhook: Webhook) -> Verdict:
        """Record that this webhook was handled. Call it before you answer, where you can in the same transaction.

        The verdict is that of the moment of recording: REPEAT if another request recorded the same webhook since
        `check`, so that what this one did should be undone. Of two requests with one webhook exactly one gets another
        verdict.
        """
        if webhook.group is None or webhook.group_seq is None or webhook.group_prev is None:
            return Verdict.UNORDERED
        return judge(webhook, self._store.advance(webhook.group, webhook.group_seq, webhook.id, webhook.group_prev))

    def resume_after(self, group: str, seq: int) -> None:
        """Take everything of a group up to this position as done, by the word of a person who looked at a gap."""
        self._store.resume_after(group, seq)


@dataclass(slots=True)
class _Group:
    last: int = 0
    floor: int = 0
    ids: dict[int, str] = field(default_factory=dict)  # by position
    positions: dict[str, int] = field(default_factory=dict)  # by id, the newest


class MemoryGuardStore:
    """In the memory of one process. After a restart each group begins with a gap.

    With `max_groups` those are forgotten in which nothing was done for longest.
    """

    def __init__(self, max_groups: int | None = None) -> None:
        self._groups: dict[str, _Group] = {}  # the one with the newest change last
        self._max_groups = max_groups
        self._lock = threading.Lock()

    def get(self, group: str, webhook_id: str, prev: int) -> Known:
        with self._lock:
            return self._known(group, webhook_id, prev)

    def advance(self, group: str, seq: int, webhook_id: str, prev: int) -> Known:
        with self._lock:
            before = self._known(group, webhook_id, prev)
            kept = self._groups[group] = self._groups.pop(group, _Group())
            if self._max_groups is not None and len(self._groups) > self._max_groups:
                del self._groups[next(iter(self._groups))]
            kept.ids[seq], kept.positions[webhook_id] = webhook_id, seq
            kept.last, kept.floor = before.after(seq, prev)
            while (oldest := next(iter(kept.ids), kept.last)) <= kept.last - REMEMBERED:
                done = kept.ids.pop(oldest)
                if kept.positions.get(done) == oldest:
                    del kept.positions[done]
            return before

    def resume_after(self, group: str, seq: int) -> None:
        with self._lock:
            kept = self._groups.setdefault(group, _Group())
            kept.last, kept.floor = max(kept.last, seq), max(kept.floor, seq)

    def _known(self, group: str, webhook_id: str, prev: int) -> Known:
        kept = self._groups.get(group)
        if kept is None:
            return Known()
        return Known(kept.last, kept.floor, kept.positions.get(webhook_id, 0), prev in kept.ids)
