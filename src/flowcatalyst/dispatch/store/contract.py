"""What a job store does, whichever database is behind it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from flowcatalyst.core.errors import FlowCatalystError
from flowcatalyst.core.message import DispatchMode
from flowcatalyst.dispatch.job import Job, JobState, Kind, Status
from flowcatalyst.queues.contract import Queue


class UnknownJobError(FlowCatalystError):
    """There is no such job."""


class JobStateError(FlowCatalystError):
    """The job is not in a state in which that can be done."""


@dataclass(slots=True, frozen=True)
class Created:
    """What became of one job that was to be made."""

    state: JobState
    repeated: bool = False  # its idempotency key was known: this is the first job that had it


@dataclass(slots=True, frozen=True)
class AttemptMade:
    """One attempt, as it was written down."""

    attempt: int
    began_at: float
    duration_s: float
    status: int | None
    error: str
    counts: bool
    detail: str
    excerpt: str


@dataclass(slots=True, frozen=True)
class Filter:
    """Which jobs; None: any."""

    status: Status | None = None
    mode: DispatchMode | None = None
    group: str | None = None
    code: str | None = None
    kind: Kind | None = None


@dataclass(slots=True, frozen=True)
class Page:
    """Some jobs, the newest first, and where the next page begins."""

    items: list[JobState]
    cursor: int | None


class JobStore(Protocol):
    """Keeps jobs and hands them out as a queue. Each call is one unit of work: all of it happens, or nothing."""

    @property
    def queue(self) -> Queue:
        """Through which the router gets, settles and returns them."""

    async def create(self, jobs: Sequence[Job]) -> list[Created]:
        """Durable when it returns. One whose idempotency key is known is not made again."""

    async def find(self, job_id: str) -> JobState:
        """Raises `UnknownJobError`."""

    async def attempts_of(self, job_id: str) -> list[AttemptMade]:
        """In the order in which they were made."""

    async def page(self, which: Filter, limit: int, cursor: int | None = None) -> Page: ...

    async def retry(self, job_id: str, actor: str) -> JobState:
        """Try a job in ERROR again at once, with all its retries. Raises `JobStateError` if it is not in ERROR."""

    async def cancel(self, job_id: str, actor: str) -> JobState:
        """Never try it (again); its group goes on. Raises `JobStateError` if it is finished or in a router's hands."""

    async def change_mode(self, job_id: str, mode: DispatchMode, actor: str) -> JobState:
        """What its failures mean for its group from now on. Raises `JobStateError` as `cancel` does."""
