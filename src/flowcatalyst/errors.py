"""Every error FlowCatalyst raises, sorted by what a caller can do about it."""


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


class ConnectError(DeliveryError):
    """No connection to the endpoint: refused, unresolvable, TLS failure or connect timeout."""


class ConnectionBrokenError(DeliveryError):
    """The connection broke, or spoke something that is not HTTP, before the response was complete."""


class RequestTimeoutError(DeliveryError):
    """The response was not complete when the deadline passed."""


class TargetRefusedError(DeliveryError):
    """The target may not be called: its URL is invalid or the egress guard denies its address."""
