"""Router: a batch of deliveries -> pools, in the three phases of 002. Nothing here suspends."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from flowcatalyst.message import DEFAULT_GROUP, DEFAULT_POOL, Delivery, Severity, adopt_receipt
from flowcatalyst.operations.warnings import WarningCode, WarningSink
from flowcatalyst.routing.limits import DEFAULT_POOL_LIMITS, PoolLimits
from flowcatalyst.routing.pool import Pool
from flowcatalyst.routing.room_shares import RoomShares
from flowcatalyst.routing.tracker import Duplicate, InFlightTracker

FIRST_REFUSAL_S: Final = 2.0
LONGEST_REFUSAL_S: Final = 1800.0


class Router:
    """Owns the pools and the tracker's way in."""

    def __init__(
        self, tracker: InFlightTracker, warnings: WarningSink, make_pool: Callable[[str, PoolLimits], Pool]
    ) -> None:
        self.pools: dict[str, Pool] = {}
        self.retiring: dict[str, Pool] = {}  # removed, but not empty yet
        self.tracker = tracker
        self.shares = RoomShares()
        # Where a group stays although its messages name, or would now go to, another pool: (pool code, group) -> pool.
        self._stays: dict[tuple[str, str], Pool] = {}
        self._warnings = warnings
        self._make_pool = make_pool
        self._batches = 0

    def add_pool(self, code: str, limits: PoolLimits) -> Pool:
        pool = self.pools[code] = self._make_pool(code, limits)
        return pool

    def apply(self, wanted: Mapping[str, PoolLimits]) -> None:
        """Make the pools those of `wanted`, while messages flow. A removed pool ends what it began.

        A group that has messages in a pool stays there until it is empty: nothing may pass what waits in it.
        """
        self.forget_retired()
        places = {place: pool for pool in self.all_pools() for place in pool.places()}
        if DEFAULT_POOL in self.pools:  # once there it stays: others rely on it
            wanted = {DEFAULT_POOL: DEFAULT_POOL_LIMITS, **wanted}
        for code in [code for code in self.pools if code not in wanted]:
            self.retiring[code] = self.pools.pop(code)
            self.retiring[code].retire()
        for code, limits in wanted.items():
            if (retired := self.retiring.pop(code, None)) is not None:
                self.pools[code] = retired
                retired.revive(limits)
            elif (pool := self.pools.get(code)) is None:
                self.add_pool(code, limits)
            elif pool.limits != limits:
                pool.change(limits)
        self._stays = {place: pool for place, pool in places.items() if self.pools.get(place[0]) is not pool}

    def forget_retired(self) -> None:
        """Drop removed pools that have ended; to be called now and then."""
        self.retiring = {code: pool for code, pool in self.retiring.items() if not pool.is_over}

    def all_pools(self) -> list[Pool]:
        """Those that take messages and those that only end what they have."""
        return [*self.pools.values(), *self.retiring.values()]

    @property
    def capacity(self) -> int:
        """How many messages all pools together take."""
        return sum(pool.limits.effective_capacity for pool in self.all_pools())

    def route(
        self, batch: Sequence[Delivery], waits_behind_others: Callable[[Delivery], bool] = lambda _: False
    ) -> list[Delivery]:
        """Hand each message to its pool, or settle it.

        Returns those that have to wait, because there is no room or because others wait already, and that may not go
        back to their queue, because it would show them again behind their followers. They are owned from now on; the
        caller keeps them in order and calls `route_kept` when there is room.
        """
        self._batches += 1
        kept: list[Delivery] = []
        by_pool: dict[Pool, list[Delivery]] = {}
        for delivery in self._without_duplicates(batch):
            delivery.batch = self._batches
            pool = self._pool_for(delivery)
            if delivery.ordered and waits_behind_others(delivery):
                kept.append(delivery)
            else:
                by_pool.setdefault(pool, []).append(delivery)
        for pool, messages in by_pool.items():
            kept += self._hand_over(pool, messages)
        for delivery in kept:
            self.tracker.track(delivery)
        return kept

    def route_kept(self, delivery: Delivery) -> bool:
        """Hand over a message that `route` returned. False if there is still no room."""
        return self.pool_of(delivery).submit(delivery)

    def _hand_over(self, pool: Pool, messages: list[Delivery]) -> list[Delivery]:
        """Phases 2 and 3. Returns those that have to wait."""
        if pool.room < len(messages):
            text = f"pool {pool.code} has no room for {len(messages)} messages"
            self._warnings.add(WarningCode.QUEUE_FULL, Severity.WARN, text, "router")
            return self._refuse(messages)
        return self._submit(pool, messages)

    def disown(self, delivery: Delivery) -> None:
        """The queue says that the message is no longer ours: do not start it. One in flight ends by itself.

        A queue that does not keep order by itself would show it again behind its followers, so there it stays ours.
        """
        if delivery.ordered and not delivery.source.capabilities.ordered_redelivery:
            return
        if any(pool.withdraw(delivery) for pool in self.all_pools()):
            self.tracker.remove(delivery)

    def adopt_owned(self, batch: Iterable[Delivery]) -> list[Delivery]:
        """Refresh the receipts of messages the router owns; returns the others."""
        others = []
        for delivery in batch:
            owned = self.tracker.owned(delivery.broker_id)
            if owned is None:
                others.append(delivery)
            else:
                adopt_receipt(owned, delivery)
        return others

    def _without_duplicates(self, batch: Iterable[Delivery]) -> Iterable[Delivery]:
        """Phase 1. A redelivery only refreshes the receipt of the message we own; a requeued copy is removed."""
        first_of: dict[str, Delivery] = {}
        for delivery in batch:
            found = self.tracker.find_duplicate(delivery) or _find_in_batch(first_of, delivery)
            if found is None:
                first_of[delivery.pointer.id] = delivery
                yield delivery
            elif found[0] is Duplicate.REQUEUED:
                delivery.source.ack(delivery)
            else:
                adopt_receipt(found[1], delivery)

    def pool_of(self, delivery: Delivery) -> Pool:
        """The pool a message goes to: the one it names, else the default pool, made on demand."""
        _name_group(delivery)
        wanted = delivery.pointer.pool_code or DEFAULT_POOL
        if self._stays and (stays := self._where_its_group_stays(wanted, delivery)) is not None:
            return stays
        pool = self.pools.get(wanted)
        if pool is not None and not pool.draining:
            return pool
        return self.pools.get(DEFAULT_POOL) or self.add_pool(DEFAULT_POOL, DEFAULT_POOL_LIMITS)

    def _where_its_group_stays(self, wanted: str, delivery: Delivery) -> Pool | None:
        place = (wanted, delivery.group or "")
        pool = self._stays.get(place)
        if pool is None or pool.has_group_of(delivery):
            return pool
        del self._stays[place]
        return None

    def _pool_for(self, delivery: Delivery) -> Pool:
        pool, wanted = self.pool_of(delivery), delivery.pointer.pool_code or DEFAULT_POOL
        if pool.code != wanted:
            text = f"no pool {wanted!r}: routed to {pool.code}"
            self._warnings.add(WarningCode.ROUTING, Severity.WARN, text, "router")
        return pool

    def _submit(self, pool: Pool, messages: Iterable[Delivery]) -> list[Delivery]:
        """Phase 3. After a refused message the rest of its group is refused too, or it would be overtaken."""
        refused: list[Delivery] = []
        blocked: set[str | None] = set()
        for delivery in messages:
            if delivery.group in blocked or not self.tracker.track(delivery):
                refused.append(delivery)
            elif not pool.submit(delivery):
                self.tracker.remove(delivery)
                refused.append(delivery)
                blocked.add(delivery.group)
        return self._refuse(refused)

    def _refuse(self, messages: list[Delivery]) -> list[Delivery]:
        kept: list[Delivery] = []
        for delivery in messages:
            if delivery.source.capabilities.ordered_redelivery or not delivery.ordered:
                delivery.source.nack(delivery, _refusal_delay_s(delivery))
            else:
                kept.append(delivery)
        return kept


def _name_group(delivery: Delivery) -> None:
    """The queue's word for the group counts first, then the pointer's; all others share the default group."""
    group = delivery.group or delivery.pointer.message_group_id
    delivery.group = group if group and not group.isspace() else DEFAULT_GROUP


def _refusal_delay_s(delivery: Delivery) -> float:
    """Longer each time: a backlog that a full pool cannot take must not stand in front of other pools for ever."""
    return min(FIRST_REFUSAL_S * 2.0 ** min(delivery.receive_count - 1, 10), LONGEST_REFUSAL_S)


def _find_in_batch(first_of: dict[str, Delivery], delivery: Delivery) -> tuple[Duplicate, Delivery] | None:
    first = first_of.get(delivery.pointer.id)
    if first is None:
        return None
    return (Duplicate.REDELIVERED if first.key == delivery.key else Duplicate.REQUEUED), first
