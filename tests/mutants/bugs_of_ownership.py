"""Bugs in who owns a message: router, tracker and lease keeper."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, Final

from flowcatalyst.core import receipts
from flowcatalyst.core.message import Delivery
from flowcatalyst.router import tracker
from flowcatalyst.router.pool import Pool
from flowcatalyst.router.router import REFUSAL_S, Router
from flowcatalyst.router.settler import Settler
from flowcatalyst.router.tracker import Duplicate, InFlightTracker
from flowcatalyst.router.watch import LeaseKeeper
from tests.mutants.mutant import Bugs, instead_of

BUGS: Final = Bugs()


# Ways into a pool


@BUGS.add("a message that was routed is not owned")
def _() -> None:
    @instead_of(InFlightTracker, "track")
    def track(original: Any, self: Any, delivery: Delivery) -> bool:
        return self.find_duplicate(delivery) is None


@BUGS.add("a batch beyond the room of its pool goes back as a whole, for twice as long each time")
def _() -> None:
    @instead_of(Router, "route")
    def route(original: Any, self: Any, batch: Sequence[Delivery]) -> None:
        of_pools: dict[Pool, list[Delivery]] = defaultdict(list)
        for delivery in batch:
            if self.tracker.find_duplicate(delivery) is None:
                of_pools[self.pool_of(delivery)].append(delivery)
        refused: set[Delivery] = set()
        for pool, some in of_pools.items():
            keeps_order = all(delivery.source.capabilities.ordered_redelivery for delivery in some)
            if keeps_order and pool.size + len(some) > pool.limits.effective_capacity:
                refused.update(some)
                for delivery in some:
                    delivery.source.nack(delivery, min(2.0 * 2.0 ** min(delivery.receive_count, 20), 1800.0))
        original(self, [delivery for delivery in batch if delivery not in refused])


@BUGS.add(
    "a full pool gives messages back to a queue that does not keep order",
    test="tests/integration/pool_test.py::"
    "test_a_pool_never_holds_more_than_capacity_and_parked_limit_even_while_everything_fails",
)
def _() -> None:
    @instead_of(Router, "route")
    def route(original: Any, self: Any, batch: Sequence[Delivery]) -> None:
        for delivery in batch:
            if self.tracker.find_duplicate(delivery) is None and self.pool_of(delivery).is_full:
                delivery.source.nack(delivery, REFUSAL_S)
            else:
                original(self, [delivery])


@BUGS.add("a reload sends a group to its new pool while the old one still has it")
def _() -> None:
    @instead_of(Router, "apply")
    def apply(original: Any, self: Any, wanted: Any) -> None:
        original(self, wanted)
        self._pinned = {}


@BUGS.add("pools that were removed are not drained")
def _() -> None:
    @instead_of(Router, "all_pools")
    def all_pools(original: Any, self: Any) -> list[Pool]:
        return list(self.pools.values())


# Lost messages


@BUGS.add("a lost lease on a queue without order withdraws the message")
def _() -> None:
    @instead_of(Router, "release")
    def release(original: Any, self: Any, delivery: Delivery) -> None:
        if any(pool.release(delivery) for pool in self.all_pools()):
            self.tracker.remove(delivery)


@BUGS.add("a message whose lease was lost is still owned")
def _() -> None:
    @instead_of(Router, "release")
    def release(original: Any, self: Any, delivery: Delivery) -> None:
        owned = self.tracker.owned(delivery.broker_id) is delivery
        original(self, delivery)
        if owned and self.tracker.owned(delivery.broker_id) is None:
            self.tracker.track(delivery)


@BUGS.add("what came over a connection that is gone is started")
def _() -> None:
    @instead_of(Settler, "__init__")
    def init(original: Any, self: Any, *args: Any) -> None:
        original(self, *args)
        self.still_ours = lambda _: True


class _ShownTime:
    """Takes the time that clocks show for the time that passes."""

    def __init__(self, clock: Any) -> None:
        self._clock = clock
        self._behind_s = clock.wall() - clock.monotonic()

    def monotonic(self) -> float:
        return float(self._clock.wall() - self._behind_s)


@BUGS.add("leases are judged by the wall clock")
def _() -> None:
    @instead_of(LeaseKeeper, "__init__")
    def init(original: Any, self: Any, *args: Any) -> None:
        original(self, *args)
        self._clock = _ShownTime(self._clock)


@BUGS.add("nobody extends leases")
def _() -> None:
    @instead_of(LeaseKeeper, "_due")
    def due(original: Any, self: Any) -> Any:
        return {}


# Redeliveries and copies


@BUGS.add("a redelivery of a message in hand is acked as a duplicate")
def _() -> None:
    @instead_of(InFlightTracker, "sort_out")
    def sort_out(original: Any, self: Any, batch: Iterable[Delivery]) -> Any:
        new, doubles = original(self, batch)
        return new, [double._replace(kind=Duplicate.COPY) for double in doubles]


@BUGS.add("a redelivery of a message in hand is given back")
def _() -> None:
    @instead_of(Router, "route")
    def route(original: Any, self: Any, batch: Sequence[Delivery]) -> None:
        again = {delivery for delivery in batch if self.tracker.owned(delivery.broker_id) is not None}
        for delivery in batch:
            if delivery in again:
                delivery.source.nack(delivery, 0.0)
        original(self, [delivery for delivery in batch if delivery not in again])


@BUGS.add("the receipt of a redelivery is not adopted")
def _() -> None:
    @instead_of(receipts, "adopt_receipt")
    def adopt_receipt(original: Any, owned: Delivery, again: Delivery) -> None:
        receipt = owned.receipt
        original(owned, again)
        owned.receipt = receipt


@BUGS.add("a copy under another broker id is not recognised")
def _() -> None:
    @instead_of(InFlightTracker, "find_duplicate")
    def find_duplicate(original: Any, self: Any, delivery: Delivery) -> Any:
        found = original(self, delivery)
        return None if found is not None and found[0] is Duplicate.COPY else found


@BUGS.add("a copy under another broker id counts as a redelivery")
def _() -> None:
    @instead_of(InFlightTracker, "sort_out")
    def sort_out(original: Any, self: Any, batch: Iterable[Delivery]) -> Any:
        new, doubles = original(self, batch)
        return new, [double._replace(kind=Duplicate.REDELIVERED) for double in doubles]


@BUGS.add("another message with the application id of an owned one is dropped")
def _() -> None:
    @instead_of(tracker, "_way_of")
    def way_of(original: Any, delivery: Delivery) -> Any:
        return "", "", ""


@BUGS.add("an old delivery of a message ends the ownership of the new one", machine="tracker")
def _() -> None:
    @instead_of(InFlightTracker, "remove")
    def remove(original: Any, self: Any, delivery: Delivery) -> Any:
        return original(self, self.owned(delivery.broker_id) or delivery)


@BUGS.add("a message that left is still known by its application id", machine="tracker")
def _() -> None:
    @instead_of(InFlightTracker, "remove")
    def remove(original: Any, self: Any, delivery: Delivery) -> Any:
        removed = original(self, delivery)
        if removed:
            self._by_app_id.setdefault(delivery.pointer.id, delivery)
        return removed
