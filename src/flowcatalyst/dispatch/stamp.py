"""What each request for a job says besides: its place in its group, and its signature. Pure."""

from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

from flowcatalyst.core.headers import OUR_PREFIX
from flowcatalyst.core.message import Delivery
from flowcatalyst.core.webhook import ID, SIGNATURE, TIMESTAMP
from flowcatalyst.http.signing import sign

GROUP_SEQ: Final = f"{OUR_PREFIX}Group-Seq"
GROUP_PREV: Final = f"{OUR_PREFIX}Group-Prev"

# The secrets that a subscription is signed with at a time, the newest first. Raises `NotSignedError` if they cannot be
# had here; none: it is not signed.
SecretsOf: TypeAlias = Callable[[str, float], Sequence[str]]


def no_secrets(subscription: str, wall: float) -> Sequence[str]:
    """Of a process that has no catalog."""
    return ()


class LeasedGroup:
    """What the jobs of one lease of a group know of each other: which of the group was delivered last."""

    __slots__ = ("delivered",)

    def __init__(self, delivered: int) -> None:
        self.delivered = delivered  # its position; 0: none was


class JobStamp:
    """Of one job in a router's hands. `group` is None if it is ordered with nothing."""

    __slots__ = ("_group", "_secrets_of", "_subscription")

    def __init__(self, group: LeasedGroup | None, subscription: str | None, secrets_of: SecretsOf) -> None:
        self._group = group
        self._subscription = subscription
        self._secrets_of = secrets_of

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
            self._group.delivered = delivery.position
