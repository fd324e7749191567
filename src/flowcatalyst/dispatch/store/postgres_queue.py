"""The jobs of a PostgreSQL database as a queue."""

import asyncio
from collections.abc import Mapping, Sequence
from functools import lru_cache, partial
from math import isinf
from typing import Any, Final, NamedTuple

from flowcatalyst.core.errors import QueueUnavailableError
from flowcatalyst.core.message import Delivery, DispatchMode, MessagePointer, Settled, Terms
from flowcatalyst.dispatch.stamp import JobStamp, LeasedGroups, SecretsOf, no_secrets
from flowcatalyst.dispatch.store import postgres_rows
from flowcatalyst.dispatch.store.platform_contract import Refused, Ticket
from flowcatalyst.dispatch.store.postgres_columns import restored, stored
from flowcatalyst.dispatch.store.postgres_rows import headers_of
from flowcatalyst.queues.postgres import lanes
from flowcatalyst.queues.postgres.lanes import Ready, Receipt, Taken
from flowcatalyst.queues.postgres.owners import Session
from flowcatalyst.queues.postgres.queue import POLL_INTERVAL_S, Held, OwedNack, PostgresQueue
from flowcatalyst.queues.postgres.store import RECALLS, PostgresStore
from flowcatalyst.queues.recalls import Lease, RecalledLeases
from flowcatalyst.queues.sharing import LANE_SHARE, MAX_CODES
from flowcatalyst.storage.postgres import Connection

RECALL_POLL_S: Final = 1.0
HAND_OVER_TRIES: Final = 5  # where somebody else keeps a lane locked
_LOOK = "SELECT pools, turns, due_in_s FROM look_for_jobs($1, $2, $3, $4)"
_TAKE = """
    SELECT lane, seq, epoch, receives, failures, grp, attempts, id, target, pool, message_group, mode, content_type,
      headers, timeout_s, max_retries, delays, due_at, expires_at, payload, subscription, group_position, delivered
    FROM take_jobs($1, $2, $3, $4, $5, $6, $7)"""
_TAKE_FIRSTS = """
    SELECT lane, seq, epoch, receives, failures, grp, attempts, id, target, pool, message_group, mode, content_type,
      headers, timeout_s, max_retries, delays, due_at, expires_at, payload, subscription, group_position, delivered
    FROM take_first_jobs($1, $2, $3, $4, $5, $6)"""
_CLAIM = """
    SELECT outcome, lane, seq, epoch, receives, failures, grp, attempts, id, target, pool, message_group, mode,
      content_type, headers, timeout_s, max_retries, delays, due_at, expires_at, payload, subscription, group_position,
      delivered
    FROM claim_job($1, $2, $3, $4, $5, $6, $7)"""
_HAND_OVER = "SELECT handed, busy FROM hand_over($1, $2, $3, $4)"
_ACK = "SELECT stale, busy FROM ack_jobs($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)"
_NACK = "SELECT held, busy FROM nack_jobs($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16)"


class LeasedJob(NamedTuple):
    """A job as `take_jobs` hands it out."""

    lane: int
    seq: int
    epoch: int
    receives: int
    failures: int
    group: str | None  # that it is ordered in
    attempts: int
    id: str
    target: str
    pool: str
    message_group: str | None
    mode: str
    content_type: str
    headers: str
    timeout_s: float
    max_retries: int
    delays: list[float]
    due_at: float
    expires_at: float | None
    payload: bytes | None
    subscription: str | None
    position: int | None
    delivered: int | None  # of its group: the position of the last one

    @property
    def receipt(self) -> Receipt:
        return Receipt(self.lane, self.seq, self.epoch)


class PostgresJobQueue(PostgresQueue):
    """The jobs of a database as a queue. What is acked is completed; with each settlement goes its attempt."""

    _is_dated = False  # they may be scheduled for later, or parked: their figures tell
    _hurries = False  # what waits for a person waits in the same lanes: jobs are retried one by one, in their store

    def __init__(self, store: PostgresStore) -> None:
        super().__init__(store, postgres_rows.QUEUE)
        self.recalls = RecalledLeases()
        self.secrets_of: SecretsOf = no_secrets  # until somebody has a catalog
        self._groups = LeasedGroups()
        store.on_notice[RECALLS] = self.recalls.ring

    async def ack(self, deliveries: Sequence[Delivery]) -> list[Settled]:
        results = await super().ack(deliveries)
        self._groups.settled(deliveries)
        return results

    async def nack(self, deliveries: Sequence[Delivery], delay_s: float, *, unlock: bool = False) -> list[Settled]:
        results = await super().nack(deliveries, delay_s, unlock=unlock)
        self._groups.settled(deliveries)
        return results

    async def hurry(self, delivery: Delivery) -> bool:
        return False

    async def recalled(self, wait_s: float) -> Sequence[Lease]:
        """The notice comes at once; looking now and then is for those that are lost."""
        loop = asyncio.get_running_loop()
        until = loop.time() + wait_s
        while True:
            news, session = self.recalls.news, self.store.session
            if session is None:
                leases = []  # what we had is free
            else:
                leases = await self.store.run(partial(lanes.recalled, owner=session.owner))
            self.recalls.note(leases, loop.time())
            if leases or (left_s := until - loop.time()) <= 0:
                return leases
            await self.recalls.wait(news, min(left_s, RECALL_POLL_S))

    def is_recalled(self, delivery: Delivery) -> bool:
        receipt = delivery.receipt.receipt
        return self.recalls.have(receipt.lane, receipt.epoch)

    async def returned(self, leases: Sequence[Lease]) -> None:
        await self.store.run(partial(lanes.answer_recalls, leases=leases))
        self.recalls.ring()

    async def _ready(self, connection: Connection, number: int, after: str | None) -> Ready:
        return lanes.ready_of(await connection.fetchrow(_LOOK, number, after, MAX_CODES, self._clock.wall()))

    async def _leased(
        self, connection: Connection, number: int, owner: int, claim: int, wanted: dict[str, int]
    ) -> Sequence[Taken]:
        pools, limits = list(wanted), list(wanted.values())
        rows = await connection.fetch(_TAKE, number, owner, claim, pools, limits, LANE_SHARE, self._clock.wall())
        return [LeasedJob(*row) for row in rows]

    # Jobs for routers on other machines

    async def take_heads(self, pools: Mapping[str, int], wait_s: float) -> list[Delivery]:
        limits = {stored(code): limit for code, limit in pools.items() if limit > 0}
        loop = asyncio.get_running_loop()
        give_up_at = loop.time() + wait_s
        while True:
            changes = self._changes
            session = await self.store.owner()
            await self._pay_nacks()
            number = await self.store.number_of(self.queue)
            ready = await self.store.run(partial(self._ready, number=number, after=None))
            taken: list[Delivery] = []
            if not limits.keys().isdisjoint(ready.pools) or len(ready.pools) >= MAX_CODES:
                taken = await self._take(session, partial(self._leased_firsts, limits=limits))
            left_s = give_up_at - loop.time()
            if taken or left_s <= 0:
                return taken
            if not self.store.is_announced:
                await self.store.announce()
            else:
                pause_s = POLL_INTERVAL_S if ready.due_in_s is None else min(POLL_INTERVAL_S, ready.due_in_s + 0.001)
                await self._sleep(changes, min(left_s, pause_s))

    async def _leased_firsts(
        self, connection: Connection, number: int, owner: int, claim: int, limits: Mapping[str, int]
    ) -> Sequence[Taken]:
        codes, most = list(limits), list(limits.values())
        rows = await connection.fetch(_TAKE_FIRSTS, number, owner, claim, codes, most, self._clock.wall())
        return [LeasedJob(*row) for row in rows]

    async def hand_over(self, deliveries: Sequence[Delivery], seconds: float) -> list[Settled]:
        """No lease ends by itself here: what could not be handed over is nacked, now or when the database is back."""
        results = [Settled.FAILED] * len(deliveries)
        try:
            for _ in range(HAND_OVER_TRIES):
                left = [place for place, result in enumerate(results) if result is Settled.FAILED]
                found = await self._handed_over([deliveries[place] for place in left], seconds)
                for place, result in zip(left, found, strict=True):
                    results[place] = result
                if Settled.FAILED not in found:
                    break
        finally:
            if failed := [one for one, result in zip(deliveries, results, strict=True) if result is Settled.FAILED]:
                await self.nack(failed, 0.0)
        return results

    async def _handed_over(self, deliveries: Sequence[Delivery], seconds: float) -> list[Settled]:
        held: list[Held] = [delivery.receipt for delivery in deliveries]
        lane_ids, epochs = [one.receipt.lane for one in held], [one.receipt.epoch for one in held]
        owner = held[0].session.owner  # what was taken together is of one session
        handed, busy = await self.store.run(
            lambda connection: connection.fetchrow(_HAND_OVER, lane_ids, epochs, owner, seconds)
        )
        return lanes.nacked(len(held), handed, busy)

    async def claim(self, ticket: Ticket) -> Delivery | Refused:
        """Raises `QueueUnavailableError` also where somebody else keeps its lane locked, or our session has ended."""
        outcome = ""

        async def lease(connection: Connection, number: int, owner: int, claim: int) -> Sequence[Taken]:
            nonlocal outcome
            wall = self._clock.wall()
            row = await connection.fetchrow(_CLAIM, owner, claim, stored(ticket.job), *ticket[1:], wall)
            outcome = row[0]
            return [LeasedJob(*row[1:])] if outcome == "claimed" else []

        taken = await self._take(await self.store.owner(), lease)
        if taken:
            return taken[0]
        if outcome in ("stale", "waits"):
            return Refused(outcome)
        raise QueueUnavailableError(f"job {ticket.job} cannot be had at the moment: ask again")

    def _deliveries(self, taken: Sequence[Any], session: Session) -> list[Delivery]:
        return [self._delivery(one, session) for one in taken]

    def _delivery(self, one: LeasedJob, session: Session) -> Delivery:
        group, subscription = one.message_group, one.subscription
        leased = None
        if one.position is not None and group is not None:
            leased = self._groups.of(group, one.delivered or 0)
        stamp = None
        if leased is not None or subscription is not None:
            stamp = JobStamp(leased, None if subscription is None else restored(subscription), self.secrets_of)
        return Delivery(
            self._broker_id(one.seq),
            Held(one.receipt, session),
            one.payload if one.payload is not None else "",
            None if one.group is None else restored(one.group),
            one.receives,
            0.0,
            one.failures,
            terms=_terms(one.timeout_s, one.max_retries, tuple(one.delays)),
            due_at=one.due_at,
            expires_at=one.expires_at or 0.0,
            position=one.position or 0,
            stamp=stamp,
            pointer=MessagePointer(
                id=restored(one.id),
                mediation_target=restored(one.target),
                pool_code=restored(one.pool),
                message_group_id=None if group is None else restored(group),
                dispatch_mode=DispatchMode(one.mode),
                content_type=restored(one.content_type),
                headers=dict(headers_of(one.headers)) or None,
            ),
            earlier=one.attempts,
            is_raw=one.payload is not None,
        )

    async def _acked(self, connection: Connection, deliveries: Sequence[Delivery]) -> list[Settled]:
        receipts = lanes.columns([delivery.receipt.receipt for delivery in deliveries])
        attempts = postgres_rows.attempt_columns([delivery.attempt for delivery in deliveries])
        positions = [delivery.position or None for delivery in deliveries]
        stale, busy = await connection.fetchrow(_ACK, *receipts, self._clock.wall(), *attempts, positions)
        return lanes.acked(len(deliveries), stale, busy)

    async def _nacked(self, connection: Connection, nack: OwedNack, delay_s: float) -> list[Settled]:
        receipts = lanes.columns([one.receipt for one in nack.held])
        attempts = postgres_rows.attempt_columns(nack.attempts)
        next_at = None if isinf(nack.delay_s) else nack.asked_at + nack.delay_s
        how = (nack.failures, float(delay_s), nack.unlock, nack.asked_at, next_at)
        positions = [position or None for position in nack.positions] or [None] * len(nack.held)
        held, busy = await connection.fetchrow(_NACK, *receipts, *how, *attempts, positions)
        return lanes.nacked(len(nack.held), held, busy)


@lru_cache(1000)
def _terms(timeout_s: float, max_retries: int, delays_s: tuple[float, ...]) -> Terms:
    return Terms(timeout_s, max_retries, delays_s)
