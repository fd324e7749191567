"""What a router elsewhere calls back for: one attempt at a job that is out, and what follows from it.

The verdict is in the store when this answers. So whatever the attempt came to, the router's part is done: the store
owns the retries, and publishes the job again when it is due.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from math import inf
from typing import Final

import structlog

from flowcatalyst.core.clock import Clock
from flowcatalyst.core.errors import LocalShortageError, QueueUnavailableError
from flowcatalyst.core.message import Ack, Capabilities, Delivery, Nack, Settled, Told
from flowcatalyst.core.outage_log import OutageLog
from flowcatalyst.core.tasks import Tasks
from flowcatalyst.dispatch.store.platform_contract import PlatformStore, Refused
from flowcatalyst.dispatch.tokens import InvalidTokenError, Permit, Tokens
from flowcatalyst.queues.recalls import RecallableQueue
from flowcatalyst.router import policy
from flowcatalyst.router.breaker import Breakers, BreakerState
from flowcatalyst.router.judge import Judge
from flowcatalyst.router.limits import PoolLimits
from flowcatalyst.router.pool_tools import PoolTools
from flowcatalyst.router.stats import PoolStats

WAIT_S: Final = 30.0  # before a job of a held group is asked for again
DRAIN_S: Final = 30.0  # how long a stop waits for attempts
FIRST_PAUSE_S: Final = 0.1
LONGEST_PAUSE_S: Final = 2.0
SETTLE_S: Final = 30.0  # how long a verdict is offered to a store that is away
MAX_JUDGES: Final = 1000
RECALL_WAIT_S: Final = 0.5

log = structlog.get_logger("flowcatalyst.processing")


@dataclass(slots=True, frozen=True)
class Answer:
    """To the router that called back."""

    ack: bool
    delay_s: float | None = None


DONE: Final = Answer(ack=True)
LATER: Final = Answer(ack=False, delay_s=WAIT_S)


class Processing:
    """Attempts for routers elsewhere. Each goes on to its end, whether or not its caller is still there."""

    def __init__(
        self,
        store: PlatformStore,
        tokens: Tokens,
        tools: PoolTools,
        limits_of: Callable[[str], PoolLimits],
        breakers: Callable[[], Breakers],
        at_work: Callable[[], bool] = lambda: False,
    ) -> None:
        """`breakers`: of the engine of this process, and `at_work`: whether that engine answers recalls."""
        self._store = store
        self._tokens = tokens
        self._tools = tools
        self._limits_of = limits_of
        self._breakers = breakers
        self._at_work = at_work
        self._clock: Clock = tools.clock
        self._tasks = Tasks()
        self._working: set[asyncio.Task[None]] = set()
        self._judges: dict[str, Judge] = {}
        self._source = _SettledHere(store.queue.name, store.queue.capabilities)
        self.in_progress: set[str] = set()  # ids of jobs
        self._closed = False

    def permit_of(self, token: str) -> Permit:
        """Raises `InvalidTokenError`. Whether it is for the message that was sent with it, `process` says."""
        return self._tokens.read(token)

    async def process(self, permit: Permit, message_id: str) -> Answer:
        """Raises `InvalidTokenError`, or `QueueUnavailableError` if the store is away or this process stops."""
        ticket, until = permit
        if ticket.job != message_id:
            raise InvalidTokenError("this token is for another message")
        if until <= self._clock.wall():
            return DONE  # it was published anew, or will be: this one is of no use
        if self._closed:
            raise QueueUnavailableError("this process is about to stop: ask again")
        answered: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()

        async def work() -> None:
            try:
                claimed = await self._store.claim(ticket)
                answer = await self._attempt(claimed) if isinstance(claimed, Delivery) else _refusal(claimed)
            except BaseException as error:
                if not answered.done():
                    known = isinstance(error, QueueUnavailableError)
                    answered.set_exception(error if known else QueueUnavailableError("the attempt was cut: ask again"))
                if not isinstance(error, QueueUnavailableError):
                    raise
            else:
                if not answered.done():
                    answered.set_result(answer)

        answered.add_done_callback(_seen)
        task = self._tasks.spawn(work(), f"process {message_id}")
        self._working.add(task)
        task.add_done_callback(self._working.discard)
        return await asyncio.shield(answered)

    async def close(self) -> None:
        """Let attempts in flight end, for a while. What is cut then is delivered again."""
        self._closed = True
        if self._working:
            await asyncio.wait(self._working, timeout=DRAIN_S)
        await self._tasks.cancel()

    async def answer_recalls(self) -> None:
        """In a process without an engine at work, which would answer: what we have is in flight, or about to be out."""
        queue = self._store.queue
        assert isinstance(queue, RecallableQueue), "the queue of a job store"
        outage = OutageLog(self._clock, log, "recall_failed", "recall_recovered")
        while True:
            try:
                idle = not self._at_work()
                leases = await queue.recalled(RECALL_WAIT_S) if idle else []
                if idle:
                    outage.succeeded()
                if leases and not self._at_work():
                    await queue.returned(leases)
                if self._at_work():
                    await asyncio.sleep(RECALL_WAIT_S)
            except QueueUnavailableError as error:
                outage.failed(error)
                await asyncio.sleep(RECALL_WAIT_S)

    async def _attempt(self, delivery: Delivery) -> Answer:
        job, terms = delivery.pointer.id, delivery.terms
        assert terms is not None, "a job brings its terms"
        pool = delivery.pool = delivery.pointer.pool_code or ""
        delivery.source, limits = self._source, self._limits_of(pool)
        delivery.earlier = max(delivery.earlier, delivery.failures)
        delivery.tries, began = 1, self._clock.monotonic()
        breaker = self._breakers().get(self._tools.endpoint_of(delivery.pointer.mediation_target))
        probe_at = breaker.admit(began)
        if probe_at is not None:  # no attempt is spent: it is published again when its endpoint may be probed
            delivery.tries = 0
            return await self._settle(delivery, Nack(probe_at - began), unlock=False)
        judge, admitted = self._judge_of(pool), True
        self.in_progress.add(job)
        try:
            judge.note_start(delivery)
            try:
                outcome = await self._tools.mediator.attempt(delivery, min(terms.timeout_s, breaker.timeout_s or inf))
            except LocalShortageError as shortage:  # there was no attempt
                judge.no_attempt(delivery, shortage)
                return await self._settle(delivery, Nack(policy.SHORTAGE_PAUSE_S), unlock=False)
            except Exception as error:
                outcome = judge.crashed(error)
            outcome = policy.by_the_rule_of_a_pool(outcome, limits) if outcome.status != 200 else outcome
            now, admitted = self._clock.monotonic(), False
            breaker.record(outcome.trips_breaker, now, began)
            if outcome.retryable:
                breaker.note_failure(now, outcome.detail)
            elif breaker.state is BreakerState.CLOSED:
                breaker.failing = None
            verdict = judge.judge(delivery, outcome, limits, now - began)
            assert isinstance(verdict, Ack | Nack), "what a job's own terms lead to"
            return await self._settle(delivery, verdict, unlock=not delivery.blocks_group)
        except asyncio.CancelledError:
            await self._give_back(delivery)
            raise
        finally:
            self.in_progress.discard(job)
            if admitted:
                breaker.release(began)

    async def _settle(self, delivery: Delivery, verdict: Ack | Nack, *, unlock: bool) -> Answer:
        """Offer the verdict until the store has it, or the job is ours no more: then somebody delivers it again."""
        queue, pause_s = self._store.queue, FIRST_PAUSE_S
        give_up_at = self._clock.monotonic() + SETTLE_S
        while True:
            try:
                if isinstance(verdict, Ack):
                    (settled,) = await queue.ack([delivery])
                else:
                    (settled,) = await queue.nack([delivery], verdict.delay_s, unlock=unlock)
                why = "its lane is busy"
            except QueueUnavailableError as error:
                settled, why = Settled.FAILED, str(error)
            if settled is not Settled.FAILED:
                return DONE
            if self._clock.monotonic() >= give_up_at or not queue.still_ours(delivery):
                raise QueueUnavailableError(f"the verdict could not be kept: {why}")
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    async def _give_back(self, delivery: Delivery) -> None:
        """Its attempt was cut: whether the endpoint got it is unknown."""
        delivery.attempt = None
        log.warning("attempt_cut", action="attempt_cut", message=delivery.pointer.id, verdict="nack")
        with suppress(QueueUnavailableError):
            await self._store.queue.nack([delivery], 0.0)

    def _judge_of(self, pool: str) -> Judge:
        if pool not in self._judges:
            if len(self._judges) >= MAX_JUDGES:
                self._judges.clear()
            self._judges[pool] = Judge(pool, PoolStats(), self._tools)
        return self._judges[pool]


class _SettledHere:
    """As who judges an attempt sees the store. Verdicts are settled above."""

    def __init__(self, name: str, capabilities: Capabilities) -> None:
        self.name = name
        self.capabilities = capabilities

    def ack(self, delivery: Delivery, done: Callable[[], None] | None = None) -> None:
        raise NotImplementedError

    def nack(self, delivery: Delivery, delay_s: float, *, unlock: bool = False, told: Told = None) -> None:
        raise NotImplementedError

    def still_ours(self, delivery: Delivery) -> bool:
        return True


def _refusal(refused: Refused) -> Answer:
    """What is stale is somebody else's by now, or nobody's: the pointer has done its work."""
    return LATER if refused is Refused.WAITS else DONE


def _seen(answered: "asyncio.Future[Answer]") -> None:
    """Its caller may be gone."""
    if not answered.cancelled():
        answered.exception()
