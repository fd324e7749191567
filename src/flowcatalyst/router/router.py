"""Router: a batch of deliveries -> pools, in three phases (docs/reference.md, "Routing"). Nothing here suspends."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Final

import structlog

from flowcatalyst.core.logs import debug_is_on
from flowcatalyst.core.message import DEFAULT_POOL, UNREADABLE, Delivery, Severity, Told, named_group
from flowcatalyst.core.receipts import adopt_receipt, was_changed
from flowcatalyst.core.warnings import WarningCode, WarningSink
from flowcatalyst.queues.contract import FreeCapacity
from flowcatalyst.router.limits import DEFAULT_POOL_LIMITS, PoolLimits
from flowcatalyst.router.pool import Pool
from flowcatalyst.router.tracker import Duplicate, InFlightTracker

UNREADABLE_AT_ONCE: Final = 10
UNKNOWN: Final = "unknown"
MISSING: Final = "missing"
REFUSAL_S: Final = 10.0  # always the same: that a pool is full is no failure of the message
EDITED_S: Final = 1.0  # for a message that was edited while an attempt of it, as it was before, is in flight

log = structlog.get_logger("flowcatalyst.router")


class Router:
    """Owns the pools and the tracker's way in."""

    def __init__(
        self,
        tracker: InFlightTracker,
        warnings: WarningSink,
        make_pool: Callable[[str, PoolLimits], Pool],
        paused: Collection[str] = (),
    ) -> None:
        self.pools: dict[str, Pool] = {}
        self.retiring: dict[str, Pool] = {}  # removed, but not empty yet
        self.tracker = tracker
        self.defaulted: Counter[str] = Counter()  # messages in the default pool that did not name it, by the reason
        self._on_growth: dict[object, Callable[[], None]] = {}
        # Where a group stays although its messages name, or would now go to, another pool: (pool code, group) -> pool.
        self._pinned: dict[tuple[str, str], Pool] = {}
        self._warnings = warnings
        self._make_pool = make_pool
        self._paused = paused  # codes of pools, some of which may be configured no more
        self._batches = 0
        self._debugs = debug_is_on()

    def add_pool(self, code: str, limits: PoolLimits) -> Pool:
        pool = self.pools[code] = self._make_pool(code, limits)
        pool.admission.on_capacity = self._capacity_grew
        self._capacity_grew()
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
            elif pool.configured != limits:
                pool.change(limits)
        self._pinned = {place: pool for place, pool in places.items() if self.pools.get(place[0]) is not pool}

    def forget_retired(self) -> None:
        """Drop removed pools that have ended; to be called now and then."""
        for code in [code for code, pool in self.retiring.items() if pool.is_over]:
            self.retiring.pop(code).drain()  # it is empty, but its alarm may be set

    def all_pools(self) -> list[Pool]:
        """Those that take messages and those that only end what they have."""
        return [*self.pools.values(), *self.retiring.values()]

    @property
    def capacity(self) -> int:
        """How many messages all pools together may hold, parked ones included."""
        return sum(pool.limits.most for pool in self.all_pools())

    # What the pools ask for (the `Demand` of a queue)

    def free_capacity(self) -> FreeCapacity:
        """How many messages each pool asks for now. Whoever gets a 0 here is told when it is no longer true."""
        pools = dict.fromkeys(self._paused, 0)  # what names one of them is not for the default pool meanwhile
        pools |= {code: pool.asked_capacity() for code, pool in self.pools.items()}
        pools[UNREADABLE] = UNREADABLE_AT_ONCE  # they take no place, and may be in front of something for a pool
        return FreeCapacity(pools, pools.get(DEFAULT_POOL, DEFAULT_POOL_LIMITS.effective_capacity))

    def has_capacity(self, codes: Collection[str] | None = None) -> bool:
        """Whether one of these pools, or any, would ask for messages now. Asking this changes nothing."""
        if codes is None:
            return DEFAULT_POOL not in self.pools or any(pool.free_capacity for pool in self.pools.values())
        return any(pool.free_capacity for pool in self.all_pools() if pool.code in codes)

    def on_growth(self, look_again: Callable[[], None]) -> Callable[[], None]:
        """Call `look_again` whenever a pool that had no free capacity has some. Calling what this returns ends that."""
        key = object()
        self._on_growth[key] = look_again
        return lambda: self._on_growth.pop(key, None) and None

    def _capacity_grew(self) -> None:
        for look_again in list(self._on_growth.values()):
            look_again()

    # Messages in

    def route(self, batch: Sequence[Delivery]) -> None:
        """Hand each message to its pool, or settle it.

        A pool takes what was received even if it is full for now: nacking it could reorder its group, and would count
        as a receive at its broker. Only a pool that holds all it may refuses, where the queue can take messages back in
        order, and then the rest of the group too.
        """
        self._batches += 1
        for delivery in batch:
            if not delivery.group or delivery.group.isspace():  # else its queue named it
                delivery.group = named_group(delivery)
        refused: set[tuple[Pool, str | None]] = set()
        for delivery in self._without_duplicates(batch):
            delivery.batch = self._batches
            pool, wanted = self.pool_of(delivery), delivery.pointer.pool_code
            if pool.code != wanted:
                if pool.code == DEFAULT_POOL:
                    self.defaulted[UNKNOWN if wanted else MISSING] += 1
                if pool.code != (wanted or DEFAULT_POOL):
                    text = f"no pool {wanted!r}: routed to {pool.code}"
                    self._warnings.add(WarningCode.ROUTING, Severity.WARN, text, "router")
            is_refused = False
            if refused or pool.is_full:
                place = (pool, delivery.group if delivery.ordered else None)
                may_return = delivery.returns_in_order or not delivery.ordered
                if pool.is_full and may_return and not pool.has_to_take(delivery):
                    refused.add(place)
                    pool.admission.pause_looks()
                is_refused = place in refused and (delivery.ordered or pool.is_full)
            if is_refused:
                # A queue that is asked per pool hands it to whoever has a slot for it, and not to us.
                elsewhere = not pool.limits.concurrency and delivery.source.capabilities.selects_pools
                delay_s = 0.0 if elsewhere else REFUSAL_S
                pool.refused(delivery, delay_s)
                delivery.source.nack(delivery, delay_s)
            elif not pool.submit(delivery):
                refused.add((pool, delivery.group))
                delivery.source.nack(delivery, REFUSAL_S)
            if self._debugs:
                _tell(delivery, pool)
        for pool in {pool for pool, _ in refused if pool.is_full and pool.limits.concurrency}:
            text = f"pool {pool.code} is full, with {pool.size} messages: further ones are nacked"
            self._warnings.add(WarningCode.QUEUE_FULL, Severity.WARN, text, "router")

    def release(self, delivery: Delivery) -> None:
        """The queue says that the message is no longer ours: do not start it. One in flight ends by itself.

        A queue that neither keeps order by itself nor locks groups would show it again behind its followers, and nobody
        else has it, so there it stays ours.
        """
        capabilities = delivery.source.capabilities
        if delivery.ordered and not capabilities.ordered_redelivery and not capabilities.locks_groups:
            return
        if any(pool.release(delivery) for pool in self.all_pools()):
            self.tracker.remove(delivery)

    def recall(self, deliveries: Iterable[Delivery], told: Told = None) -> int:
        """Somebody wants these back where they came from: what has not started is nacked, in order and without a delay,
        with what is behind it; how many. One in flight ends as usual, and is not tried again here."""
        nacked = 0
        for delivery in deliveries:
            delivery.recalled = True
            nacked += sum(pool.release(delivery, recalled=True, told=told) for pool in self.all_pools())
        return nacked

    def adopt_owned(self, batch: Iterable[Delivery]) -> list[Delivery]:
        """Refresh the receipts of messages the router owns; returns the others."""
        others = []
        for delivery in batch:
            owned = self.tracker.owned(delivery.broker_id)
            if owned is None or was_changed(owned, delivery):
                others.append(delivery)
            else:
                adopt_receipt(owned, delivery)
        return others

    def _without_duplicates(self, batch: Iterable[Delivery]) -> list[Delivery]:
        """Phase 1. A redelivery only refreshes the receipt of the message we own; a requeued copy is removed."""
        for delivery, owned in self.tracker.owned_among(batch):
            # One that waits here although its connection was lost, and is shown again, has its place where it is shown
            # now: what came before it may be shown before it this time.
            if not owned.source.still_ours(owned):
                self.release(owned)
            elif was_changed(owned, delivery):
                self.recall([owned])  # its receipt is worth nothing any more: it is delivered as it is shown now
        new, doubles = self.tracker.sort_out(batch)
        for kind, delivery, first in doubles:
            if kind is Duplicate.REDELIVERED and was_changed(first, delivery):
                new = self._nack_edited(delivery, new)
                continue
            if kind is Duplicate.REDELIVERED:
                adopt_receipt(first, delivery)
                continue
            log.info(
                "duplicate_dropped",
                action="duplicate_dropped",
                message=delivery.pointer.id,
                queue=delivery.source.name,
                broker_id=delivery.broker_id,
                same_as=first.broker_id,
            )
            delivery.source.ack(delivery)
        return new

    def _nack_edited(self, delivery: Delivery, new: Sequence[Delivery]) -> list[Delivery]:
        """An attempt of it, as it was before somebody edited it, is in flight, and counts for nothing. It comes again
        when that has ended, with those of its group; returns the others of the batch."""
        delivery.source.nack(delivery, EDITED_S)
        behind = [one for one in new if one.ordered and delivery.ordered and one.group == delivery.group]
        for one in behind:
            one.source.nack(one, 0.0)
        return [one for one in new if one not in behind]

    def pool_of(self, delivery: Delivery) -> Pool:
        """The pool a message goes to: the one it names, else the default pool, made on demand. Its group is named."""
        wanted = delivery.pointer.pool_code or DEFAULT_POOL
        if self._pinned and delivery.ordered:
            place = (wanted, delivery.group or "")
            pinned = self._pinned.get(place)
            if pinned is not None:
                if pinned.has_group(delivery.group):
                    return pinned
                del self._pinned[place]
        pool = self.pools.get(wanted)
        if pool is not None and not pool.draining:
            return pool
        return self.pools.get(DEFAULT_POOL) or self.add_pool(DEFAULT_POOL, DEFAULT_POOL_LIMITS)


def _tell(delivery: Delivery, pool: Pool) -> None:
    """Where a message went; it has been handed over or nacked."""
    log.debug(
        "admitted" if pool.has(delivery) else "refused",
        action="admitted" if pool.has(delivery) else "refused",
        message=delivery.pointer.id,
        group=delivery.group,
        pool=pool.code,
        queue=delivery.source.name,
        broker_id=delivery.broker_id,
        received=delivery.receive_count,
    )
