"""The rule about limits that all processes share: what they have in flight together, and start together in a minute."""

from collections.abc import Iterator

from flowcatalyst.router.rate import WINDOW_S
from flowcatalyst.simulation.jobs.history import Event
from flowcatalyst.simulation.jobs.story import Story

GRAIN_S = 1e-6  # times are sums of floats


def limits_are_of_all_processes(event: Event, story: Story) -> Iterator[str]:
    """At no time do all processes have more attempts of a pool in flight than it may, or started more in a minute."""
    flights, pool = story.flights, event.value.pool
    if (limits := flights.limits.get(pool)) is None:
        return
    others = [process for (process, _), one in flights.in_flight.items() if one == pool]
    if len(others) >= limits.concurrency:
        yield f"attempt {len(others) + 1} of {limits.concurrency} in pool {pool}, beside those of {sorted(others)}"
    if limits.rate_per_minute is not None:
        recent = sum(at > event.at - WINDOW_S + GRAIN_S for at in flights.starts.get(pool, ()))
        if recent >= limits.rate_per_minute:
            yield f"start {recent + 1} of {limits.rate_per_minute} in a minute in pool {pool}"
