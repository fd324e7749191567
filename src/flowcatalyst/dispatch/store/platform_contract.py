"""What a store of the platform keeps besides jobs: events, and the catalog (subscriptions, pools, keys).

It is the same database as that of the jobs: an event and its jobs are one unit of work, and a pause locks lanes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple, Protocol

from flowcatalyst.core.errors import FlowCatalystError
from flowcatalyst.core.message import Delivery, Settled
from flowcatalyst.dispatch.event import Event
from flowcatalyst.dispatch.job import Job
from flowcatalyst.dispatch.stamp import SecretsOf
from flowcatalyst.dispatch.store.contract import JobStore
from flowcatalyst.queues.contract import Queue


class UnknownEventError(FlowCatalystError):
    """There is no such event."""


class UnknownEntryError(FlowCatalystError):
    """The catalog has no such entry."""


class CodeTakenError(FlowCatalystError):
    """The catalog has an entry with this code."""


class StaleEntryError(FlowCatalystError):
    """Somebody else changed the entry meanwhile."""


@dataclass(slots=True, frozen=True)
class EventKept:
    """An event as the store has it."""

    event: Event
    jobs: int  # that were made of it when it came; replays come on top
    created_at: float


@dataclass(slots=True, frozen=True)
class EventAccepted:
    """What became of one event that was sent."""

    kept: EventKept
    repeated: bool = False  # its deduplication id was known: this is the first event that had it


@dataclass(slots=True, frozen=True)
class EventFilter:
    """Which events; None: any. What two fields ask for has to hold for both."""

    type: str | None = None
    source: str | None = None
    subject: str | None = None
    group: str | None = None
    correlation_id: str | None = None
    deduplication_id: str | None = None
    created_from: float | None = None
    created_before: float | None = None


@dataclass(slots=True, frozen=True)
class EventPage:
    """Some events, and where the next page begins; None: there is no other."""

    items: list[EventKept]
    cursor: int | None


class EventStore(Protocol):
    """Keeps events. Each call is one unit of work; it fails as `QueueUnavailableError` while there is no database."""

    async def accept(self, events: Sequence[tuple[Event, Sequence[Job]]]) -> list[EventAccepted]:
        """Keep events, each with its jobs: durable when it returns, all of them or none.

        One whose deduplication id is known is not kept again, nor are its jobs made; so is the second of two in a call.
        A job of a subscription that was removed meanwhile is not made. Within a group jobs stand in the order in which
        they are given.
        """

    async def event(self, event_id: str) -> EventKept:
        """Raises `UnknownEventError`. Its jobs are those with its id as the `eventId` of their metadata."""

    async def events(self, which: EventFilter, limit: int, cursor: int | None = None) -> EventPage:
        """The newest first. A page may end early where very many do not match."""

    async def events_in_order(self, which: EventFilter, limit: int, after: int | None = None) -> EventPage:
        """The oldest first, in the order in which they were kept: for a replay."""

    async def drop_events(self, before: float, limit: int) -> int:
        """Forget events that came before a time, and their deduplication ids; how many. Their jobs stay."""


class EntryKind(StrEnum):
    SUBSCRIPTION = "subscription"
    POOL = "pool"
    API_KEY = "api key"


@dataclass(slots=True, frozen=True)
class Entry:
    """One entry of the catalog. What its document says is for others to know."""

    kind: EntryKind
    code: str
    document: str  # JSON
    revision: int  # of the catalog when it was changed last
    created_at: float
    updated_at: float


class CatalogStore(Protocol):
    """Few entries that all processes keep in memory, and a number that tells when something changed."""

    async def revision(self) -> int:
        """It grows with each change of the catalog, by whichever process. Never waits for the writer."""

    async def entries(self, kind: EntryKind) -> list[Entry]:
        """All of a kind, by code."""

    async def add(self, kind: EntryKind, code: str, document: str, *, paused: bool = False) -> Entry:
        """Raises `CodeTakenError`. A pause that a subscription of its code left behind is over."""

    async def change(
        self,
        kind: EntryKind,
        code: str,
        document: str,
        revision: int | None = None,
        *,
        quiet: bool = False,
        paused: bool | None = None,
    ) -> Entry:
        """With `paused` a subscription is paused or resumed in the same unit of work, as by `set_paused`: the two never
        say different things. Raises `UnknownEntryError`, or `StaleEntryError` if a revision is given and is not that of
        the entry.

        `quiet`: nobody needs to look at it, so the revisions of catalog and entry stay (the last use of a key, say).
        """

    async def remove(self, kind: EntryKind, code: str) -> None:
        """What is left of a subscription is paused in the same unit of work. Raises `UnknownEntryError`."""

    async def changed(self, since: int, wait_s: float) -> int:
        """The present revision: as soon as it is not `since`, or after so many seconds."""


class PauseStore(Protocol):
    """Pausing subscriptions: their jobs stay in their lanes, in order, and are handed out to nobody."""

    async def set_paused(self, subscription: str, *, paused: bool) -> None:
        """Jobs that come from now on wait, or do not. For those that are there `settle_pauses` has to go through."""

    async def forget_pause(self, subscription: str) -> None:
        """End the pause of one that the catalog does not have any more; one that it has stays as it is."""

    async def settle_pauses(self, limit: int) -> int:
        """Lock or unlock up to so many lanes of subscriptions that were paused or resumed; 0: none are left to do.

        How far it came is kept: another process may go on. What a router has in hand is for a recall.
        """


class Ticket(NamedTuple):
    """Which handing over of a job is meant. It is stale as soon as the job is claimed, settled, changed by a person or
    published anew."""

    job: str
    lane: int
    place: int  # of its message in the lane
    epoch: int  # of the lease in which it was published


class Refused(StrEnum):
    """Why a job cannot be claimed."""

    STALE = "stale"  # by this ticket, ever
    WAITS = "waits"  # for now: its group is held, or its subscription is paused


class RemoteStore(Protocol):
    """Jobs that routers on other machines deliver. Who is out is kept here and nowhere else, so that at most one job of
    an ordered group is, whatever becomes of processes, brokers and routers.

    A job is taken, published, and handed over: from then on its lane waits for a claim, or until its time is over.
    """

    def set_elsewhere(self, pools: frozenset[str]) -> None:
        """Jobs of these pools are for `take_heads`; the queue of the store hands none of them out in this process."""

    async def take_heads(self, pools: Mapping[str, int], wait_s: float) -> list[Delivery]:
        """Lease the first job of each lane that is ready, as long as no more than so many of its pool are out with it;
        none if none came within `wait_s`."""

    def ticket_of(self, delivery: Delivery) -> Ticket:
        """Of one that `take_heads` gave. It can be claimed by that from then on."""

    async def hand_over(self, deliveries: Sequence[Delivery], seconds: float) -> list[Settled]:
        """They were published: nothing of their lanes starts for so long, unless somebody claims them or acts on them.

        GONE: it was claimed already, or is no longer ours.
        """

    async def claim(self, ticket: Ticket) -> Delivery | Refused:
        """Lease a job that is out to whoever was called back for it: once. It is settled like one that was received.

        The lease lasts for as long as an attempt at it may take.
        """


class SigningQueue(Queue, Protocol):
    """The queue of a store whose jobs are signed when they are sent."""

    secrets_of: SecretsOf  # of a process that has a catalog


class PlatformStore(JobStore, EventStore, CatalogStore, PauseStore, RemoteStore, Protocol):
    """All that the platform keeps, in one database."""

    @property
    def queue(self) -> SigningQueue: ...
