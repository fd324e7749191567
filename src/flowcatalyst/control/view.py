"""A router in this process, as those see it who look at it or act on it: health, metrics, the API, the demo."""

from collections.abc import Mapping
from typing import Protocol

from flowcatalyst.control.audit import AuditLog
from flowcatalyst.control.config_sync import ConfigSync
from flowcatalyst.control.dead_letters import DeadLetters
from flowcatalyst.control.depths import Depths
from flowcatalyst.control.group_figures import GroupWatch
from flowcatalyst.control.pause_store import PauseStore
from flowcatalyst.control.router_config import RouterConfig
from flowcatalyst.control.settings import Settings
from flowcatalyst.control.shared_file import SharedFile
from flowcatalyst.control.standby import Standby
from flowcatalyst.control.storage_outages import StorageOutages
from flowcatalyst.core.clock import Clock, IdSource
from flowcatalyst.core.supervisor import Supervisor
from flowcatalyst.core.warnings import WarningLog
from flowcatalyst.dispatch.job_counts import JobCounts
from flowcatalyst.dispatch.job_watch import JobWatch
from flowcatalyst.dispatch.platform import Platform
from flowcatalyst.dispatch.processing import Processing
from flowcatalyst.dispatch.store.contract import JobStore
from flowcatalyst.queues.contract import BrokerQueue, Queue
from flowcatalyst.queues.embedded.store import EmbeddedStore
from flowcatalyst.queues.settings import QueueConfig
from flowcatalyst.router.breaker import Breakers
from flowcatalyst.router.consumer import Consumer
from flowcatalyst.router.engine import Engine
from flowcatalyst.router.limits import PoolLimits
from flowcatalyst.router.outages import DeadLetterOutages
from flowcatalyst.router.router import Router
from flowcatalyst.router.tracker import InFlightTracker


class RouterView(Protocol):
    @property
    def settings(self) -> Settings: ...

    @property
    def clock(self) -> Clock: ...

    @property
    def ids(self) -> IdSource: ...

    @property
    def identity(self) -> str: ...

    @property
    def warnings(self) -> WarningLog: ...

    @property
    def supervisor(self) -> Supervisor: ...

    @property
    def depths(self) -> Depths: ...

    @property
    def group_watch(self) -> GroupWatch: ...

    @property
    def audit(self) -> AuditLog: ...

    @property
    def pause_store(self) -> PauseStore: ...

    @property
    def dead_letters(self) -> DeadLetters: ...

    @property
    def dead_letter_outages(self) -> DeadLetterOutages: ...

    @property
    def storage_outages(self) -> StorageOutages: ...

    @property
    def shared_file(self) -> SharedFile: ...

    @property
    def store(self) -> EmbeddedStore: ...

    @property
    def jobs(self) -> JobStore | None:
        """None: it dispatches no jobs."""

    @property
    def processing(self) -> Processing | None:
        """None: it dispatches no jobs, or does not run yet."""

    @property
    def platform(self) -> Platform | None:
        """None: it dispatches no jobs."""

    @property
    def job_counts(self) -> JobCounts: ...

    @property
    def job_watch(self) -> JobWatch | None: ...

    @property
    def config(self) -> RouterConfig: ...

    @property
    def pools_without_catalog(self) -> Mapping[str, PoolLimits]:
        """Those that there would be without the ones that were made by the API."""

    @property
    def removed_queues(self) -> Mapping[str, QueueConfig]: ...

    @property
    def sync(self) -> ConfigSync | None: ...

    @property
    def standby(self) -> Standby | None: ...

    @property
    def engine(self) -> Engine: ...

    @property
    def started(self) -> bool: ...

    @property
    def stopping(self) -> bool: ...

    @property
    def at_work(self) -> bool: ...

    @property
    def queues(self) -> Mapping[str, BrokerQueue]: ...

    @property
    def tracker(self) -> InFlightTracker: ...

    @property
    def breakers(self) -> Breakers: ...

    @property
    def router(self) -> Router: ...

    @property
    def consumers(self) -> dict[str, Consumer]: ...

    def queues_to_show(self) -> dict[str, Queue]: ...
