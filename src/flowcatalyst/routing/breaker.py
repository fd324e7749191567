"""Circuit breakers, one per endpoint, with the numbers of 002. Pure: time comes in as an argument."""

from collections import OrderedDict, deque
from enum import StrEnum

WINDOW_CALLS = 10
FAILURE_RATIO = 0.5
OPEN_S = 5.0
SUCCESSES_TO_CLOSE = 3
IDLE_EVICTION_S = 3600.0


class BreakerState(StrEnum):
    CLOSED = "CLOSED"
    OPEN = "OPEN"
    HALF_OPEN = "HALF_OPEN"


class Breaker:
    """Opens when half of the last ten calls failed; after 5 s lets probes through; three successes close it."""

    __slots__ = (
        "_calls",
        "_failures",
        "_half_open_at",
        "_probes",
        "_successes",
        "opened_at",
        "ratio_at_opening",
        "rejected",
        "state",
        "used_at",
    )

    def __init__(self) -> None:
        self.state = BreakerState.CLOSED
        self.opened_at = 0.0
        self.ratio_at_opening = 0.0
        self.used_at = 0.0
        self.rejected = 0
        self._calls: deque[bool] = deque()
        self._failures = 0
        self._half_open_at = 0.0
        self._probes = 0  # in flight while half open
        self._successes = 0

    def __repr__(self) -> str:
        return f"<Breaker {self.state} {self._failures}/{len(self._calls)} failed>"

    @property
    def failure_ratio(self) -> float:
        return self._failures / len(self._calls) if self._calls else 0.0

    def admit(self, now: float) -> float | None:
        """None: the call may go, and its end must be reported. Otherwise: when to ask again."""
        self.used_at = now
        if self.state is BreakerState.CLOSED:
            return None
        if self.state is BreakerState.OPEN:
            if now < self.opened_at + OPEN_S:
                self.rejected += 1
                return self.opened_at + OPEN_S
            self._half_open(now)
        if self._probes + self._successes < SUCCESSES_TO_CLOSE:
            self._probes += 1
            return None
        self.rejected += 1
        return now + OPEN_S  # all probes are under way; their end decides

    def record(self, failed: bool, now: float, admitted_at: float) -> None:
        """Report how a call ended that was admitted at that time. Those of before the opening decide nothing now."""
        self.used_at = now
        if self.state is BreakerState.CLOSED:
            self._count(failed)
            if self._failures and len(self._calls) == WINDOW_CALLS and self.failure_ratio >= FAILURE_RATIO:
                self._open(now)
        elif self._is_probe(admitted_at):
            self._probes -= 1
            if failed:
                self._open(now)
            else:
                self._successes += 1
                if self._successes >= SUCCESSES_TO_CLOSE:
                    self.reset()

    def withdraw(self, admitted_at: float) -> None:
        """A call admitted at that time ended without telling anything about the endpoint."""
        if self._is_probe(admitted_at):
            self._probes -= 1

    def reset(self) -> None:
        self.state = BreakerState.CLOSED
        self._calls.clear()
        self._failures = self._probes = self._successes = 0

    def _is_probe(self, admitted_at: float) -> bool:
        return self.state is BreakerState.HALF_OPEN and admitted_at >= self._half_open_at and self._probes > 0

    def _count(self, failed: bool) -> None:
        self._calls.append(failed)
        self._failures += failed
        if len(self._calls) > WINDOW_CALLS:
            self._failures -= self._calls.popleft()

    def _open(self, now: float) -> None:
        ratio = self.failure_ratio or 1.0
        self.reset()
        self.ratio_at_opening = ratio
        self.state = BreakerState.OPEN
        self.opened_at = now

    def _half_open(self, now: float) -> None:
        self.state = BreakerState.HALF_OPEN
        self._half_open_at = now
        self._probes = self._successes = 0


class Breakers:
    """The breakers of a router, by endpoint. One that nobody used for an hour is forgotten."""

    def __init__(self) -> None:
        self._by_endpoint: OrderedDict[str, Breaker] = OrderedDict()

    def __len__(self) -> int:
        return len(self._by_endpoint)

    def get(self, endpoint: str) -> Breaker:
        breaker = self._by_endpoint.get(endpoint)
        if breaker is None:
            breaker = self._by_endpoint[endpoint] = Breaker()
        return breaker

    def items(self) -> list[tuple[str, Breaker]]:
        return list(self._by_endpoint.items())

    def evict_idle(self, now: float) -> None:
        for endpoint, breaker in self.items():
            if breaker.used_at + IDLE_EVICTION_S <= now:
                del self._by_endpoint[endpoint]
