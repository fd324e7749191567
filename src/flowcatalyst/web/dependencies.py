"""What handlers are given, by the name of their parameter: `app`, `bench`, `metrics` or `storage`.

One each: Litestar resolves several in a task group of their own, which costs more than the rest of a request.
"""

from dataclasses import dataclass

from litestar.di import NamedDependency

from flowcatalyst.app import App
from flowcatalyst.clock import IdSource
from flowcatalyst.observe.metrics import Metrics
from flowcatalyst.operations.health import StorageProbe
from flowcatalyst.web.order_judge import OrderJudge


@dataclass(slots=True, frozen=True)
class TestBench:
    """What the built-in receivers need."""

    judge: OrderJudge
    ids: IdSource


TheApp = NamedDependency[App]
TheTestBench = NamedDependency[TestBench]
TheMetrics = NamedDependency[Metrics]
TheStorageProbe = NamedDependency[StorageProbe]
