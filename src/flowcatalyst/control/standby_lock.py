"""What the standby and the lock it asks for know of each other."""

from dataclasses import dataclass

from flowcatalyst.core.errors import FlowCatalystError


class LockUnavailableError(FlowCatalystError):
    """Redis did not answer, or not with what was asked for. The command may still have been executed."""


@dataclass(slots=True, frozen=True)
class Holder:
    """Who has the lock, and the fencing number that came with it."""

    identity: str
    number: int
