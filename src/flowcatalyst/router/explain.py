"""What a message in a pool waits for, in words (G7). Pure: time comes in as an argument."""

from collections.abc import Iterator
from dataclasses import dataclass
from math import inf
from typing import Final

from flowcatalyst.core.message import Delivery
from flowcatalyst.router.endpoints import Endpoints
from flowcatalyst.router.groups import GroupScheduler, Place
from flowcatalyst.router.limits import PoolLimits
from flowcatalyst.router.rate import SlidingWindow


@dataclass(slots=True, frozen=True)
class Wait:
    """Why a message is not moving: for what, behind whom, until when (monotonic; None: not known)."""

    what: str
    behind: str | None = None
    until: float | None = None
    under_way: bool = False  # its attempt runs


CONFIRMATION: Final = Wait("its queue to confirm")


def explain(
    delivery: Delivery,
    place: Place,
    busy: bool,
    in_flight: int,
    limits: PoolLimits,
    endpoints: Endpoints,
    rate: SlidingWindow,
    now: float,
) -> Wait:
    """What a message waits for that stands at `place`, or whose attempt is under way if it is busy."""
    first, held_until, gate, acking = place
    if acking:
        return CONFIRMATION
    if first is not delivery:
        return Wait(f"its turn in group {delivery.group}", behind=first.pointer.id, until=held_until)
    if busy:
        return Wait(f"the answer to attempt {delivery.number}", under_way=True)
    if held_until is not None:
        return Wait(delivery.waits_for, until=held_until)
    if gate is not None:
        what, until = endpoints.explain(gate, limits.concurrency)
        return Wait(what, until=until)
    permit_at = rate.next_permit_at(now)
    if not limits.concurrency:
        return Wait("a slot: other processes have those of this pool")
    if permit_at == inf:
        return Wait("a permit: other processes have those of this pool, or one that ended had them a minute ago")
    if permit_at > now:
        return Wait(f"a permit: {limits.rate_per_minute} attempts per minute are used up", until=permit_at)
    return Wait(f"a free slot: {in_flight} of {limits.concurrency} are busy")


def hanging(scheduler: GroupScheduler, endpoints: Endpoints, limit_s: float, now: float) -> Iterator[tuple[str, float]]:
    """Endpoints that answer nothing for longer than the limit, though attempts are under way, and since when."""
    for delivery in scheduler.under_way_since(now - limit_s):
        target = delivery.pointer.mediation_target
        if endpoints.hangs(target, delivery.attempt_at, limit_s, now):
            yield endpoints.name_of(target), delivery.attempt_at
