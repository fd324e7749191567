"""What handlers are given, by the name of their parameter: `app`, `sandbox`, `metrics`, `storage` or `live`.

One each: Litestar resolves several in a task group of their own, which costs more than the rest of a request.
"""

from typing import Protocol

from litestar.di import NamedDependency
from litestar.params import SkipValidation

from flowcatalyst.control.health import StorageProbe
from flowcatalyst.control.live_feed import LiveFeed
from flowcatalyst.control.metrics import Metrics
from flowcatalyst.control.view import RouterView
from flowcatalyst.http.egress import EgressGuard
from flowcatalyst.sandbox.receivers import Sandbox


class ServedRouter(RouterView, Protocol):
    """A router with an API."""

    @property
    def sandbox(self) -> Sandbox: ...

    @property
    def egress(self) -> EgressGuard: ...


TheApp = NamedDependency[SkipValidation[ServedRouter]]
TheSandbox = NamedDependency[Sandbox]
TheMetrics = NamedDependency[Metrics]
TheStorageProbe = NamedDependency[StorageProbe]
TheLiveFeed = NamedDependency[SkipValidation[LiveFeed]]
