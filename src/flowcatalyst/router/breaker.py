"""Circuit breakers, one per endpoint. Pure: time comes in as an argument."""

from collections import OrderedDict, deque
from enum import StrEnum

from flowcatalyst.router.shares import SLOW_S, probe_timeout_s, slowest

WINDOW_CALLS = 10
FAILURE_RATIO = 0.5
OPEN_S = 5.0
PROBING_S = 1.0  # after which one who is not told how the probes end looks again
SUCCESSES_TO_CLOSE = 3
IDLE_EVICTION_S = 3600.0
MAX_BREAKERS = 10_000


class BreakerState(StrEnum):
    CLOSED = "CLOSED"
    OPEN = "OPEN"
    HALF_OPEN = "HALF_OPEN"


CLOSED = BreakerState.CLOSED  # asked for before each attempt: an enum takes its time to find a member


class Failing:
    """A row of attempts that failed, whether they trip the breaker or not."""

    __slots__ = ("detail", "last_at", "since")

    def __init__(self, since: float) -> None:
        self.since = since
        self.last_at = since
        self.detail = ""  # what the latest of them got


class Breaker:
    """Opens when half of the last ten calls failed; after 5 s lets probes through; three successes close it."""

    __slots__ = (
        "_calls",
        "_failures",
        "_half_open_at",
        "_hung_rounds",
        "_probes",
        "_slowest_s",
        "_successes",
        "calm",
        "failing",
        "opened_at",
        "ratio_at_opening",
        "rejected",
        "state",
        "under_way",
        "used_at",
    )

    def __init__(self) -> None:
        self.state = BreakerState.CLOSED
        self.calm = False  # closed, and one more call that goes well and soon changes nothing
        self.failing: Failing | None = None  # since the latest answer, or since before it opened
        self.opened_at = 0.0
        self.ratio_at_opening = 0.0
        self.used_at = 0.0
        self.rejected = 0
        self.under_way = 0  # admitted calls whose end was not reported yet
        self._calls: deque[bool] = deque()
        self._failures = 0
        self._half_open_at = 0.0
        self._probes = 0  # in flight while half open
        self._hung_rounds = 0  # in which a probe ran out of its time, in a row
        self._slowest_s = 0.0  # of the calls whose answer took long, slowly forgotten
        self._successes = 0

    def __repr__(self) -> str:
        return f"<Breaker {self.state} {self._failures}/{len(self._calls)} failed>"

    @property
    def failure_ratio(self) -> float:
        return self._failures / len(self._calls) if self._calls else 0.0

    def admit(self, now: float) -> float | None:
        """None: the call may go, and its end must be reported. Otherwise: when to ask again."""
        self.used_at = now
        if self.state is CLOSED:
            self.under_way += 1
            return None
        if self.state is BreakerState.OPEN:
            if now < self.opened_at + OPEN_S:
                self.rejected += 1
                return self.opened_at + OPEN_S
            self.state = BreakerState.HALF_OPEN
            self._half_open_at = now
            self._probes = self._successes = 0
        if self._probes + self._successes < SUCCESSES_TO_CLOSE:
            self._probes += 1
            self.under_way += 1
            return None
        self.rejected += 1
        return now + PROBING_S  # all probes are under way, perhaps of another pool; their end decides

    @property
    def timeout_s(self) -> float | None:
        """The deadline of a call that was just admitted where it has to be short: probes that hang stop everybody."""
        if self.state is not BreakerState.HALF_OPEN:
            return None
        return probe_timeout_s(self._slowest_s, self._hung_rounds)

    def record(self, failed: bool, now: float, admitted_at: float) -> None:
        """Report how a call ended that was admitted at that time. Those of before the opening decide nothing now."""
        self.used_at = now
        if (self._slowest_s or now - admitted_at > SLOW_S) and not failed:
            self._slowest_s = slowest(self._slowest_s, now - admitted_at)
        if self.under_way:  # 0: the call was admitted by one that was forgotten since
            self.under_way -= 1
        if self.state is BreakerState.CLOSED:
            if failed or self._failures or len(self._calls) < WINDOW_CALLS:  # else one that went well changes nothing
                self._calls.append(failed)
                self._failures += failed
                if len(self._calls) > WINDOW_CALLS:
                    self._failures -= self._calls.popleft()
            if self._failures and len(self._calls) == WINDOW_CALLS and self.failure_ratio >= FAILURE_RATIO:
                self._open(now)
            self.calm = (
                self.state is BreakerState.CLOSED
                and len(self._calls) == WINDOW_CALLS
                and not (self._failures or self._slowest_s or self.failing)
            )
        elif self._is_probe(admitted_at):
            self._probes -= 1
            if failed:
                # One that was refused at once says nothing about how long an answer takes.
                self._hung_rounds += now - admitted_at >= 0.99 * probe_timeout_s(self._slowest_s, self._hung_rounds)
                self._open(now)
            else:
                self._hung_rounds = 0
                self._successes += 1
                if self._successes >= SUCCESSES_TO_CLOSE:
                    self.reset()

    def note_failure(self, now: float, detail: str) -> None:
        """An attempt failed in a way that may be the endpoint's. Answers end the row, but for those to the probes of
        a breaker that is not closed yet.
        """
        self.calm = False
        if self.failing is None:
            self.failing = Failing(now)
        self.failing.last_at, self.failing.detail = now, detail

    def release(self, admitted_at: float) -> None:
        """A call admitted at that time ended without telling anything about the endpoint."""
        self.under_way = max(0, self.under_way - 1)
        if self._is_probe(admitted_at):
            self._probes -= 1

    def reset(self) -> None:
        self.calm = False
        self.state = BreakerState.CLOSED
        self._calls.clear()
        self._failures = self._probes = self._successes = 0

    @property
    def at_rest(self) -> bool:
        """Closed, and no call is under way: forgotten, it would lose at most the memory of a few failures."""
        return self.state is BreakerState.CLOSED and not self.under_way

    def _is_probe(self, admitted_at: float) -> bool:
        return self.state is BreakerState.HALF_OPEN and admitted_at >= self._half_open_at and self._probes > 0

    def _open(self, now: float) -> None:
        ratio = self.failure_ratio or 1.0
        self.reset()
        self.ratio_at_opening = ratio
        self.state = BreakerState.OPEN
        self.opened_at = now


class Breakers:
    """The breakers of a router, by endpoint. One that nobody used for an hour is forgotten.

    Targets may have an id in their path, so there may be any number of endpoints: beyond `most` breakers the one that
    was not used for longest is forgotten, those at rest first. All costs are O(1) but for the moves that `get` paid.
    """

    def __init__(self, most: int = MAX_BREAKERS) -> None:
        self._most = most
        # Both in the order of their last use. What is used goes to the first; what was found not at rest when one had
        # to go waits in the second, so that it is not looked at again and again.
        self._recent: OrderedDict[str, Breaker] = OrderedDict()
        self._busy: OrderedDict[str, Breaker] = OrderedDict()

    def __len__(self) -> int:
        return len(self._recent) + len(self._busy)

    def get(self, endpoint: str) -> Breaker:
        """The breaker of an endpoint, to be used now."""
        breaker = self._recent.get(endpoint)
        if breaker is not None:
            self._recent.move_to_end(endpoint)
            return breaker
        breaker = self._busy.pop(endpoint, None)
        if breaker is None:
            while len(self) >= self._most:
                if not self._recent:  # all of them are open or have calls under way
                    self._busy.popitem(last=False)
                    continue
                unused_longest, found = self._recent.popitem(last=False)
                if not found.at_rest:
                    self._busy[unused_longest] = found
            breaker = Breaker()
        self._recent[endpoint] = breaker
        return breaker

    def find(self, endpoint: str) -> Breaker | None:
        """The breaker of an endpoint that has been used."""
        return self._recent.get(endpoint) or self._busy.get(endpoint)

    def items(self) -> list[tuple[str, Breaker]]:
        return [*self._recent.items(), *self._busy.items()]

    def evict_idle(self, now: float) -> None:
        for breakers in (self._recent, self._busy):
            while breakers and next(iter(breakers.values())).used_at + IDLE_EVICTION_S <= now:
                breakers.popitem(last=False)
