"""Jobs for routers on other machines: published to a broker as pointers, one of an ordered group at a time.

The store keeps who is out. So nothing here has to be remembered: a process that dies between two steps leaves a lease
that ends with it, and the job is published anew; what it published before is stale by then.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Final

import structlog

from flowcatalyst.core.clock import Clock
from flowcatalyst.core.errors import FlowCatalystError, InvalidMessageError, QueueUnavailableError
from flowcatalyst.core.headers import trace_context
from flowcatalyst.core.message import (
    Attempt,
    Delivery,
    DispatchMode,
    ErrorKind,
    MessagePointer,
    Outcome,
    Result,
    Settled,
    Severity,
    encode_pointer,
)
from flowcatalyst.core.supervisor import Supervisor
from flowcatalyst.core.tasks import Tasks, uninterrupted
from flowcatalyst.core.warnings import WarningBook, WarningCode
from flowcatalyst.dispatch.sealing import SealError
from flowcatalyst.dispatch.store.platform_contract import PlatformStore
from flowcatalyst.dispatch.tokens import Tokens
from flowcatalyst.queues.contract import Outgoing, Publisher

PROCESS_PATH: Final = "/api/dispatch/process"
TOKEN_SLACK_S: Final = 60.0  # clocks of processes differ
TAKE_WAIT_S: Final = 1.0
LOOK_PERIOD_S: Final = 0.5  # how soon a pool that names another queue is noticed
PUBLISH_LIMIT_S: Final = 30.0  # less than a lease lasts
FIRST_PAUSE_S: Final = 0.5
LONGEST_PAUSE_S: Final = 15.0

log = structlog.get_logger("flowcatalyst.remote")


@dataclass(slots=True, frozen=True)
class RemotePool:
    """A pool whose jobs are delivered by routers elsewhere."""

    queue: str  # that they poll, by its name in the configuration
    most_out: int  # jobs that may be out at a time


class RemotePublisher:
    """Publishes the jobs of all such pools, each queue by a task of its own: a broker that hangs holds up no other."""

    def __init__(
        self,
        store: PlatformStore,
        pools: Callable[[], Mapping[str, RemotePool]],
        publishers: Mapping[str, Publisher],
        tokens: Tokens,
        public_url: str | None,
        queued_limit_s: float,
        clock: Clock,
        warnings: WarningBook,
    ) -> None:
        """`pools` and `publishers` are as they are now whenever they are looked at."""
        self._store = store
        self._pools = pools
        self._publishers = publishers
        self._tokens = tokens
        self._callback = None if public_url is None else f"{public_url.rstrip('/')}{PROCESS_PATH}"
        self._queued_limit_s = queued_limit_s
        self._clock = clock
        self._warnings = warnings
        self._pauses_s: dict[str, float] = {}  # of queues that fail
        self.published = 0

    async def run(self, supervisor: Supervisor) -> None:
        """Until cancelled: one task for each queue that some pool names."""
        tasks = Tasks()
        publishing: dict[str, asyncio.Task[None]] = {}
        try:
            while True:
                for queue in {pool.queue for pool in self._pools().values()}:
                    if queue not in publishing or publishing[queue].done():
                        work = partial(self._keep_publishing, queue)
                        publishing[queue] = supervisor.spawn(tasks, f"publish jobs to {queue}", work)
                await asyncio.sleep(LOOK_PERIOD_S)
        finally:
            await tasks.cancel()

    async def _keep_publishing(self, queue: str) -> None:
        """As long as some pool names the queue."""
        while pools := {code: pool.most_out for code, pool in self._pools().items() if pool.queue == queue}:
            try:
                await self.publish_some(queue, pools, TAKE_WAIT_S)
            except QueueUnavailableError as error:  # of the store, whose own reader tells of it
                log.warning("jobs_not_taken", action="jobs_not_taken", queue=queue, error=str(error))
                self._pause_longer(queue)
            if pause_s := self._pauses_s.get(queue, 0.0):
                await asyncio.sleep(pause_s)

    async def publish_some(self, queue: str, pools: Mapping[str, int], wait_s: float) -> int:
        """Publish what is ready for these pools; how many. Raises `QueueUnavailableError` if it is the store that is
        away: what is published by then is out, and stale when the store is back."""
        if problem := self._why_not(queue):
            self._warn(queue, problem)
            self._pause_longer(queue)
            return 0
        taken = await self._store.take_heads(pools, wait_s)
        if not (deliveries := await self._still_for(queue, taken)):
            return 0
        try:
            pointers = self._pointers(deliveries)
        except SealError as error:
            await self._return(queue, deliveries, str(error))
            return 0
        try:
            async with asyncio.timeout(PUBLISH_LIMIT_S):
                await self._publishers[queue].publish(pointers)
        except InvalidMessageError:
            return await self._publish_each(queue, deliveries, pointers)
        except (QueueUnavailableError, TimeoutError, KeyError) as error:
            await self._return(queue, deliveries, str(error) or f"no answer within {PUBLISH_LIMIT_S:g} s")
            return 0
        await self._hand_over(queue, deliveries)
        return len(deliveries)

    async def _still_for(self, queue: str, taken: Sequence[Delivery]) -> Sequence[Delivery]:
        """Those whose pool still names the queue. The others are PENDING again, for whoever has their pool now: it was
        changed while jobs were waited for, and perhaps nobody reads the queue any more."""
        codes = {code for code, pool in self._pools().items() if pool.queue == queue}
        if moved := [one for one in taken if one.pointer.pool_code not in codes]:
            await uninterrupted(self._store.queue.nack(moved, 0.0))
        return [one for one in taken if one.pointer.pool_code in codes]

    def _why_not(self, queue: str) -> str:
        if self._callback is None:
            return "platform.public_url is not set, so that routers elsewhere could not call back: set it"
        if queue not in self._publishers:
            return "this process has no queue of that name: add it to its queues"
        return ""

    def _pointers(self, deliveries: Sequence[Delivery]) -> list[Outgoing]:
        """What is sent is for who calls back to be told: a pointer has neither payload nor target of its job."""
        tickets = [self._store.ticket_of(delivery) for delivery in deliveries]
        until = self._clock.wall() + self._queued_limit_s + TOKEN_SLACK_S
        return [
            self._pointer(delivery, token, f"{ticket.job}-{ticket.lane}-{ticket.epoch}")  # lanes count for themselves
            for delivery, ticket, token in zip(deliveries, tickets, self._tokens.make(tickets, until), strict=True)
        ]

    def _pointer(self, delivery: Delivery, token: str, deduplication_id: str) -> Outgoing:
        job = delivery.pointer
        group = None if job.dispatch_mode is DispatchMode.IMMEDIATE else job.message_group_id
        assert self._callback is not None, "asked for before"
        pointer = MessagePointer(
            id=job.id,
            mediation_target=self._callback,
            pool_code=job.pool_code,
            auth_token=token,
            message_group_id=group,
            dispatch_mode=job.dispatch_mode,
            headers=dict(trace_context({name.lower(): value for name, value in (job.headers or {}).items()})) or None,
        )
        return Outgoing(encode_pointer(pointer).decode(), group, deduplication_id)

    async def _publish_each(self, queue: str, deliveries: Sequence[Delivery], pointers: Sequence[Outgoing]) -> int:
        """One of them can never be published: it waits for a person, the others go."""
        published = 0
        for place, (delivery, pointer) in enumerate(zip(deliveries, pointers, strict=True)):
            try:
                async with asyncio.timeout(PUBLISH_LIMIT_S):
                    await self._publishers[queue].publish([pointer])
            except InvalidMessageError as error:
                await self._park(queue, delivery, error)
            except (QueueUnavailableError, TimeoutError, KeyError) as error:
                await self._return(queue, deliveries[place:], str(error) or f"no answer within {PUBLISH_LIMIT_S:g} s")
                break
            else:
                await self._hand_over(queue, [delivery])
                published += 1
        return published

    async def _hand_over(self, queue: str, deliveries: Sequence[Delivery]) -> None:
        settled = await uninterrupted(self._store.hand_over(deliveries, self._queued_limit_s))
        self.published += len(deliveries)
        log.debug(
            "jobs_published",
            action="jobs_published",
            queue=queue,
            count=len(deliveries),
            gone=settled.count(Settled.GONE),
        )
        if self._pauses_s.pop(queue, None) is not None:
            self._warnings.end(
                WarningCode.QUEUE_UNAVAILABLE, f"jobs are published to queue {queue} again", _source(queue)
            )

    async def _return(self, queue: str, deliveries: Sequence[Delivery], why: str) -> None:
        """Nothing is lost: they are PENDING again, in their order."""
        self._warn(queue, why)
        delay_s = self._pause_longer(queue)
        await uninterrupted(self._store.queue.nack(deliveries, delay_s))

    async def _park(self, queue: str, delivery: Delivery, error: FlowCatalystError) -> None:
        detail = f"it cannot be published to queue {queue}: {error}"
        outcome = Outcome(Result.ERROR_CONFIG, ErrorKind.NETWORK_ERROR, detail=detail)
        delivery.failures += 1
        delivery.attempt = Attempt(self._clock.wall(), 0.0, outcome)
        await uninterrupted(self._store.queue.nack([delivery], inf, unlock=not delivery.blocks_group))

    def _pause_longer(self, queue: str) -> float:
        self._pauses_s[queue] = min(max(2 * self._pauses_s.get(queue, 0.0), FIRST_PAUSE_S), LONGEST_PAUSE_S)
        return self._pauses_s[queue]

    def _warn(self, queue: str, why: str) -> None:
        text = f"jobs cannot be published to queue {queue}, and wait: {why}"
        self._warnings.add(WarningCode.QUEUE_UNAVAILABLE, Severity.ERROR, text, _source(queue))


def _source(queue: str) -> str:
    """Not that of a queue that is read: whether it can be is another question."""
    return f"jobs for {queue}"
