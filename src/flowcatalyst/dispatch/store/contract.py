"""What a job store does, whichever database is behind it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeAlias, TypeVar

from flowcatalyst.core.errors import FlowCatalystError
from flowcatalyst.core.message import DispatchMode
from flowcatalyst.dispatch.job import Job, JobState, Kind, Status
from flowcatalyst.queues.contract import Queue


class UnknownJobError(FlowCatalystError):
    """There is no such job."""


class JobStateError(FlowCatalystError):
    """The job is not in a state in which that can be done."""


class InHandError(JobStateError):
    """A router has the job in hand: what it did not start can be recalled."""


class CursorError(FlowCatalystError):
    """No list gave this cursor."""


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
class ActionTaken:
    """What a person did to a job."""

    at: float
    actor: str
    action: str


@dataclass(slots=True, frozen=True)
class Filter:
    """Which jobs; None and nothing: any. What two fields ask for has to hold for both."""

    status: Status | None = None
    mode: DispatchMode | None = None
    group: str | None = None
    code: str | None = None
    kind: Kind | None = None
    pool: str | None = None
    subscription: str | None = None
    removed: bool = False  # their subscription is not in the catalog; for all that one look finds this holds at once
    target: str | None = None  # the beginning of its URL
    created_from: float | None = None
    created_before: float | None = None
    metadata: tuple[tuple[str, str], ...] = ()  # all of these
    parked: bool | None = None  # in ERROR without a next attempt: it waits for a person
    as_stored: bool = False  # its status is that, whether or not a router has it in hand just now


@dataclass(slots=True, frozen=True)
class Page:
    """Some jobs, the newest first, and where the next page begins."""

    items: list[JobState]
    cursor: int | None


@dataclass(slots=True, frozen=True)
class Change:
    """What to change about a job; None leaves it as it is."""

    mode: DispatchMode | None = None
    target: str | None = None
    payload: bytes | None = None
    content_type: str | None = None
    headers: tuple[tuple[str, str], ...] | None = None


class Retry(NamedTuple):
    """Try jobs in ERROR again at once, with all their retries."""


class Cancel(NamedTuple):
    """Never try jobs (again); their groups go on."""


Action: TypeAlias = Retry | Cancel | Change


def in_words(action: Action) -> str:
    """As it stands in the history of a job. What was put in says nothing: it may be secret."""
    match action:
        case Retry():
            return "retry"
        case Cancel():
            return "cancel"
        case Change(mode=mode):
            names = ("target", "payload", "content_type", "headers")
            changed = [name.replace("_", " ") for name in names if getattr(action, name) is not None]
            return "change " + ", ".join(([f"mode to {mode}"] if mode is not None else []) + changed)


def in_hand(job_id: str) -> str:
    return f"job {job_id} is in a router's hands"


def not_to_be_retried(job_id: str, status: str) -> str:
    return f"job {job_id} is {status}: only one that failed or was told to wait can be tried again"


@dataclass(slots=True, frozen=True)
class Acted:
    """What an action on all jobs of a filter came to."""

    done: int
    refused: int = 0  # not in a state for it, as one that a router has in hand
    in_hand: tuple[str, ...] = ()  # of these, those that a router has
    cursor: int | None = None  # where the next part begins; None: that was all


@dataclass(slots=True, frozen=True)
class Place:
    """Where an unfinished job stands in its group."""

    ahead: int  # jobs of its group before it, counted up to `PLACES_COUNTED`
    head: JobState | None = None  # the first of them: what it waits for; None: it is the first itself


@dataclass(slots=True, frozen=True)
class GroupState:
    """A group with unfinished jobs in order."""

    group: str
    jobs: int  # unfinished, in order
    head: JobState | None  # the first of them
    blocked_since: float | None = None  # its first job failed then and nothing behind it starts
    held_since: float | None = None  # somebody holds it
    held_by: str = ""


@dataclass(slots=True, frozen=True)
class GroupPage:
    """Groups, those blocked or held first, the longest first; then the others by name."""

    items: list[GroupState]
    cursor: str | None


@dataclass(slots=True, frozen=True)
class Figures:
    """What a store holds, at a cost that does not grow with it."""

    waiting: int  # unfinished and neither scheduled nor parked
    scheduled: int  # their time has not come
    parked: int  # wait for a person
    groups: int  # with unfinished jobs in order
    blocked: int  # of these
    jobs_in_groups: Mapping[int, int]  # how many groups have at most so many jobs, for the bounds of `GROUP_SIZES`
    oldest_waiting_at: float | None  # when the oldest job was made that could start


Until = TypeVar("Until")


@dataclass(slots=True, frozen=True)
class Recall(Generic[Until]):
    """What routers were asked to return as far as they did not start it. Nothing more of that is handed out until the
    recall is ended, or for `RECALL_LOCK_S` should nobody do so."""

    lanes: tuple[int, ...]  # none: nobody has anything of it in hand
    until: Until  # by the clock of the database; no two recalls of a lane have the same


RECALL_LOCK_S: Final = 5.0
PLACES_COUNTED: Final = 10_000
GROUP_SIZES: Final = (1, 10, 100, 1_000, 10_000, 100_000)


class JobStore(Protocol):
    """Keeps jobs and hands them out as a queue. Each call is one unit of work: all of it happens, or nothing.

    Calls fail as `QueueUnavailableError` while the database cannot be reached or written.
    """

    @property
    def queue(self) -> Queue:
        """Through which the router gets, settles and returns them."""

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    async def create(self, jobs: Sequence[Job], *, behind: bool = False) -> list[Created]:
        """Durable when it returns. One whose idempotency key is known is not made again.

        `behind`: each stands behind all that its group has waiting now, so that its sequence is raised to the highest
        one there. Then a job of a subscription that was removed raises `UnknownEntryError`, and none is made.
        """

    # Looking: none of these waits for the writer

    async def find(self, job_id: str) -> JobState:
        """Raises `UnknownJobError`."""

    async def attempts_of(self, job_id: str) -> list[AttemptMade]:
        """In the order in which they were made."""

    async def history_of(self, job_id: str) -> list[ActionTaken]:
        """What people did to it, oldest first."""

    async def place_of(self, job_id: str) -> Place | None:
        """None: it is finished, or ordered with nothing."""

    async def page(self, which: Filter, limit: int, cursor: int | None = None) -> Page: ...

    async def count(self, which: Filter, most: int) -> int:
        """How many there are, up to `most`."""

    async def groups(self, *, blocked: bool, limit: int, cursor: str | None = None) -> GroupPage:
        """With `blocked`: only those that are blocked or held. Raises `CursorError`."""

    async def group(self, name: str) -> GroupState:
        """One with no unfinished jobs has none and no head."""

    async def figures(self) -> Figures: ...

    # Acting: each leaves a line in the history of its job

    async def act(self, job_id: str, action: Action, actor: str) -> JobState:
        """Whatever it unblocks starts at once.

        Raises `UnknownJobError`, or `JobStateError` if the job is finished, or, for a retry, neither failed nor was
        told to wait; `InHandError` if a router has it. `dispatch.acting` recalls it then.
        """

    async def act_on_all(
        self, which: Filter, action: Action, actor: str, limit: int, cursor: int | None = None
    ) -> Acted:
        """The same for up to `limit` jobs of a filter, in one unit of work; those it cannot be done to are left."""

    async def hold(self, group: str, actor: str) -> GroupState:
        """Nothing more of a group is handed out until it is released. What a router has in hand is for a recall."""

    async def release(self, group: str, actor: str) -> GroupState: ...

    # Acting on what a router has in hand

    async def recall(
        self, jobs: Sequence[str] = (), group: str | None = None, subscription: str | None = None
    ) -> Recall[Any]:
        """Ask whoever has them in hand for all that was not started of the lanes of these jobs, of a group, and of the
        lanes that begin with a job of a subscription."""

    async def returned(self, recall: Recall[Any], wait_s: float) -> bool:
        """Whether all who were asked have answered, within so many seconds: what they still have is in flight."""

    async def end_recall(self, recall: Recall[Any]) -> None:
        """Hand out what came back."""

    # Keeping house

    async def expire(self, limit: int) -> int:
        """End jobs that waited for longer than they were to, also those that were never tried; how many."""

    async def drop_finished(self, before: float, limit: int) -> int:
        """Forget jobs that were finished before a time, with their attempts and history; how many."""

    async def lead(self) -> bool:
        """Whether this process is the one that keeps house now; it is until it closes or dies."""
