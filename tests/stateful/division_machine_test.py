"""Processes that come, go, sleep, are cut off and die: together they keep to every limit, and use all of it in the end.

The store is a dictionary here. What a process knows of it may be old, what it says may arrive without its answer, and
what it writes may come late. Time goes on in steps.
"""

from collections import deque
from typing import Final

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from flowcatalyst.queues.division import Division, Membership, Thing, next_division
from flowcatalyst.queues.postgres.owners import LAPSE_S, RENEW_EVERY_S, OwnerWatch, Session
from flowcatalyst.router.division import permits_of, share_of, slots_of
from flowcatalyst.router.limits import PoolLimits, PoolShare
from flowcatalyst.router.process_share import STARTS_COUNT_S
from flowcatalyst.router.rate import WINDOW_S
from tests.support.divisions import Divisions

MOST_PROCESSES: Final = 5
pools = st.dictionaries(
    st.sampled_from(["A", "B", "C"]),
    st.builds(PoolLimits, st.integers(1, 7), st.none() | st.integers(1, 9)),
    min_size=1,
)


class Process:
    """One process: its session, what it takes for its share, and what it has started."""

    def __init__(self, store: Divisions, now: float, limits: dict[str, PoolLimits]) -> None:
        self.store, self.limits = store, limits
        self.slots, self.permits, self.watch = Membership(), Membership(STARTS_COUNT_S), OwnerWatch()
        self.in_flight = dict.fromkeys(limits, 0)
        self.starts: dict[str, deque[float]] = {code: deque() for code in limits}
        self.asleep = self.cut_off = False
        self.unwritten: list[tuple[Thing, Division, Division]] = []
        self.session = Session(store.register(), now)

    def share(self, code: str) -> PoolShare:
        return share_of(code, self.limits[code], self.slots, self.permits)

    def lapse(self, now: float) -> None:
        """What happens by its own clock, as soon as it is awake."""
        if not self.asleep and self.slots.owner and not self.session.is_alive(now):
            self.slots.reset()
            self.permits.reset()
            self.in_flight = dict.fromkeys(self.limits, 0)  # cut off

    def renew(self, now: float, *, answered: bool = True, writes: bool = True) -> None:
        """With an answer that is lost nothing is learned. A session that lapsed is followed by a new one."""
        if not self.session.is_alive(now):
            self.lapse(now)
            self.session = Session(self.store.register(), now)
        owner = self.session.owner
        standing = self.store.renew(owner, self._keeps_to(owner, now))
        if not answered:
            return
        self.session.ended |= owner not in standing.beats
        self.session.renewed(now, now)
        if not self.session.is_alive(now):
            self.lapse(now)
            return
        self.slots.saw(owner, standing.divisions[Thing.SLOTS], now)
        self.permits.saw(owner, standing.divisions[Thing.PERMITS], now)
        found = {thing: next_division(standing.divisions[thing], standing.keeps_to[thing]) for thing in Thing}
        self.unwritten += [(thing, standing.divisions[thing], new) for thing, new in found.items() if new is not None]
        if writes:
            self.write()
        others = {one: beat for one, beat in standing.beats.items() if one != owner}
        for dead, beat in self.watch.dead_among(others, now).items():
            self.store.forget(dead, beat)

    def write(self) -> None:
        """What it decided to, however long ago."""
        for change in self.unwritten:
            self.store.divide(*change)
        self.unwritten.clear()

    def leave(self) -> None:
        """In order: nothing is in flight any more."""
        self.store.owners.pop(self.session.owner, None)

    def may_start(self, code: str, now: float) -> bool:
        share = self.share(code)
        if self.asleep or not self.session.is_alive(now) or self.in_flight[code] >= share.concurrency:
            return False
        return share.rate_per_minute is None or self._started(code, now) < share.rate_per_minute

    def start(self, code: str, now: float) -> None:
        self.in_flight[code] += 1
        self.starts[code].append(now)

    def _keeps_to(self, owner: int, now: float) -> dict[Thing, int]:
        slots, permits = self.slots.future, self.permits.future
        few_slots = slots is not None and all(
            self.in_flight[code] <= slots_of(code, limits, slots) for code, limits in self.limits.items()
        )
        few_permits = permits is not None and all(
            (most := permits_of(code, limits, permits)) is None or self._started(code, now) <= most
            for code, limits in self.limits.items()
        )
        return {
            Thing.SLOTS: self.slots.keeps_to(owner, uses_no_more=few_slots, now=now),
            Thing.PERMITS: self.permits.keeps_to(owner, uses_no_more=few_permits, now=now),
        }

    def _started(self, code: str, now: float) -> int:
        return sum(at + WINDOW_S > now for at in self.starts[code])


class DivisionMachine(RuleBasedStateMachine):
    """Everybody starts all it may at every moment: greed finds every gap."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1000.0
        self.store = Divisions()
        self.processes: list[Process] = []
        self.starts: dict[str, list[float]] = {}

    @initialize(limits=pools)
    def begin(self, limits: dict[str, PoolLimits]) -> None:
        self.limits = limits
        self.starts = {code: [] for code in limits}
        self.come()

    @precondition(lambda self: len(self.processes) < MOST_PROCESSES)
    @rule()
    def come(self) -> None:
        self.processes.append(Process(self.store, self.now, self.limits))

    @precondition(lambda self: self.processes)
    @rule(which=st.integers(0, 99), answered=st.booleans(), writes=st.booleans())
    def renew(self, which: int, answered: bool, writes: bool) -> None:
        process = self.processes[which % len(self.processes)]
        if not process.asleep and not process.cut_off:
            process.renew(self.now, answered=answered, writes=writes)

    @precondition(lambda self: self.processes)
    @rule(which=st.integers(0, 99))
    def write_late(self, which: int) -> None:
        """A statement of one that sleeps by now may still be on its way."""
        self.processes[which % len(self.processes)].write()

    @precondition(lambda self: self.processes)
    @rule(rounds=st.integers(1, 8), starts=st.booleans(), ends=st.booleans())
    def live_on(self, rounds: int, starts: bool, ends: bool) -> None:
        """All that can renew do, as they do for most of the time."""
        for _ in range(rounds):
            self._pass(RENEW_EVERY_S)
            for process in self.processes:
                if not process.asleep and not process.cut_off:
                    process.in_flight = dict.fromkeys(self.limits, 0) if ends else process.in_flight
                    process.renew(self.now)
        if starts:
            self._start_all()

    @precondition(lambda self: self.processes)
    @rule(which=st.integers(0, 99))
    def sleep_or_wake(self, which: int) -> None:
        """A sleeper's attempts have ended at their endpoints before others start more; it learns that later."""
        process = self.processes[which % len(self.processes)]
        process.asleep = not process.asleep
        process.lapse(self.now)
        self._start_all()

    @precondition(lambda self: self.processes)
    @rule(which=st.integers(0, 99))
    def cut_or_mend(self, which: int) -> None:
        process = self.processes[which % len(self.processes)]
        process.cut_off = not process.cut_off

    @precondition(lambda self: self.processes)
    @rule(which=st.integers(0, 99), clean=st.booleans())
    def go(self, which: int, clean: bool) -> None:
        process = self.processes.pop(which % len(self.processes))
        if clean and not process.cut_off and not process.asleep:
            process.leave()

    @precondition(lambda self: self.processes)
    @rule(which=st.integers(0, 99))
    def end_attempts(self, which: int) -> None:
        process = self.processes[which % len(self.processes)]
        if not process.asleep:
            process.in_flight = dict.fromkeys(self.limits, 0)

    @rule()
    def start(self) -> None:
        self._start_all()

    @rule(seconds=st.sampled_from([0.1, 1.0, 3.0, LAPSE_S - 1.0, LAPSE_S, 30.0]))
    def wait(self, seconds: float) -> None:
        self._pass(seconds)

    def _pass(self, seconds: float) -> None:
        self.now += seconds
        for process in self.processes:
            process.lapse(self.now)

    def _start_all(self) -> None:
        for process in self.processes:
            for code in self.limits:
                while process.may_start(code, self.now) and len(process.starts[code]) < 10_000:
                    process.start(code, self.now)
                    self.starts[code].append(self.now)
                    self._check(code)

    def _check(self, code: str) -> None:
        limits = self.limits[code]
        awake = [one for one in self.processes if not one.asleep or one.session.is_alive(self.now)]
        in_flight = [one.in_flight[code] for one in awake]
        assert sum(in_flight) <= limits.concurrency, f"{code}: {in_flight} of {limits.concurrency}"
        if limits.rate_per_minute is not None:
            recent = [at for at in self.starts[code] if at + WINDOW_S > self.now]
            assert len(recent) <= limits.rate_per_minute, f"{code}: {len(recent)} of {limits.rate_per_minute}"

    @invariant()
    def nobody_exceeds_a_limit(self) -> None:
        for code in self.limits if self.processes else ():
            self._check(code)

    def teardown(self) -> None:
        """Once nothing happens any more all of every limit is given to somebody."""
        if not self.processes:
            return
        for process in self.processes:
            process.asleep = process.cut_off = False
            process.lapse(self.now)
        for _ in range(int(2 * STARTS_COUNT_S / RENEW_EVERY_S) + 40):
            self._pass(RENEW_EVERY_S)
            for process in self.processes:
                process.in_flight = dict.fromkeys(self.limits, 0)
                process.renew(self.now)
        for code, limits in self.limits.items():
            shares = [process.share(code) for process in self.processes]
            assert sum(one.concurrency for one in shares) == limits.concurrency, shares
            permits = [one.rate_per_minute for one in shares]
            assert limits.rate_per_minute in (None, sum(one or 0 for one in permits)), shares


TestDivision = DivisionMachine.TestCase
TestDivision.settings = settings(deadline=None)
