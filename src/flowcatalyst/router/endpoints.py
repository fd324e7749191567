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

from flowcatalyst.core.message import SUCCESS, ErrorKind, Outcome, Result
from flowcatalyst.router.breaker import CLOSED, SUCCESSES_TO_CLOSE, Breaker, Breakers, BreakerState
from flowcatalyst.router.cause import Cause
from flowcatalyst.router.pauses import is_for_people
from flowcatalyst.router.shares import ANSWERS_COUNT_S, LATEST, SLOW_S, Share, SlotShares

HANGS_S: Final = 5.0  # an attempt that got no connection for so long kept its slot like one that timed out
ASKS_FOR_S: Final = 60.0  # deadline of an attempt beyond the share of its endpoint, which may go on hanging
LOOK_AGAIN_S: Final = 5.0  # the net: what should open a gate may itself have been lost
MOST_DESTINATIONS: Final = 1000
GATES_LOOKED_AT: Final = 4  # after each attempt; the others get their turn after the next ones


@dataclass(slots=True, frozen=True)
class Gate:
    """What stands in the way of an attempt."""

    name: str  # an endpoint or an origin
    probe_at: float | None = None  # its breaker is open until then; None: its share is used up
    for_people: bool = False  # somebody paused its endpoint or holds its group

    @property
    def for_long(self) -> bool:
        """Not only until a slot is free."""
        return self.for_people or self.probe_at is not None


class _Destination:
    """Where a target leads: found once, since each message asks several times."""

    __slots__ = ("breaker", "endpoint", "origin")

    def __init__(self, endpoint: Share, origin: Share, breaker: Breaker) -> None:
        self.endpoint = endpoint
        self.origin = origin
        self.breaker = breaker


class Endpoints:
    """All that the messages of one pool go to. Breakers are shared with the other pools."""

    def __init__(self, breakers: Breakers, endpoint_of: Callable[[str], str], origin_of: Callable[[str], str]) -> None:
        self._breakers = breakers
        self._endpoint_of = endpoint_of
        self._origin_of = origin_of
        self._destinations: dict[str, _Destination] = {}  # by target
        self._in_flight = 0
        self._asks = False  # what was admitted last only finds out whether its endpoint answers again
        self._is_only_one = False  # all targets so far lead to one endpoint, which may have all slots
        self._origins = SlotShares(on_forget=self._destinations.clear)
        self._endpoints = SlotShares(on_forget=self._destinations.clear)
        self._probes: list[tuple[float, str]] = []  # when to let somebody try whatever waits at a gate
        self._due: dict[str, float] = {}  # the earliest of them, by gate

    def admit(self, target: str, slots: int, now: float) -> Gate | None:
        """None: the attempt may start, and counts until `end`. Otherwise: what stands in its way."""
        to = self._destinations.get(target) or self._look_up(target, now)
        endpoint, origin, asks = to.endpoint, to.origin, False
        if origin.in_flight and (
            not self._is_only_one or origin.timeouts or now - origin.answered_at > ANSWERS_COUNT_S
        ):
            # The path first: one that hangs waits for itself, not among those who could go if its host had a slot.
            if endpoint.in_flight and endpoint.in_flight >= self._endpoints.limit(
                endpoint, slots, self._in_flight, now
            ):
                asks = self._may_ask(endpoint, slots, now)
                if not asks:
                    return Gate(endpoint.name)
            limit = self._origins.limit(origin, slots, self._in_flight, now)
            if origin.in_flight >= limit and (
                endpoint.in_flight or origin.in_flight >= self._stretched(origin, limit, slots)
            ):
                asks = self._may_ask(origin, slots, now)
                if not asks:
                    return Gate(origin.name)
        to.breaker = breaker = self._breakers.get(endpoint.name)
        probe_at = breaker.admit(now)
        if probe_at is not None:
            return Gate(endpoint.name, probe_at)
        if not endpoint.in_flight:
            endpoint.busy_from = now
        if not origin.in_flight:
            origin.busy_from = now
        self._in_flight += 1
        endpoint.in_flight += 1
        origin.in_flight += 1
        endpoint.used_at = origin.used_at = now
        self._asks = asks
        return None

    def _may_ask(self, share: Share, slots: int, now: float) -> bool:
        """Whether one whose share is used up may find out if it answers again; the last slot is for others."""
        return self._in_flight + 1 < slots and share.may_be_well_again(now)

    def _stretched(self, origin: Share, limit: int, slots: int) -> int:
        """How many attempts an origin may have for the sake of a path that has none yet: the others may be what hangs.

        Half of what its share leaves free, so that other hosts find slots, unless it timed out itself; and one, if that
        leaves a slot to other hosts, which may come any time.
        """
        half = 0 if origin.timeouts else (slots - self._in_flight + origin.in_flight - limit) // 2
        return limit + max(half, self._in_flight + 1 < slots)

    def timeout_s(self, target: str, now: float) -> float | None:
        """The deadline of an attempt that was just admitted where it has to be short; None: the usual one."""
        to = self._destinations.get(target) or self._look_up(target, now)
        if to.endpoint.calm and to.origin.calm and to.breaker.state is CLOSED and not self._asks:
            return None
        asks_s = max(ASKS_FOR_S, 2 * to.endpoint.slowest_s, 2 * to.origin.slowest_s) if self._asks else None
        limits = (to.breaker.timeout_s, to.endpoint.timeout_s, to.origin.timeout_s, asks_s)
        return min((limit for limit in limits if limit is not None), default=None)

    def end(self, target: str, began: float, now: float, outcome: Outcome | None) -> None:
        """An attempt ended; None: it was cut off, which tells nothing about its endpoint."""
        to = self._destinations.get(target) or self._look_up(target, now)
        endpoint, origin = to.endpoint, to.origin
        self._in_flight -= 1
        endpoint.in_flight -= 1
        origin.in_flight -= 1
        if outcome is None:
            to.breaker.release(began)
            return
        breaker, took_s = to.breaker, now - began
        if outcome.result is SUCCESS:
            endpoint.took_s[endpoint.delivered % LATEST] = took_s
            endpoint.delivered += 1
        else:
            endpoint.failed += 1
        if (
            breaker.calm and endpoint.calm and origin.calm and took_s <= SLOW_S and outcome.result is SUCCESS
        ):  # as nearly always
            breaker.used_at = endpoint.answered_at = origin.answered_at = now
            breaker.under_way -= breaker.under_way > 0
            return
        breaker.record(outcome.trips_breaker, now, began)
        if outcome.retryable:
            breaker.note_failure(now, outcome.detail)
        elif breaker.failing is not None and breaker.state is BreakerState.CLOSED:
            breaker.failing = None
        no_connection = outcome.result is Result.ERROR_CONNECTION and took_s >= HANGS_S
        if no_connection or outcome.error is ErrorKind.TIMEOUT:
            endpoint.hung(now, began)
            origin.hung(now, began)
        elif took_s > SLOW_S or not origin.calm or not endpoint.calm:
            endpoint.answered(now, took_s)
            origin.answered(now, took_s)
        else:
            endpoint.answered_at = origin.answered_at = now

    def shares(self, slots: int, now: float) -> Iterator[tuple[Share, int]]:
        """What is known of each endpoint, and how many of the slots it may have now."""
        for share in self._endpoints:
            yield share, self._endpoints.limit(share, slots, self._in_flight, now)

    def name_of(self, target: str) -> str:
        """The endpoint that a target leads to."""
        return self._endpoint_of(target)

    def hangs(self, target: str, began: float, limit_s: float, now: float) -> bool:
        """Whether an attempt under way got no answer for longer than the limit, nor did a later one meanwhile. An
        endpoint that is known to be slow has twice its time.
        """
        share = self._endpoints.find(self._endpoint_of(target))
        if share is None:
            return now - began > limit_s
        return share.answered_at < began and now - began > max(limit_s, 2 * share.slowest_s)

    def _look_up(self, target: str, now: float) -> _Destination:
        endpoint = self._endpoints.of(self._endpoint_of(target), now)
        origin = self._origins.of(self._origin_of(target), now)
        if len(self._destinations) >= MOST_DESTINATIONS:
            self._destinations.clear()
        found = self._destinations[target] = _Destination(endpoint, origin, self._breakers.get(endpoint.name))
        self._is_only_one = len(self._origins) == len(self._endpoints) == 1
        return found

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
            if is_for_people(name):
                continue
            shares = self._origins if self._origins.find(name) else self._endpoints
            share = shares.find(name)
            groups = 1
            if share is not None:
                limit = shares.limit(share, slots, self._in_flight, now)
                stretched = shares is self._origins and share.in_flight < self._stretched(share, limit, slots)
                groups = max(limit - share.in_flight, stretched)
            breaker = self._breakers.find(name)
            if breaker is not None and breaker.state is not BreakerState.CLOSED:
                # An open one is tried again when its time comes.
                groups = 0 if breaker.state is BreakerState.OPEN else min(groups, SUCCESSES_TO_CLOSE)
            if groups > 0:
                yield name, groups

    def explain(self, gate: str, slots: int) -> tuple[str, float | None, Cause]:
        """What a group at a gate waits for, and until when, if that is known."""
        breaker = self._breakers.find(gate)
        if breaker is not None and breaker.state is not BreakerState.CLOSED:
            if breaker.state is BreakerState.HALF_OPEN:
                what = "its endpoint, whose circuit breaker waits for the answers to a few probes"
                return what, self._due.get(gate), Cause.BREAKER
            return "its endpoint, whose circuit breaker is open", self._due.get(gate), Cause.BREAKER
        share = self._origins.find(gate) or self._endpoints.find(gate)
        used = share.in_flight if share is not None else 0
        return f"a slot for {gate}, which has its share: {used} of {slots}", None, Cause.ENDPOINT_SHARE
