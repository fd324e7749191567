"""What a message in a pool waits for, in words (G7). Pure: time comes in as an argument."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import inf
from typing import Final

from flowcatalyst.core.message import Delivery
from flowcatalyst.router.cause import Cause
from flowcatalyst.router.endpoints import Endpoints
from flowcatalyst.router.group import Place
from flowcatalyst.router.groups import GroupScheduler
from flowcatalyst.router.limits import PoolLimits
from flowcatalyst.router.pauses import HELD_GROUPS, Pauses, is_of_pool
from flowcatalyst.router.rate import SlidingWindow


@dataclass(slots=True, frozen=True)
class Wait:
    """Why a message is not moving: for what, behind whom, until when (monotonic; None: not known)."""

    what: str
    behind: str | None = None
    until: float | None = None
    under_way: bool = False  # its attempt runs
    cause: Cause = Cause.CAPACITY
    first: Delivery | None = None  # whom it is behind


CONFIRMATION: Final = Wait("its queue to confirm", cause=Cause.CONFIRMATION)


def explain(
    delivery: Delivery,
    place: Place,
    is_busy: Callable[[Delivery], bool],
    in_flight: int,
    limits: PoolLimits,
    endpoints: Endpoints,
    pauses: Pauses,
    rate: SlidingWindow,
    now: float,
) -> Wait:
    """What a message waits for that stands at `place`, or whose attempt is under way if it is busy."""
    first, held_until, gate, acking, is_away = place
    if acking:
        return CONFIRMATION
    if first is not delivery:
        cause = Cause.SLOW_HEAD if is_busy(first) else Cause.AWAY_HEAD if is_away else Cause.BEHIND_HEAD
        what = f"its turn in group {delivery.group}"
        return Wait(what, behind=first.pointer.id, until=held_until, cause=cause, first=first)
    if is_busy(delivery):
        return Wait(f"the answer to attempt {delivery.number}", under_way=True, cause=Cause.ANSWER)
    if held_until is not None:
        return Wait(delivery.waits_for, until=held_until, cause=Cause.RETRY)
    if gate is not None and (person := pauses.explain(gate, delivery.group)) is not None:
        of_pool = Cause.POOL_PAUSED if is_of_pool(gate) else Cause.ENDPOINT_PAUSED
        return Wait(person, cause=Cause.GROUP_HELD if gate == HELD_GROUPS else of_pool)
    if gate is not None:
        what, until, cause = endpoints.explain(gate, limits.concurrency)
        return Wait(what, until=until, cause=cause)
    permit_at = rate.next_permit_at(now)
    if not limits.concurrency:
        return Wait("a slot: other processes have those of this pool", cause=Cause.DIVISION)
    if permit_at == inf:
        what = "a permit: other processes have those of this pool, or one that ended had them a minute ago"
        return Wait(what, cause=Cause.DIVISION)
    if permit_at > now:
        what = f"a permit: {limits.rate_per_minute} attempts per minute are used up"
        return Wait(what, until=permit_at, cause=Cause.RATE_LIMIT)
    return Wait(f"a free slot: {in_flight} of {limits.concurrency} are busy", cause=Cause.SLOTS)


def hanging(scheduler: GroupScheduler, endpoints: Endpoints, limit_s: float, now: float) -> Iterator[tuple[str, float]]:
    """Endpoints that answer nothing for longer than the limit, though attempts are under way, and since when."""
    for delivery in scheduler.under_way_since(now - limit_s):
        target = delivery.pointer.mediation_target
        if endpoints.hangs(target, delivery.attempt_at, limit_s, now):
            yield endpoints.name_of(target), delivery.attempt_at
