"""Flights: what all processes of a history have in flight and started, by pool."""

from flowcatalyst.router.limits import PoolLimits
from flowcatalyst.simulation.jobs.history import Event, Kind


class Flights:
    """What all processes do at a time, by pool. Nothing is limited unless the history says so."""

    def __init__(self) -> None:
        self.limits: dict[str, PoolLimits] = {}
        self.in_flight: dict[tuple[str, str], str] = {}  # process and job -> pool
        self.starts: dict[str, list[float]] = {}  # by pool

    def read(self, event: Event) -> None:
        match event.kind:
            case Kind.DIVIDED:
                self.limits = event.value
            case Kind.ATTEMPT if self.limits:
                self.in_flight[event.process, event.job] = event.value.pool
                self.starts.setdefault(event.value.pool, []).append(event.at)
            case Kind.ANSWER | Kind.CUT_OFF:
                self.in_flight.pop((event.process, event.job), None)
            # Of one that stands still they end at their endpoints, before others take it for dead; it learns of that
            # when it goes on, and cuts them off.
            case Kind.CRASHED | Kind.STOPPED | Kind.PAUSED:
                self.in_flight = {key: pool for key, pool in self.in_flight.items() if key[0] != event.process}
