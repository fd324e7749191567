"""RecentDeliveries: the ids of what was delivered lately, for who asks whether to send it again. Pure, and bounded."""

from collections import OrderedDict
from typing import Final

MOST_REMEMBERED: Final = 50_000


class RecentDeliveries:
    def __init__(self, most: int = MOST_REMEMBERED) -> None:
        self._most = most
        self._at: OrderedDict[str, float] = OrderedDict()  # by application id, monotonic

    def __len__(self) -> int:
        return len(self._at)

    def note(self, app_id: str, now: float) -> None:
        self._at[app_id] = now
        self._at.move_to_end(app_id)
        if len(self._at) > self._most:
            self._at.popitem(last=False)

    def find(self, app_id: str) -> float | None:
        """When it was; None: never, or longer ago than is remembered."""
        return self._at.get(app_id)

    def clear(self) -> None:
        self._at.clear()
