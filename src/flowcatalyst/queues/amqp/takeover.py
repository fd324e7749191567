"""Why what ActiveMQ Classic shows again has to be put in order, and how.

Classic keeps what receivers left behind in a list of its own. A receiver takes from its front; what that one leaves
behind in turn goes to the end. So one that takes 10 of 30 and goes makes 11 to 30 come before 1 to 10 (on by default;
`strictOrderDispatch` cures it for a single receiver only).

The list is the right order, turned. Each message counts how often it was shown, and those at the front of the right
order were shown most often. So we fetch the whole list before we hand out anything of it, and sort by that count. The
list is over when a message comes that was never shown, since those come after it, or when nothing comes for a while.
"""

import math
from typing import Final

QUIET_S: Final = 0.5
CREDIT: Final = 200


class Takeover:
    """Whether we are fetching what somebody left behind. Times are the loop's."""

    def __init__(self) -> None:
        self._until = 0.0

    def note(self, was_shown_before: bool, now: float) -> None:
        """A message has come."""
        self._until = now + QUIET_S if was_shown_before else 0.0

    def is_under_way(self, now: float) -> bool:
        return now < self._until

    def credit(self, now: float) -> int:
        """How many messages the broker should be allowed to send for it, whatever the router has room for."""
        return CREDIT if self.is_under_way(now) else 0

    def left_s(self, now: float) -> float:
        return self._until - now if self.is_under_way(now) else math.inf
