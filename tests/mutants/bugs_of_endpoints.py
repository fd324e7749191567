"""Bugs in what stands between a pool and its endpoints: breakers, probes and shares of the slots."""

from dataclasses import replace
from typing import Any, Final

from flowcatalyst.core import targets
from flowcatalyst.core.message import Delivery
from flowcatalyst.http import interpret as answers
from flowcatalyst.router import shares
from flowcatalyst.router.admission import Admission
from flowcatalyst.router.breaker import OPEN_S, SUCCESSES_TO_CLOSE, Breaker, Breakers, BreakerState
from flowcatalyst.router.endpoints import Endpoints, Gate
from flowcatalyst.router.group import FailureScope
from flowcatalyst.router.limits import PoolLimits
from flowcatalyst.router.pool import Pool
from flowcatalyst.router.shares import Share, SlotShares
from tests.mutants.mutant import Bugs, instead_of

BUGS: Final = Bugs()


# Breakers


@BUGS.add("all endpoints share one breaker")
def _() -> None:
    @instead_of(Breakers, "get")
    def get(original: Any, self: Any, endpoint: str) -> Any:
        return original(self, "all")

    @instead_of(Breakers, "find")
    def find(original: Any, self: Any, endpoint: str) -> Any:
        return original(self, "all")


@BUGS.add("a breaker never closes again")
def _() -> None:
    @instead_of(Breaker, "record")
    def record(original: Any, self: Any, *args: Any) -> None:
        before = self.state
        original(self, *args)
        if before is BreakerState.HALF_OPEN and self.state is BreakerState.CLOSED:
            self.state, self._successes = before, SUCCESSES_TO_CLOSE


@BUGS.add("a call that an open breaker refuses keeps it open longer")
def _() -> None:
    @instead_of(Breaker, "admit")
    def admit(original: Any, self: Any, now: float) -> Any:
        again_at = original(self, now)
        if again_at is not None and self.state is BreakerState.OPEN:
            self.opened_at = now
            return now + OPEN_S
        return again_at


@BUGS.add("an open breaker gives messages back to a queue that does not keep order")
def _() -> None:
    @instead_of(Pool, "_wait_at")
    def wait_at(original: Any, self: Any, gate: Gate, delivery: Delivery, now: float) -> None:
        if gate.probe_at is None:
            original(self, gate, delivery, now)
        else:
            self._requeue(delivery, 30.0, FailureScope.GROUP if delivery.ordered else None)


@BUGS.add("a pool that is full of what waits at gates lets nothing of it go")
def _() -> None:
    @instead_of(Admission, "shed")
    def shed(original: Any, self: Any, limits: PoolLimits) -> int:
        return 0


@BUGS.add("what leaves a full pool from a gate lets its followers pass")
def _() -> None:
    @instead_of(Pool, "_wait_at")
    def wait_at(original: Any, self: Any, gate: Gate, delivery: Delivery, now: float) -> None:
        if self._leaving > 0:
            self._requeue(delivery, 30.0, None)
        else:
            original(self, gate, delivery, now)


@BUGS.add("a probe may hang as long as any attempt")
def _() -> None:
    @instead_of(Breaker, "timeout_s")
    def timeout_s(original: Any, self: Any) -> None:
        return None


@BUGS.add("a probe that hung leaves no place for the next ones")
def _() -> None:
    @instead_of(Breaker, "record")
    def record(original: Any, self: Any, failed: bool, now: float, admitted_at: float) -> None:
        if failed and self.state is BreakerState.HALF_OPEN and now - admitted_at > 1.0:
            return  # nobody told the breaker
        original(self, failed, now, admitted_at)


@BUGS.add(
    "the short deadline of a probe never grows",
    test="tests/unit/breaker_test.py::TestDeadlineOfProbes",
)
def _() -> None:
    @instead_of(shares, "probe_timeout_s")
    def probe_timeout_s(original: Any, slowest_s: float, failed: int) -> float:
        return float(original(slowest_s, 0))


@BUGS.add(
    "an open breaker is forgotten to make room for others",
    test="tests/unit/breaker_test.py::TestBoundOfBreakers",
)
def _() -> None:
    @instead_of(Breaker, "at_rest")
    def at_rest(original: Any, self: Any) -> bool:
        return True


@BUGS.add("breakers have no bound", test="tests/unit/breaker_test.py::TestBoundOfBreakers")
def _() -> None:
    @instead_of(Breakers, "get")
    def get(original: Any, self: Any, endpoint: str) -> Breaker:
        self._most = len(self) + 1
        breaker: Breaker = original(self, endpoint)
        return breaker


@BUGS.add("groups at the gate of an open breaker are not called when its probe is due")
def _() -> None:
    @instead_of(Endpoints, "due_probes")
    def due_probes(original: Any, self: Any, now: float) -> Any:
        list(original(self, now))
        return []


@BUGS.add(
    "a gateway that finds nobody does not count for the breaker",
    test="tests/unit/interpret_test.py::TestResponses",
)
def _() -> None:
    @instead_of(answers, "interpret")
    def interpret(original: Any, *args: Any) -> Any:
        return replace(original(*args), trips_breaker=False)


# Shares


@BUGS.add(
    "one endpoint may take all slots of its pool",
    test="tests/integration/admission_test.py::test_a_hanging_endpoint_leaves_slots_to_the_others",
)
def _() -> None:
    @instead_of(SlotShares, "limit")
    def limit(original: Any, self: Any, share: Any, slots: int, *_: Any) -> int:
        return slots


@BUGS.add("a host may take all slots of its pool with many paths")
def _() -> None:
    @instead_of(targets, "origin_of")
    def origin_of(original: Any, url: str) -> str:
        return targets.endpoint_of(url)


@BUGS.add(
    "an endpoint that times out again and again keeps its share",
    test="tests/unit/shares_test.py::TestSilent",
)
def _() -> None:
    @instead_of(Share, "hung")
    def hung(original: Any, self: Any, *_: Any) -> None:
        pass


@BUGS.add(
    "an endpoint whose share hangs is not asked whether it is well again",
    test="tests/unit/endpoints_test.py::TestSilence",
)
def _() -> None:
    @instead_of(Share, "may_be_well_again")
    def may_be_well_again(original: Any, self: Any, now: float) -> bool:
        return False


@BUGS.add("an answer does not give back the slot of its share")
def _() -> None:
    @instead_of(Endpoints, "end")
    def end(original: Any, self: Any, target: str, *args: Any) -> None:
        original(self, target, *args)
        self._destinations[target].origin.in_flight += 1


@BUGS.add("a share that is used up never opens its gate again")
def _() -> None:
    @instead_of(Endpoints, "openings")
    def openings(original: Any, self: Any, *_: Any) -> Any:
        return []

    @instead_of(Endpoints, "try_later")
    def try_later(original: Any, self: Any, gate: Gate, now: float) -> None:
        if gate.probe_at is not None:
            original(self, gate, now)


@BUGS.add(
    "only the gate of the endpoint that answered opens",
    test="tests/unit/endpoints_test.py::TestOpenings",
)
def _() -> None:
    @instead_of(Endpoints, "openings")
    def openings(original: Any, self: Any, target: str, gates: Any, *more: Any) -> Any:
        return original(self, target, (), *more)
