"""What each request for a job says besides: its place in its group, and its signature. Pure."""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, TypeAlias
from weakref import WeakValueDictionary

from flowcatalyst.core.headers import OUR_PREFIX
from flowcatalyst.core.message import Delivery
from flowcatalyst.core.webhook import ID, SIGNATURE, TIMESTAMP
from flowcatalyst.http.signing import sign

GROUP_SEQ: Final = f"{OUR_PREFIX}Group-Seq"
GROUP_PREV: Final = f"{OUR_PREFIX}Group-Prev"
MOST_REMEMBERED: Final = 100  # positions of a group: more than one lease has

# The secrets that a subscription is signed with at a time, the newest first. Raises `NotSignedError` if they cannot be
# had here; none: it is not signed.
SecretsOf: TypeAlias = Callable[[str, float], Sequence[str]]


def no_secrets(subscription: str, wall: float) -> Sequence[str]:
    """Of a process that has no catalog."""
    return ()


class LeasedGroup:
    """What the jobs of one lease of a group know of each other: which of the group was delivered last."""

    __slots__ = ("__weakref__", "delivered", "in_hand", "ours")

    def __init__(self, delivered: int) -> None:
        self.delivered = delivered  # its position; 0: none was
        self.in_hand = 0  # jobs that are leased here and not settled
        self.ours = deque([delivered], MOST_REMEMBERED)  # what was known here as delivered, the latest last

    def note(self, delivered: int) -> None:
        self.delivered = delivered
        self.ours.append(delivered)


class LeasedGroups:
    """Of all that one process has in hand. A job that left the lane of its group when it failed is leased for itself,
    and tells all the same what was delivered of the group meanwhile."""

    def __init__(self) -> None:
        self._by_name: WeakValueDictionary[str, LeasedGroup] = WeakValueDictionary()

    def of(self, group: str, delivered: int) -> LeasedGroup:
        """For one more job. `delivered` is what the store knows: less than we do while something of the group is in
        hand, but for what others delivered meanwhile."""
        leased = self._by_name.get(group)
        if leased is None or not leased.in_hand:
            leased = self._by_name[group] = LeasedGroup(delivered)
        elif delivered not in leased.ours:
            leased.note(delivered)
        leased.in_hand += 1
        return leased

    def settled(self, deliveries: Sequence[Delivery]) -> None:
        """The store knows of these what we do."""
        for delivery in deliveries:
            if isinstance(delivery.stamp, JobStamp):
                delivery.stamp.settled()


class JobStamp:
    """Of one job in a router's hands. `group` is None if it is ordered with nothing."""

    __slots__ = ("_group", "_is_settled", "_secrets_of", "_subscription")

    def __init__(self, group: LeasedGroup | None, subscription: str | None, secrets_of: SecretsOf) -> None:
        self._group = group
        self._subscription = subscription
        self._secrets_of = secrets_of
        self._is_settled = False

    def settled(self) -> None:
        if self._group is not None and not self._is_settled:
            self._is_settled = True
            self._group.in_hand -= 1

    def lines(self, delivery: Delivery, body: bytes, wall: float) -> str:
        lines = ""
        if self._group is not None:
            lines = f"{GROUP_SEQ}: {delivery.position}\r\n{GROUP_PREV}: {self._group.delivered}\r\n"
        if self._subscription is None or not (secrets := self._secrets_of(self._subscription, wall)):
            return lines
        job_id, at = delivery.pointer.id, int(wall)
        signature = sign(job_id, at, body, secrets)
        return f"{lines}{ID}: {job_id}\r\n{TIMESTAMP}: {at}\r\n{SIGNATURE}: {signature}\r\n"

    def delivered(self, delivery: Delivery) -> None:
        if self._group is not None:
            self._group.note(delivery.position)
