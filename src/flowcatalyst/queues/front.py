"""Publishing in front of a group, where the storage of a queue is ours."""

from typing import Protocol, runtime_checkable

from flowcatalyst.core.errors import FlowCatalystError
from flowcatalyst.queues.contract import Outgoing, Published


class GroupInHandError(FlowCatalystError):
    """A router has messages of the group in hand: hold the group first, or wait until it is done with them."""

    def __init__(self, group: str | None) -> None:
        super().__init__(
            f"a router has messages of group {group!r} in hand, and nothing can come before those: hold the group "
            "first, or try again when the router is done with them"
        )


@runtime_checkable
class FrontQueue(Protocol):
    """A queue in which a message can be the first of its group."""

    async def publish_in_front(self, message: Outgoing) -> Published:
        """Put a message before all that its group holds; of several the one that came last is the first.

        It is durable when this returns. What waits behind it keeps its delay, and does not make it wait. One without
        a group is ordered with nothing: it is published like any other. Raises `GroupInHandError` while a router has
        messages of the group, and what `publish` raises.
        """
