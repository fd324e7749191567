"""What pools can take, as a test sets it."""

from collections.abc import Callable

from flowcatalyst.queues.contract import FreeCapacity


class SetDemand:
    """Room as it was set; `grow` sets it and tells those who want to know."""

    def __init__(self, others: int = 0, **pools: int) -> None:
        self.now = FreeCapacity(pools, others)
        self.listeners: list[Callable[[], None]] = []
        self.asked = 0

    def free_capacity(self) -> FreeCapacity:
        self.asked += 1
        return self.now

    def on_growth(self, look_again: Callable[[], None]) -> Callable[[], None]:
        self.listeners.append(look_again)
        return lambda: self.listeners.remove(look_again)

    def grow(self, others: int = 0, **pools: int) -> None:
        self.now = FreeCapacity(pools, others)
        for look_again in self.listeners:
            look_again()
