"""The kinds of queue a simulated router may stand between, each like one of the real ones.

| kind | like | order after a nack | shows a group to others | brings |
|---|---|---|---|---|
| embedded | our own queue | kept | no | per pool what it has free capacity for |
| fifo | SQS FIFO | kept | no | whatever comes first |
| unordered | JetStream | not kept | yes | whatever comes first |
| connection | ActiveMQ | not kept | only when the connection is gone | whatever comes first |
"""

import asyncio
import math
from dataclasses import replace
from inspect import signature
from typing import Any, Final

from flowcatalyst.core.clock import Clock
from flowcatalyst.core.errors import QueueUnavailableError
from flowcatalyst.core.message import Delivery
from flowcatalyst.queues.contract import Demand, Outgoing, Published
from flowcatalyst.queues.memory import MemoryQueue, Receipt, _Stored
from flowcatalyst.simulation.history import History, Kind, Lost
from flowcatalyst.simulation.queue import Dice, QueueFaults, SimulatedQueue

KINDS: Final = ("embedded", "fifo", "unordered", "connection")
LONG_POLL_S: Final = {"embedded": 1.0, "fifo": 20.0, "unordered": 5.0, "connection": 5.0}
# Not every memory queue can select yet.
_SELECTS: Final[dict[str, Any]] = (
    {"selects_pools": True} if "selects_pools" in signature(MemoryQueue.__init__).parameters else {}
)


def make_queue(
    kind: str,
    name: str,
    clock: Clock,
    history: History,
    faults: QueueFaults,
    dice: Dice,
    *,
    visibility_s: float = 60.0,
    max_batch: int = 10,
) -> SimulatedQueue:
    """A queue of this kind, with faults of its own."""
    assert kind in KINDS, kind
    make = ConnectionQueue if kind == "connection" else SimulatedQueue
    queue = make(
        name,
        clock,
        history,
        replace(faults),
        dice,
        ordered=kind in ("embedded", "fifo"),
        visibility_s=visibility_s,
        max_batch=max_batch,
        **(_SELECTS if kind == "embedded" else {}),
    )
    queue.capabilities = replace(queue.capabilities, long_poll_s=LONG_POLL_S[kind])
    return queue


class ConnectionQueue(SimulatedQueue):
    """What was received is ours as long as the connection lives; there are no leases.

    When it breaks, the broker shows everything again, in order: to us when we are back, or to another router, which
    takes a group as a whole, settles some of its messages, and leaves. A call that fails is a broken connection too.
    """

    def __init__(
        self, name: str, clock: Clock, history: History, faults: QueueFaults, dice: Dice, **options: Any
    ) -> None:
        super().__init__(name, clock, history, faults, dice, **{**options, "visibility_s": math.inf})
        self.capabilities = replace(self.capabilities, locks_groups=True, ordered_takeover=True, extends=False)
        # Nothing of this can happen to a connection that lives, and one that died is told by `cut`.
        faults.receive_is_lost = faults.shows_twice = faults.shows_again = 0.0
        faults.receipts_expire = faults.fails_in_part = 0.0
        self._down_until = 0.0
        self._away: dict[str, float] = {}  # group -> until when another router has it
        self._dead: set[Receipt] = set()

    def still_ours(self, delivery: Delivery) -> bool:
        return delivery.receipt not in self._dead

    def cut(self, down_s: float, taken: float = 0.0) -> None:
        """The connection breaks and is back after a while. Another router takes this share of the groups meanwhile."""
        self._dice.note("connection cut")
        now = self._clock.monotonic()
        self._down_until = now + down_s
        groups: dict[str, list[_Stored]] = {}
        for stored in self._stored.values():
            if stored.visible_at == math.inf:
                self._lose(stored)
            stored.visible_at = max(stored.visible_at, self._down_until)
            groups.setdefault(stored.message.group or stored.lane, []).append(stored)
        rng, loop = self._dice.rng, asyncio.get_running_loop()
        for group, messages in groups.items():
            if self._away.get(group, 0.0) > now or not self._dice.hit("taken by another router", taken):
                continue
            # Another router has the group for a while and delivers its first messages, one after the other.
            at = now
            for stored in messages[: rng.randint(0, 3)]:
                at += rng.uniform(0.1, 3.0)
                loop.call_at(at, self._settle_for_other, stored.number)
            self._away[group] = until = at + rng.uniform(0.0, 5.0)
            for stored in messages:
                stored.visible_at = max(stored.visible_at, until)
        self._history.add(Kind.CUT, value=max(self._down_until, *self._away.values(), 0.0))
        self._changed.set()

    def router_left(self) -> None:
        for stored in self._stored.values():
            if stored.visible_at == math.inf:
                self._lose(stored)
        self._changed.set()

    async def receive(self, limit: int, wait_s: float, demand: Demand | None = None) -> list[Delivery]:
        if self._is_down:
            await asyncio.sleep(0.1)
            raise QueueUnavailableError("the broker cannot be reached")
        return await super().receive(limit, wait_s, demand)

    @property
    def _is_down(self) -> bool:
        return self._clock.monotonic() < self._down_until

    def _append(self, message: Outgoing) -> Published:
        published = super()._append(message)
        stored = self._stored[self._published]
        stored.lane = f"alone-{stored.number}"  # a group is locked against others, not against ourselves
        stored.visible_at = max(self._down_until, self._away.get(message.group or "", 0.0))
        return published

    def _lose(self, stored: _Stored) -> None:
        self._dead.add((stored.number, stored.receives))
        stored.receives += 1
        stored.visible_at = 0.0
        self._history.add(Kind.LOST, self._names[self._broker_id(stored.number)], value=Lost.CONNECTION)

    def _settle_for_other(self, number: int) -> None:
        stored = self._stored[number]
        name = self._names[self._broker_id(number)]
        self._settle((number, stored.receives), None)
        self._history.add(Kind.TAKEN, name)
        self._history.add(Kind.REMOVED, name)

    async def _travel_there(self) -> None:
        await self._over_the_connection(super()._travel_there())

    async def _travel_back(self) -> None:
        await self._over_the_connection(super()._travel_back())

    async def _over_the_connection(self, travel: Any) -> None:
        try:
            await travel
        except QueueUnavailableError:
            self.cut(self._dice.rng.uniform(0.1, 3.0))
            raise
        if self._is_down:
            raise QueueUnavailableError("the broker cannot be reached")
