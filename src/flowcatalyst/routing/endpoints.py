"""Endpoints: whether a pool may start another attempt at an endpoint. Pure: time comes in as an argument.

Two things can stand in the way: the circuit breaker of the endpoint, and the share of the pool's slots that its
endpoint or its origin has. Groups that may not start wait at a *gate* named after what stands in their way.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import islice
from math import inf
from typing import Final

from flowcatalyst.message import ErrorKind, Outcome, Result
from flowcatalyst.routing.breaker import SUCCESSES_TO_CLOSE, Breakers, BreakerState
from flowcatalyst.routing.shares import SlotShares

HANGS_S: Final = 5.0  # an attempt that got no connection for so long kept its slot like one that timed out
LOOK_AGAIN_S: Final = 5.0  # the net: what should open a gate may itself have been lost
GATES_LOOKED_AT: Final = 4  # after each attempt; the others get their turn after the next ones


@dataclass(slots=True, frozen=True)
class Gate:
    """What stands in the way of an attempt."""

    name: str  # an endpoint or an origin
    probe_at: float | None = None  # its breaker is open until then; None: its share is used up


class Endpoints:
    """All that the messages of one pool go to. Breakers are shared with the other pools."""

    def __init__(self, breakers: Breakers, endpoint_of: Callable[[str], str], origin_of: Callable[[str], str]) -> None:
        self._breakers = breakers
        self._endpoint_of = endpoint_of
        self._origin_of = origin_of
        self._origins = SlotShares()
        self._endpoints = SlotShares()
        self._probes: list[tuple[float, str]] = []  # when to let somebody try whatever waits at a gate
        self._due: dict[str, float] = {}  # the earliest of them, by gate

    def admit(self, target: str, slots: int, now: float) -> Gate | None:
        """None: the attempt may start, and counts until `end`. Otherwise: what stands in its way."""
        endpoint, origin = self._endpoint_of(target), self._origin_of(target)
        share = self._origins.limit(origin, slots, now)
        # One more than its share for a path that has nothing yet, if that leaves a slot to other hosts.
        spare = self._endpoints.in_flight(endpoint) == 0 and self._origins.all_in_flight + 1 < slots
        if self._origins.in_flight(origin) >= max(share, 1) + spare:
            return Gate(origin)
        if not self._endpoints.may_start(endpoint, slots, now):
            return Gate(endpoint)
        probe_at = self._breakers.get(endpoint).admit(now)
        if probe_at is not None:
            return Gate(endpoint, probe_at)
        self._origins.start(origin, now)
        self._endpoints.start(endpoint, now)
        return None

    def timeout_s(self, target: str) -> float | None:
        """The deadline of an attempt that was just admitted where it has to be short; None: the usual one."""
        endpoint = self._endpoint_of(target)
        limits = (
            self._breakers.get(endpoint).timeout_s,
            self._endpoints.timeout_s(endpoint),
            self._origins.timeout_s(self._origin_of(target)),
        )
        return min((limit for limit in limits if limit is not None), default=None)

    def end(self, target: str, began: float, now: float, outcome: Outcome | None) -> None:
        """An attempt ended; None: it was cut off, which tells nothing about its endpoint."""
        endpoint, origin = self._endpoint_of(target), self._origin_of(target)
        breaker, hung = self._breakers.get(endpoint), None
        if outcome is None:
            breaker.withdraw(began)
        else:
            breaker.record(outcome.trips_breaker, now, began)
            no_connection = outcome.result is Result.ERROR_CONNECTION and now - began >= HANGS_S
            hung = outcome.error is ErrorKind.TIMEOUT or no_connection
        self._origins.end(origin, now, began, hung)
        self._endpoints.end(endpoint, now, began, hung)

    # Gates

    def try_later(self, gate: Gate, now: float) -> None:
        """A group waits at a gate: remember when to try, whatever happens or does not happen until then."""
        due_at = now + LOOK_AGAIN_S if gate.probe_at is None else gate.probe_at
        if due_at < self._due.get(gate.name, inf):
            self._due[gate.name] = due_at
            heappush(self._probes, (due_at, gate.name))

    def next_probe_at(self) -> float | None:
        return self._probes[0][0] if self._probes else None

    def due_probes(self, now: float) -> Iterator[tuple[str, int]]:
        """Gates whose time has come, and how many groups may go there."""
        while self._probes and self._probes[0][0] <= now:
            due_at, name = heappop(self._probes)
            if self._due.get(name) == due_at:
                del self._due[name]
                yield name, SUCCESSES_TO_CLOSE

    def openings(self, target: str, gates: Iterable[str], slots: int, now: float) -> Iterator[tuple[str, int]]:
        """After an attempt ended: gates that groups wait at, and how many of them may go."""
        some = islice(gates, GATES_LOOKED_AT)
        for name in dict.fromkeys([self._endpoint_of(target), self._origin_of(target), *some]):
            shares = self._origins if name in self._origins else self._endpoints
            groups = shares.limit(name, slots, now) - shares.in_flight(name)
            breaker = self._breakers.find(name)
            if breaker is not None and breaker.state is not BreakerState.CLOSED:
                # An open one is tried again when its time comes.
                groups = 0 if breaker.state is BreakerState.OPEN else min(groups, SUCCESSES_TO_CLOSE)
            if groups > 0:
                yield name, groups

    def explain(self, gate: str, slots: int) -> tuple[str, float | None]:
        """What a group at a gate waits for, and until when, if that is known."""
        breaker = self._breakers.find(gate)
        if breaker is not None and breaker.state is not BreakerState.CLOSED:
            return "circuit breaker of its endpoint is open", self._due.get(gate)
        used = max(self._origins.in_flight(gate), self._endpoints.in_flight(gate))
        return f"a slot for {gate}, which has its share: {used} of {slots}", None
