"""A clock for tests that need no virtual loop."""


class SetClock:
    """Stands still at the time it was set to."""

    def __init__(self) -> None:
        self.now = 1_000_000.0

    def wall(self) -> float:
        return self.now

    def monotonic(self) -> float:
        return self.now
