"""PoolState: what a pool holds and may hold, for who looks at it. It changes nothing."""

import asyncio
from collections.abc import Callable, Iterator
from itertools import chain

from flowcatalyst.core.message import DEFAULT_POOL, Delivery
from flowcatalyst.router.admission import Admission
from flowcatalyst.router.cause import Cause
from flowcatalyst.router.endpoints import Endpoints
from flowcatalyst.router.explain import Wait, explain, hanging
from flowcatalyst.router.group import Group
from flowcatalyst.router.groups import GroupScheduler
from flowcatalyst.router.limits import PoolLimits
from flowcatalyst.router.pauses import HELD_GROUPS, gate_of_endpoint
from flowcatalyst.router.pool_tools import PoolTools
from flowcatalyst.router.rate import SlidingWindow
from flowcatalyst.router.shares import Share


class PoolState:
    code: str
    limits: PoolLimits  # what this process may use of those that are configured
    draining: bool  # for the end of the process: nothing starts any more
    paused: bool  # by a person
    rate: SlidingWindow
    admission: Admission
    slots: "dict[asyncio.Task[None], None]"  # in the order they began
    _scheduler: GroupScheduler
    _endpoints: Endpoints
    _tools: PoolTools
    _now: Callable[[], float]

    def __repr__(self) -> str:
        return f"<Pool {self.code} slots={len(self.slots)}/{self.limits.concurrency} {self._scheduler!r}>"

    @property
    def in_flight(self) -> int:
        return self._scheduler.in_flight

    @property
    def buffered(self) -> int:
        return self._scheduler.buffered

    @property
    def parked(self) -> int:
        return max(0, len(self._scheduler) - self.limits.effective_capacity)  # beyond the capacity

    @property
    def group_count(self) -> int:
        return self._scheduler.group_count

    @property
    def held_count(self) -> int:
        return self._scheduler.held_count

    @property
    def size(self) -> int:
        return len(self._scheduler)

    @property
    def is_full(self) -> bool:
        """It holds all it may, parked ones included."""
        return len(self._scheduler) >= self.limits.most

    @property
    def free_capacity(self) -> int:
        """How many more messages the pool asks for."""
        return 0 if self.draining or self.paused else self.admission.free_capacity(self.limits)

    def has_to_take(self, delivery: Delivery) -> bool:
        """Its group waits for it, perhaps with all that the pool is full of, and a slot has nothing else to do."""
        busy = self.in_flight + self._scheduler.ready_count
        return busy < self.limits.concurrency and self._scheduler.awaits(delivery)

    def has(self, delivery: Delivery) -> bool:
        return delivery in self._scheduler

    def places(self) -> set[tuple[str, str]]:
        """(pool code that its messages name, group) of every ordered group that is here."""
        mine = chain(self._scheduler, self._scheduler.awaited)
        return {(one.pointer.pool_code or DEFAULT_POOL, one.group or "") for one in mine if one.ordered}

    @property
    def is_over(self) -> bool:
        """Nothing is left here or awaited, and nothing that started here counts against the rate limit."""
        return not self.group_count and not self.rate.used(self._now())

    def has_group(self, name: str | None) -> bool:
        return self._scheduler.has_group(name)

    def explain(self, delivery: Delivery) -> Wait:
        """What a message of this pool waits for (G7)."""
        now, tools = self._now(), self._tools
        pauses = tools.pauses
        place, busy = self._scheduler.place_of(delivery), self._scheduler.is_in_flight
        if place.first is delivery and not busy(delivery) and not place.acking:
            if self.paused:
                pause = pauses.pools.get(self.code)
                return Wait(
                    f"its pool to be resumed{'' if pause is None else f': {pause.by} paused it'}",
                    cause=Cause.POOL_PAUSED,
                )
            if not tools.fence.allows(now):
                return Wait("this router to be sure that it is the primary", cause=Cause.FENCE)
            gate = pauses.gate_of(delivery, tools.endpoint_of, tools.origin_of)  # where it is to wait, if not yet
            if gate is not None and (person := pauses.explain(gate, delivery.group)) is not None:
                return Wait(person, cause=Cause.GROUP_HELD if gate == HELD_GROUPS else Cause.ENDPOINT_PAUSED)
        return explain(delivery, place, busy, self.in_flight, self.limits, self._endpoints, pauses, self.rate, now)

    @property
    def groups(self) -> Iterator[Group]:
        """Its ordered groups, in no order."""
        return iter(self._scheduler.groups.values())

    def group(self, name: str) -> Group | None:
        return self._scheduler.groups.get(name)

    @property
    def ready_count(self) -> int:
        return self._scheduler.ready_count

    def shares(self) -> Iterator[tuple[Share, int]]:
        """The endpoints that its messages went to, and how many slots each may have."""
        return self._endpoints.shares(self.limits.concurrency, self._now())

    def waiting_at(self, endpoint: str) -> int:
        """How many groups wait for an endpoint to be free, to be well again or to be resumed."""
        gates = self._scheduler.gates
        return len(gates.get(endpoint, ())) + len(gates.get(gate_of_endpoint(endpoint), ()))

    def came_before(self, delivery: Delivery) -> int:
        """How many of its messages came before this one."""
        return sum(one.arrived_at < delivery.arrived_at for one in self._scheduler)

    def under_way_since(self, before: float) -> Iterator[Delivery]:
        return self._scheduler.under_way_since(before)

    def hanging(self, limit_s: float) -> Iterator[tuple[str, float]]:
        return hanging(self._scheduler, self._endpoints, limit_s, self._now())
