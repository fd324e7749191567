"""The jobs of a SQLite file as a queue."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from sqlite3 import Connection
from typing import Final, TypeVar

from flowcatalyst.core.message import Delivery, MessagePointer, Settled
from flowcatalyst.dispatch.job import JobState, Status, number_at
from flowcatalyst.dispatch.stamp import JobStamp, LeasedGroups, SecretsOf, no_secrets
from flowcatalyst.dispatch.store.job_rows import enter, house, out, recalling, settle
from flowcatalyst.dispatch.store.job_rows.columns import LOCK, QUEUE, jobs_of
from flowcatalyst.dispatch.store.job_rows.positions import Positions
from flowcatalyst.dispatch.store.job_rows.positions import give as give_positions
from flowcatalyst.dispatch.store.platform_contract import Refused, Ticket
from flowcatalyst.queues.embedded import jobs as lanes_and_messages
from flowcatalyst.queues.embedded.lanes import encode
from flowcatalyst.queues.embedded.queue import EmbeddedQueue, EmbeddedStore, storage_errors_as_queue_errors
from flowcatalyst.queues.embedded.take import Taken, take_firsts
from flowcatalyst.queues.recalls import Lease, RecalledLeases

T = TypeVar("T")

EXPIRED_AT_ONCE: Final = 200  # jobs that one look for others ends
RECALL_POLL_S: Final = 0.2  # how soon another process is heard
LOOKS_PAST_EXPIRED: Final = 10  # how often one look goes on after it met nothing but jobs whose time is over


@dataclass(slots=True, frozen=True)
class TakenJobs(Taken):
    """What one look gave, with the jobs that the messages stand for."""

    jobs: Mapping[int, JobState] = field(default_factory=dict)
    positions: Positions = field(default_factory=Positions)


class SqliteJobQueue(EmbeddedQueue):
    """The jobs of a file as a queue. What is acked is completed; with each settlement goes its attempt."""

    _is_dated = False  # they may be scheduled for later, or parked: their figures tell
    _hurries = False  # what waits for a person waits in the same lanes: jobs are retried one by one, in their store

    def __init__(self, store: EmbeddedStore, *, poll_interval_s: float = 0.1, long_poll_s: float = 1.0) -> None:
        super().__init__(store, QUEUE, poll_interval_s=poll_interval_s, long_poll_s=long_poll_s)
        self.recalls = RecalledLeases()
        self.secrets_of: SecretsOf = no_secrets  # of subscriptions, for who has a catalog
        self._groups = LeasedGroups()

    async def change(self, job: Callable[[Connection], T]) -> T:
        """Change the jobs, and let those look again who wait for some."""
        return await self._run(partial(self._store_if_found, job))

    async def ack(self, deliveries: Sequence[Delivery]) -> list[Settled]:
        now, wall = self.store.now(), self._clock.wall()
        job = partial(settle.ack, deliveries=tuple(deliveries), now=now, wall=wall)
        results = await self._run(job) if deliveries else []
        self._groups.settled(deliveries)
        return results

    async def nack(self, deliveries: Sequence[Delivery], delay_s: float, *, unlock: bool = False) -> list[Settled]:
        now, wall = self.store.now(), self._clock.wall()
        job = partial(settle.nack, deliveries=tuple(deliveries), now=now, wall=wall, delay_s=delay_s)
        results = await self._run(partial(job, unlock=unlock)) if deliveries else []
        self._groups.settled(deliveries)
        return results

    async def hurry(self, delivery: Delivery) -> bool:
        return False

    async def recalled(self, wait_s: float) -> Sequence[Lease]:
        loop = asyncio.get_running_loop()
        until = loop.time() + wait_s
        while True:
            news = self.recalls.news
            with storage_errors_as_queue_errors():
                leases = await self.store.writer.read(partial(recalling.recalled, owner=self.store.owner))
            self.recalls.note(leases, loop.time())
            if leases or (left_s := until - loop.time()) <= 0:
                return leases
            await self.recalls.wait(news, min(left_s, RECALL_POLL_S))

    def is_recalled(self, delivery: Delivery) -> bool:
        return self.recalls.have(delivery.receipt.lane, delivery.receipt.epoch)

    async def returned(self, leases: Sequence[Lease]) -> None:
        await self._run(partial(recalling.answer, leases=leases))
        self.recalls.ring()

    # Jobs for routers on other machines

    def set_elsewhere(self, pools: frozenset[str]) -> None:
        self._elsewhere = frozenset(map(encode, pools))

    async def take_heads(self, pools: Mapping[str, int], wait_s: float) -> list[Delivery]:
        return await self._receive(partial(self._take_heads, pools), wait_s)

    async def _take_heads(self, pools: Mapping[str, int]) -> tuple[Taken, float]:
        visibility_s = self.capabilities.visibility_s
        with storage_errors_as_queue_errors():
            await self.store.reap_now_and_then()
            lease_until = self._clock.monotonic() + visibility_s
            return await self._leased(partial(self._lease_heads, pools=pools)), lease_until

    def _lease_heads(self, connection: Connection, pools: Mapping[str, int]) -> Taken:
        def take(connection: Connection) -> Taken:
            now = self.store.now()
            limits = out.free(connection, pools, now)
            visibility_s = self.capabilities.visibility_s
            return take_firsts(connection, QUEUE, limits, self.store.owner, now, visibility_s, LOCK)

        taken = self._lease_unexpired(take, connection)  # who begins is known when one is claimed
        out.begin(connection, [message.lane for message in taken.messages])
        return taken

    async def hand_over(self, deliveries: Sequence[Delivery], seconds: float) -> list[Settled]:
        receipts = [delivery.receipt for delivery in deliveries]
        job = partial(out.hand_over, receipts=receipts, owner=self.store.owner, seconds=seconds, now=self.store.now())
        return await self._run(job)

    async def claim(self, ticket: Ticket) -> Delivery | Refused:
        refused, lasts_s = Refused.STALE, 0.0

        def lease(connection: Connection) -> Taken:
            nonlocal refused, lasts_s
            now, wall = self.store.now(), self._clock.wall()
            claimed = out.claim(connection, ticket, self.store.owner, now, wall)
            if isinstance(claimed, Refused):
                refused = claimed
                return Taken([])
            message, lasts_s = claimed
            jobs = jobs_of(connection, [number_at(message.seq)], now)
            return TakenJobs([message], jobs=jobs, positions=give_positions(connection, [message], jobs, wall))

        began = self._clock.monotonic()
        with storage_errors_as_queue_errors():
            taken = await self._leased(lease)
        return self._deliveries(taken, began + lasts_s)[0] if taken.messages else refused

    def _lease(self, take: Callable[[Connection], Taken], connection: Connection) -> Taken:
        """What may begin now has a position in its group."""
        taken = self._lease_unexpired(take, connection)
        return replace(taken, positions=give_positions(connection, taken.messages, taken.jobs, self._clock.wall()))

    def _lease_unexpired(self, take: Callable[[Connection], Taken], connection: Connection) -> TakenJobs:
        """Jobs whose time is over are ended instead of being handed out."""
        now, wall = self.store.now(), self._clock.wall()
        house.expire(connection, EXPIRED_AT_ONCE, now, wall)
        changes_at = [enter.enter_what_is_due(connection, now, wall), house.next_expiry(connection, wall)]
        for _ in range(LOOKS_PAST_EXPIRED):
            taken = take(connection)
            jobs = jobs_of(connection, [int(message.body) for message in taken.messages], now)
            over = [one for one in taken.messages if house.is_over(jobs[int(one.body)].job.expires_at, wall)]
            if not over:
                break
            lanes_and_messages.ack(connection, QUEUE, [message.receipt for message in over], now, LOCK)
            settle.end(connection, [message.seq for message in over], Status.EXPIRED, now, wall)
            taken = replace(taken, messages=[message for message in taken.messages if message not in over])
            if taken.messages:
                break
        else:
            changes_at.append(wall)  # there are more of them
        dues = [now + at - wall for at in changes_at if at is not None]
        next_due = min(dues if taken.next_due is None else [*dues, taken.next_due], default=None)
        return TakenJobs(taken.messages, next_due, taken.data_version, taken.codes_seen_to, jobs)

    def _deliveries(self, taken: Taken, lease_until: float) -> list[Delivery]:
        assert isinstance(taken, TakenJobs)
        deliveries = []
        for message in taken.messages:
            delivery = self._delivery(message, lease_until)
            number = number_at(message.seq)
            state = taken.jobs[number]
            job, delivery.terms, delivery.earlier = state.job, state.job.terms, state.attempts
            delivery.due_at, delivery.expires_at = job.due_at, job.expires_at or 0.0
            if job.payload is not None:
                delivery.body, delivery.is_raw = job.payload, True
            delivery.pointer = MessagePointer(
                id=job.id,
                mediation_target=job.target,
                pool_code=job.pool,
                message_group_id=job.group,
                dispatch_mode=job.mode,
                content_type=job.content_type,
                headers=dict(job.headers) or None,
            )
            if job.lane is not None or job.subscription is not None:
                group = None
                if job.lane is not None and message.lane in taken.positions.delivered:
                    group = self._groups.of(job.lane, taken.positions.delivered[message.lane])
                delivery.position = 0 if group is None else taken.positions.of_jobs[number]
                delivery.stamp = JobStamp(group, job.subscription, self.secrets_of)
            deliveries.append(delivery)
        return deliveries
