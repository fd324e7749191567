"""A clock for tests that need no virtual loop."""


class SetClock:
    """Stands still at the time it was set to."""

    def __init__(self) -> None:
        self.now = 1_000_000.0

    def wall(self) -> float:
        return self.now

    def monotonic(self) -> float:
        return self.now


class SteppedClock:
    """A machine's clock: time passes, and somebody sets the wall clock now and then."""

    def __init__(self) -> None:
        self._monotonic = 50.0
        self._wall = 1_800_000_000.0

    def wall(self) -> float:
        return self._wall

    def monotonic(self) -> float:
        return self._monotonic

    def pass_(self, seconds: float) -> None:
        self._monotonic += seconds
        self._wall += seconds

    def step(self, seconds: float) -> None:
        """Set the wall clock."""
        self._wall += seconds

    def start_again(self, step_s: float) -> None:
        """The machine was off for a minute and comes back with another time."""
        self._monotonic = 5.0
        self._wall += 60.0 + step_s
