"""The SlidingWindow against a list of every start there ever was."""

from math import inf, nextafter

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from flowcatalyst.router.rate import WINDOW_S, SlidingWindow


class RateMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.limit: int | None = 4
        self.window = SlidingWindow(self.limit)
        self.now = 1000.1
        self.starts: list[float] = []

    @rule(seconds=st.sampled_from([0.0, 1e-6, 0.3, 1.0, 7.0, 29.9, 60.0]) | st.floats(0, 15))
    def let_time_pass(self, seconds: float) -> None:
        self.now += seconds

    @rule()
    def wait_for_the_next_permit(self) -> None:
        self.now = self.window.next_permit_at(self.now)
        assert self.window.available(self.now) != 0

    @rule()
    def wait_until_just_before_the_next_permit(self) -> None:
        permit_at = self.window.next_permit_at(self.now)
        just_before = nextafter(permit_at, -inf)
        if just_before > self.now:
            self.now = just_before
            assert self.window.available(self.now) == 0
            assert self.window.next_permit_at(self.now) == permit_at

    # No limit, no need to start: what starts made without a limit mean for a later one is a test of its own.
    @precondition(lambda self: self.limit is not None)
    @rule(wanted=st.integers(1, 4))
    def start(self, wanted: int) -> None:
        for _ in range(wanted):
            if self.window.next_permit_at(self.now) > self.now:
                break
            self.window.take(self.now)
            self.starts.append(self.now)
            assert self.limit is not None
            assert self.in_window <= self.limit

    @rule(limit=st.sampled_from([None, 1, 2, 3, 4, 5, 6]))
    def change(self, limit: int | None) -> None:
        self.limit = limit
        self.window.change(limit)

    @invariant()
    def permits_left_are_the_limit_less_the_starts_in_the_window(self) -> None:
        if self.limit is None:
            assert self.window.available(self.now) is None
            assert self.window.next_permit_at(self.now) == self.now
        else:
            assert self.window.available(self.now) == max(0, self.limit - self.in_window)

    @invariant()
    def next_permit_comes_when_enough_starts_have_left_the_window(self) -> None:
        if self.limit is not None:
            ends = sorted((start + WINDOW_S for start in self.starts), reverse=True)
            due = ends[self.limit - 1] if len(ends) >= self.limit else -inf
            assert self.window.next_permit_at(self.now) == max(self.now, due)

    @property
    def in_window(self) -> int:
        return sum(start + WINDOW_S > self.now for start in self.starts)

    def teardown(self) -> None:
        """Given time, nothing of the past is left, in the count or in memory."""
        self.window.change(3)
        assert self.window.available(self.now + WINDOW_S) == 3
        assert repr(self.window) == "<SlidingWindow 0/3>"


TestRate = RateMachine.TestCase
TestRate.settings = settings(max_examples=2 * settings().max_examples, stateful_step_count=50, deadline=None)
