"""For applications that publish events and jobs: `Client`, and `AsyncClient` for those with an event loop.

Knows the platform by its HTTP API alone: to import this loads no server and no package from elsewhere.
"""

from flowcatalyst.client.async_client import AsyncClient
from flowcatalyst.client.client import Client
from flowcatalyst.client.forms import Event, Job
from flowcatalyst.client.results import (
    AccessError,
    ClientError,
    RefusedError,
    Result,
    UnavailableError,
    UnexpectedAnswerError,
)

__all__ = [
    "AccessError",
    "AsyncClient",
    "Client",
    "ClientError",
    "Event",
    "Job",
    "RefusedError",
    "Result",
    "UnavailableError",
    "UnexpectedAnswerError",
]
