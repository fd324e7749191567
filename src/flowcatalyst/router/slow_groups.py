"""SlowGroups: which groups of a pool have the slowest attempts of late. Pure, and bounded."""

from dataclasses import dataclass
from typing import Final

MOST_WATCHED: Final = 20  # groups of a pool
REMEMBERED: Final = 10  # attempts that the mean is about, as it were: an older one counts for less with each newer one
IDLE_S: Final = 300.0  # without an attempt for so long, a group is no longer one of late


@dataclass(slots=True)
class SlowGroup:
    """A group and how long its attempts took since it is watched."""

    mean_s: float
    last_at: float  # monotonic, when its latest attempt began
    attempts: int = 1


class SlowGroups:
    """Watches a few groups: one whose attempt took longer than the mean of one that is watched takes its place.

    So a group whose attempts all take longer than those of nearly all others is always found, whatever the number of
    groups. Who has an attempt that is neither slower than `least_s` nor of a group in `by_name` need not note it.
    """

    def __init__(self) -> None:
        self.by_name: dict[str | None, SlowGroup] = {}
        self.least_s = 0.0  # what takes no longer is not watched; no more than the least mean

    def note(self, group: str | None, seconds: float, at: float) -> None:
        """An attempt at a message of the group ended that began then."""
        known = self.by_name.get(group)
        if known is not None:
            known.attempts += 1
            known.mean_s += (seconds - known.mean_s) / min(known.attempts, REMEMBERED)
            known.last_at = at
            if known.mean_s < self.least_s:
                self.least_s = known.mean_s
        elif seconds > self.least_s:
            if len(self.by_name) >= MOST_WATCHED:
                del self.by_name[min(self.by_name, key=lambda name: self.by_name[name].mean_s)]
            self.by_name[group] = SlowGroup(seconds, at)
            self._set_least()

    def forget_idle(self, now: float) -> None:
        """Forget groups without an attempt of late; to be called now and then."""
        for name in [name for name, one in self.by_name.items() if one.last_at < now - IDLE_S]:
            del self.by_name[name]
        self._set_least()

    def _set_least(self) -> None:
        is_full = len(self.by_name) >= MOST_WATCHED
        self.least_s = min(one.mean_s for one in self.by_name.values()) if is_full else 0.0
