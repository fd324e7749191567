"""Every error FlowCatalyst raises, sorted by what a caller can do about it."""

import errno
from typing import Final

# What this machine may lack to open a connection, whoever it is to, and what to do about it.
_NO_MEMORY: Final = "this machine has no memory left for connections: free some, or lower the concurrency of its pools"
LOCAL_SHORTAGES: Final = {
    errno.EMFILE: "this process has used up its file descriptors: raise its limit of open files (LimitNOFILE, "
    "ulimit -n), or lower the concurrency of its pools",
    errno.ENFILE: "this machine has used up its file descriptors: raise fs.file-max, or stop what holds them",
    errno.ENOBUFS: _NO_MEMORY,
    errno.ENOMEM: _NO_MEMORY,
    errno.EADDRNOTAVAIL: "this machine has no address or port left to connect from: let endpoints keep connections "
    "open, or widen net.ipv4.ip_local_port_range",
}


class FlowCatalystError(Exception):
    """Something went wrong inside FlowCatalyst."""

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or self.__doc__)


class ConfigurationError(FlowCatalystError):
    """A setting is wrong; the process cannot start with it."""


class InvalidMessageError(FlowCatalystError):
    """A message cannot be accepted as it is; the sender has to change it."""


class QueueUnavailableError(FlowCatalystError):
    """The queue did not answer; the same call may succeed later."""


class StorageError(FlowCatalystError):
    """A database file cannot be used; a person has to look at it."""


class StorageUnavailableError(StorageError):
    """A database file cannot be used at the moment: it is locked, closed, or its disk is full."""


class DeliveryError(FlowCatalystError):
    """An HTTP request got no usable response."""


class LocalShortageError(DeliveryError):
    """This machine cannot open a connection at the moment: nothing was sent, nobody is to blame."""

    def __init__(self, number: int) -> None:
        super().__init__(f"deliveries wait ({errno.errorcode[number]}): {LOCAL_SHORTAGES[number]}")


class NotSignedError(LocalShortageError):
    """A webhook cannot be signed here at the moment, so it is not sent: nobody but this machine is to blame."""

    def __init__(self, why: str) -> None:
        Exception.__init__(self, f"deliveries wait: {why}")


class NotLookedUpError(LocalShortageError):
    """A name was not looked up: others that hang use up what this process may look up at once."""

    def __init__(self, why: str) -> None:
        Exception.__init__(
            self,
            f"deliveries wait: names of hosts cannot be looked up, {why}, since too many other lookups hang: see to "
            "the name servers of this machine, or to the targets whose names get no answer",
        )


class ConnectError(DeliveryError):
    """No connection to the endpoint: refused, unresolvable, TLS failure or connect timeout."""


class ConnectionBrokenError(DeliveryError):
    """The connection broke, or spoke something that is not HTTP, before the response was complete."""


class RequestTimeoutError(DeliveryError):
    """The response was not complete when the deadline passed."""


class TargetRefusedError(DeliveryError):
    """The target may not be called: its URL is invalid or the egress guard denies its address."""


INSIDE: Final = "an error inside FlowCatalyst; its log says more"


def plain(error: BaseException) -> str:
    """An error that nobody expected, as people are told of it. Its kind and its place are for the log."""
    match error:
        case FlowCatalystError():
            return str(error)
        case MemoryError():
            return "this machine has no memory left"
        case OSError() if error.strerror:
            return error.strerror
        case TimeoutError():
            return "it took too long"
        case _:
            return INSIDE
