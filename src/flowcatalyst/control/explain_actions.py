"""What a person can do about what keeps a message or a job, by its cause."""

from typing import Final

from flowcatalyst.control.explanation import (
    BY_A_PERSON,
    Action,
    Explanation,
    ThingState,
    of_group,
    of_pool,
    of_stop,
    segment,
)
from flowcatalyst.control.view import RouterView
from flowcatalyst.core.targets import endpoint_of, origin_of
from flowcatalyst.router.cause import Cause
from flowcatalyst.router.pauses import PauseKind, Stop

BY_PEOPLE: Final = (Cause.POOL_PAUSED, Cause.ENDPOINT_PAUSED, Cause.GROUP_HELD, Cause.FENCE)
STATES: Final = {
    Cause.ANSWER: ThingState.IN_FLIGHT,
    Cause.RETRY: ThingState.ON_HOLD,
    Cause.CONFIRMATION: ThingState.CONFIRMING,
    Cause.POOL_PAUSED: ThingState.PAUSED,
    Cause.ENDPOINT_PAUSED: ThingState.PAUSED,
    Cause.GROUP_HELD: ThingState.HELD,
    Cause.FENCE: ThingState.STANDBY,
}
STOPPED: Final = {
    PauseKind.POOL: Cause.POOL_PAUSED,
    PauseKind.ENDPOINT: Cause.ENDPOINT_PAUSED,
    PauseKind.GROUP: Cause.GROUP_HELD,
}
STANDS_BY: Final = "This router does not work now: it is a standby or disabled."


def actions_on(app: RouterView, cause: Cause, pool: str, group: str | None, target: str) -> list[Action]:
    """What ends this cause, of something in a pool that goes to a target; empty: there is nothing of the kind."""
    if cause is Cause.POOL_PAUSED:
        return [of_pool(pool, "resume", f"resume pool {pool}")]
    if cause is Cause.ENDPOINT_PAUSED:
        paused = app.engine.pauses.of_target(target, endpoint_of, origin_of)
        name = endpoint_of(target) if paused is None else paused[0]
        return [Action("resume", f"/monitoring/endpoints/resume?endpoint={segment(name)}", f"resume {name}")]
    if cause is Cause.GROUP_HELD and group is not None:
        return [of_group(group, "release", f"release group {group}")]
    if cause is Cause.BREAKER:
        path = f"/monitoring/circuit-breakers/reset?endpoint={segment(endpoint_of(target))}"
        return [Action("reset", path, "close the circuit breaker of its endpoint, and try now")]
    return []


def stopped(found: Explanation, stop: Stop, also: str = "also ") -> None:
    """A person has to let it go on, whatever else it waits for."""
    found.state = ThingState.HELD if stop.kind is PauseKind.GROUP else ThingState.PAUSED
    found.cause = STOPPED[stop.kind]
    found.chain.append(f"It {also}waits for {stop.what}.")
    found.next_attempt_in_s = found.estimate_s = None
    found.estimate = BY_A_PERSON
    found.actions.append(of_stop(stop))
