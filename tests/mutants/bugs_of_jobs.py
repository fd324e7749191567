"""Bugs of dispatch jobs on their way: how they come into their lanes, are handed out, and are settled."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from math import inf
from sqlite3 import Connection
from typing import Any, Final

from flowcatalyst.core.message import Delivery, Nack, Outcome, Result, Retry, Settled, Terms
from flowcatalyst.dispatch import job as dispatch_job
from flowcatalyst.dispatch.store.job_rows import columns, enter, settle
from flowcatalyst.dispatch.store.sqlite import SqliteJobQueue
from flowcatalyst.queues.embedded import jobs as lanes_and_messages
from flowcatalyst.queues.embedded import lanes as embedded_lanes
from flowcatalyst.queues.embedded import take as embedded_take
from flowcatalyst.queues.embedded.lanes import Receipt
from flowcatalyst.queues.embedded.queue import EmbeddedQueue
from flowcatalyst.queues.embedded.store import EmbeddedStore
from flowcatalyst.router import policy
from flowcatalyst.router.groups import GroupScheduler
from flowcatalyst.router.judge import Judge
from flowcatalyst.router.settler import Settler
from flowcatalyst.storage.sqlite import Request, SqliteWriter
from tests.mutants.mutant import Bugs, Hunter, instead_of, set_everywhere

BUGS: Final = Bugs(Hunter.JOBS)


def without_refresh(act: Callable[[], Any]) -> Any:
    """Do something without working out again what lanes wait for."""
    original = embedded_lanes.refresh_lanes
    set_everywhere(embedded_lanes, "refresh_lanes", lambda *_, **__: None)
    try:
        return act()
    finally:
        set_everywhere(embedded_lanes, "refresh_lanes", original)


# Into their lanes


@BUGS.add("who waits for jobs is not woken by new ones")
def _() -> None:
    @instead_of(EmbeddedQueue, "_after_commit")
    def after_commit(original: Any, self: Any, done: Any) -> None:
        if not done.cancelled():
            done.exception()


@BUGS.add("a job in front of one that waits does not unlock its group")
def _() -> None:
    @instead_of(enter, "_enter")
    def enter_(original: Any, connection: Connection, entering: Any, now: float, wall: float) -> None:
        without_refresh(lambda: original(connection, entering, now, wall))


@BUGS.add("a scheduled job comes into its lane seconds before its time")
def _() -> None:
    @instead_of(enter, "enter_what_is_due")
    def enter_what_is_due(original: Any, connection: Connection, now: float, wall: float) -> float | None:
        next_at: float | None = original(connection, now, wall + 3.0)
        return next_at


@BUGS.add("a scheduled job is forgotten when its time comes while others wait")
def _() -> None:
    @instead_of(enter, "_enter")
    def enter_(original: Any, connection: Connection, entering: Any, now: float, wall: float) -> None:
        original(connection, entering[:1] if any(job.scheduled_for for _, job in entering) else entering, now, wall)


@BUGS.add("the sequence of a job is ignored")
def _() -> None:
    @instead_of(dispatch_job, "position")
    def position(original: Any, sequence: int, number: int) -> int:
        place: int = original(0, number)
        return place


@BUGS.add("what comes into a lease that goes on is a part of it")
def _() -> None:
    @instead_of(lanes_and_messages, "insert")
    def insert(original: Any, connection: Connection, queue: str, rows: Any, wall: float) -> None:
        original(connection, queue, rows, wall)
        connection.executemany("UPDATE messages SET given_back = 0 WHERE seq = ?", [(row.seq,) for row in rows])


@BUGS.add("a key that is known makes another job")
def _() -> None:
    @instead_of(enter, "create")
    def create(original: Any, connection: Connection, jobs: Any, now: float, wall: float) -> Any:
        return original(connection, [replace(job, idempotency_key=None) for job in jobs], now, wall)


# Handed out


@BUGS.add("what is handed out goes on behind a job that has to wait")
def _() -> None:
    set_everywhere(embedded_take, "_up_to_a_gap", list)


@BUGS.add("what is handed out comes in the wrong order")
def _() -> None:
    @instead_of(SqliteJobQueue, "_deliveries")
    def deliveries(original: Any, self: Any, taken: Any, lease_until: float) -> list[Delivery]:
        return list(reversed(original(self, taken, lease_until)))


@BUGS.add("a lease that is over locks its group for ever")
def _() -> None:
    @instead_of(embedded_lanes, "unlock_what_is_due")
    def unlock_what_is_due(original: Any, connection: Connection, queue: str, now: float, delays: str) -> float | None:
        leased = "UPDATE lanes SET due = 9e999 WHERE owner IS NOT NULL AND due <= ?"
        connection.execute(leased, (now,))
        next_due: float | None = original(connection, queue, now, delays)
        return next_due


@BUGS.add("jobs of processes that live are taken for those of dead ones")
def _() -> None:
    @instead_of(EmbeddedStore, "_dead_owners")
    def dead_owners(original: Any, self: Any, connection: Connection) -> list[str]:
        return lanes_and_messages.other_owners(connection, self.owner)


@BUGS.add("an extended lease ends as if it had not been extended")
def _() -> None:
    @instead_of(lanes_and_messages, "extend")
    def extend(original: Any, connection: Connection, receipts: Any, owner: str, until: float) -> Any:
        return [Settled.OK] * len(receipts)


@BUGS.add("a job whose lease ran out is started by who had it")
def _() -> None:
    @instead_of(GroupScheduler, "take")
    def take(original: Any, self: Any) -> Delivery | None:
        delivery: Delivery | None = original(self)
        if delivery is not None:
            delivery.lease_until = 0.0  # as one that has none
        return delivery


@BUGS.add("a process that ends gives back what all others have")
def _() -> None:
    @instead_of(lanes_and_messages, "release")
    def release(original: Any, connection: Connection, owners: Any, now: float, *args: Any, **options: Any) -> None:
        connection.execute("UPDATE lanes SET owner = NULL, leased = 0, due = NULL WHERE owner IS NOT NULL")
        original(connection, owners, now, *args, **options)


# Settled


def _of_the_newest_lease(connection: Connection, receipt: Receipt) -> Receipt:
    row = connection.execute("SELECT epoch FROM lanes WHERE id = ?", (receipt.lane,)).fetchone()
    return receipt if row is None else receipt._replace(epoch=row[0])


@BUGS.add("an ack with the receipt of an older lease is accepted")
def _() -> None:
    @instead_of(lanes_and_messages, "ack")
    def ack(original: Any, connection: Connection, queue: str, receipts: Sequence[Receipt], *args: Any) -> Any:
        return original(connection, queue, [_of_the_newest_lease(connection, one) for one in receipts], *args)


@BUGS.add("a nack with the receipt of an older lease is accepted")
def _() -> None:
    @instead_of(lanes_and_messages, "nack")
    def nack(original: Any, connection: Connection, queue: str, failures: Any, *args: Any, **options: Any) -> Any:
        newest = [(_of_the_newest_lease(connection, receipt), count) for receipt, count in failures]
        return original(connection, queue, newest, *args, **options)


@BUGS.add("a nack that was done already is done and written down again")
def _() -> None:
    @instead_of(lanes_and_messages, "nack")
    def nack(original: Any, *args: Any, **options: Any) -> list[Settled]:
        return [Settled.OK for _ in original(*args, **options)]


@BUGS.add("an ack that came too late completes its job all the same")
def _() -> None:
    @instead_of(settle, "ack")
    def ack(original: Any, connection: Connection, deliveries: Any, now: float, wall: float) -> Any:
        results = original(connection, deliveries, now, wall)
        for delivery in deliveries:
            late = "UPDATE jobs SET status = 'COMPLETED', finished_at = ? WHERE number = ? AND finished_at IS NULL"
            connection.execute(late, (wall, dispatch_job.number_at(delivery.receipt.seq)))
        return results


@BUGS.add("a nack forgets its delay")
def _() -> None:
    @instead_of(lanes_and_messages, "nack")
    def nack(
        original: Any, connection: Connection, queue: str, failures: Any, now: float, delay_s: float, **options: Any
    ) -> Any:
        return original(connection, queue, failures, now, delay_s if delay_s == inf else 0.0, **options)


@BUGS.add("a job that may be passed holds up its group when it failed")
def _() -> None:
    @instead_of(settle, "nack")
    def nack(original: Any, *args: Any, **options: Any) -> Any:
        return original(*args, **{**options, "unlock": False})


@BUGS.add("a job that blocks its group leaves it when it failed")
def _() -> None:
    @instead_of(settle, "nack")
    def nack(original: Any, connection: Connection, deliveries: Any, *args: Any, **options: Any) -> Any:
        failed = any(delivery.attempt is not None for delivery in deliveries)
        return original(connection, deliveries, *args, **{**options, "unlock": options["unlock"] or failed})


@BUGS.add("the attempt that delivered a job is not written down")
def _() -> None:
    @instead_of(settle, "ack")
    def ack(original: Any, connection: Connection, deliveries: Sequence[Delivery], now: float, wall: float) -> Any:
        made = [delivery.attempt for delivery in deliveries]
        for delivery in deliveries:
            delivery.attempt = None
        results = original(connection, deliveries, now, wall)
        for delivery, attempt in zip(deliveries, made, strict=True):
            delivery.attempt = attempt
        return results


@BUGS.add("a late ack forgets the attempt that delivered its job")
def _() -> None:
    @instead_of(Settler, "ends_already")
    def ends_already(original: Any, self: Any, delivery: Delivery) -> bool:
        ends: bool = original(self, delivery)
        if ends:
            delivery.attempt = None
        return ends


@BUGS.add("what failed with its transaction is kept, and done again")
def _() -> None:
    @instead_of(SqliteWriter, "_commit")
    def commit(original: Any, self: Any, requests: Sequence[Request]) -> None:
        done: list[Request] = []

        def remember(request: Request, job: Any, connection: Connection) -> Any:
            result = job(connection)
            done.append(request)
            return result

        jobs = [request.job for request in requests]
        for request, job in zip(requests, jobs, strict=True):
            request.job = partial(remember, request, job)
        try:
            original(self, requests)
        except ValueError:
            for request, job in zip(requests, jobs, strict=True):
                request.job = job
            if len(requests) > 1:
                original(self, [request for request in requests if request in done])
            raise


# Attempts and retries


@BUGS.add(
    "a job's own timeout is not heeded",
    test="tests/integration/dispatch_modes_test.py::test_an_attempt_may_take_as_long_as_its_job_says[sqlite]",
)
def _() -> None:
    @instead_of(SqliteJobQueue, "_deliveries")
    def deliveries(original: Any, self: Any, taken: Any, lease_until: float) -> list[Delivery]:
        found: list[Delivery] = original(self, taken, lease_until)
        for delivery in found:
            assert delivery.terms is not None
            delivery.terms = replace(delivery.terms, timeout_s=dispatch_job.MAX_TIMEOUT_S)
        return found


@BUGS.add("maxRetries counts the first attempt too")
def _() -> None:
    @instead_of(Terms, "delay_after")
    def delay_after(original: Any, self: Terms, failures: int) -> float | None:
        delay_s: float | None = original(self, failures)
        return None if failures >= self.max_retries else delay_s


@BUGS.add("a job is tried once more than maxRetries says")
def _() -> None:
    @instead_of(Terms, "delay_after")
    def delay_after(original: Any, self: Terms, failures: int) -> float | None:
        delay_s: float | None = original(replace(self, max_retries=self.max_retries + 1), failures)
        return delay_s


@BUGS.add("each retry waits as long as the first one")
def _() -> None:
    @instead_of(Terms, "delay_after")
    def delay_after(original: Any, self: Terms, failures: int) -> float | None:
        return None if original(self, failures) is None else self.delays_s[0]


@BUGS.add("a job that asks for patience fails")
def _() -> None:
    @instead_of(Judge, "judge")
    def judge(original: Any, self: Any, delivery: Delivery, outcome: Outcome, *args: Any) -> Any:
        delivery.failures += outcome.result is not Result.SUCCESS and not outcome.counts
        return original(self, delivery, outcome, *args)


@BUGS.add("a job is tried again at once, and its store not told")
def _() -> None:
    @instead_of(policy, "by_its_own_terms")
    def by_its_own_terms(original: Any, *args: Any) -> Any:
        verdict = original(*args)
        return Retry(verdict.delay_s) if isinstance(verdict, Nack) and verdict.delay_s < 1.0 else verdict


@BUGS.add("a job that cannot be delivered as it is is tried again and again")
def _() -> None:
    @instead_of(policy, "by_its_own_terms")
    def by_its_own_terms(original: Any, outcome: Outcome, *args: Any) -> Any:
        return original(replace(outcome, retryable=True), *args)


@BUGS.add("a held group is not locked")
def _() -> None:
    set_everywhere(columns, "LOCK", str(embedded_lanes.Delays.FIRST))


@BUGS.add("a job whose time is over while a router has it in hand is started all the same")
def _() -> None:
    @instead_of(SqliteJobQueue, "_deliveries")
    def deliveries(original: Any, self: Any, taken: Any, lease_until: float) -> list[Delivery]:
        found: list[Delivery] = original(self, taken, lease_until)
        for delivery in found:
            delivery.expires_at = 0.0
        return found
