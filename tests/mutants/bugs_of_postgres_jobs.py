"""Bugs in jobs on PostgreSQL, which no simulation plays: the suites of job stores have to catch them, on a real server.

Some are planted in what a process asks of the database, others as one more step of its tables: a function that is
replaced, or a trigger.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from flowcatalyst.core.message import Delivery
from flowcatalyst.dispatch.store import postgres, postgres_rows
from flowcatalyst.dispatch.store.postgres_migrations import JOBS
from flowcatalyst.dispatch.store.postgres_queue import PostgresJobQueue
from flowcatalyst.queues.postgres.migrations import LANES
from flowcatalyst.storage.postgres import Connection
from flowcatalyst.storage.postgres_migrations import PostgresMigrations
from tests.mutants.mutant import Bugs, Hunter, instead_of, set_everywhere

BUGS: Final = Bugs(Hunter.TEST)
_SUITE: Final = "tests/conformance/postgres_job_store_test.py::TestPostgresJobStore::"
_EPOCHS: Final = "SELECT id, epoch FROM lanes WHERE id = ANY ($1::bigint[])"


def _in_the_database(statements: str) -> None:
    """Planted as one more step."""
    broken = PostgresMigrations(JOBS.part, (*JOBS.steps, statements))
    set_everywhere(postgres, "PARTS", (LANES, broken))


def _made_with(**changes: Any) -> None:
    """What jobs say is lost on the way to their rows."""

    @instead_of(postgres_rows, "job_columns")
    def job_columns(original: Any, jobs: Sequence[Any]) -> Any:
        return original([replace(job, **changes) for job in jobs])


@BUGS.add(
    "a stale receipt of a job counts as one of the present lease",
    test=f"{_SUITE}test_who_no_longer_holds_a_job_changes_nothing",
)
def _() -> None:
    @instead_of(PostgresJobQueue, "_acked")
    async def acked(original: Any, self: Any, connection: Connection, deliveries: Sequence[Delivery]) -> Any:
        lanes = [one.receipt.receipt.lane for one in deliveries]
        epochs = dict(await connection.fetch(_EPOCHS, lanes))
        for one in deliveries:
            held = one.receipt
            fresh = held.receipt._replace(epoch=epochs.get(held.receipt.lane, held.receipt.epoch))
            one.receipt = held._replace(receipt=fresh)
        return await original(self, connection, deliveries)


@BUGS.add(
    "an attempt is written down twice",
    test=f"{_SUITE}test_a_failed_job_says_when_it_is_tried_again_and_what_happened",
)
def _() -> None:
    _in_the_database(
        """CREATE FUNCTION write_again() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
        BEGIN
          NEW.attempt := NEW.attempt + 1000;
          INSERT INTO job_attempts SELECT NEW.*;
          RETURN NULL;
        END $$;
        CREATE TRIGGER twice AFTER INSERT ON job_attempts FOR EACH ROW WHEN (NEW.attempt < 1000)
        EXECUTE FUNCTION write_again()"""
    )


@BUGS.add("the sequence of jobs is ignored", test=f"{_SUITE}test_a_lower_sequence_comes_first")
def _() -> None:
    _made_with(sequence=99)


@BUGS.add("an idempotency key is ignored", test=f"{_SUITE}test_the_same_idempotency_key_makes_one_job")
def _() -> None:
    _made_with(idempotency_key=None)


@BUGS.add(
    "a scheduled job enters at once",
    test=f"{_SUITE}test_a_scheduled_job_comes_when_its_time_has_come_and_holds_up_nobody_before",
)
def _() -> None:
    _made_with(scheduled_for=None)


@BUGS.add(
    "a claim ignores that a group is held",
    test=f"{_SUITE}test_nothing_of_a_held_group_starts_until_it_is_released",
)
def _() -> None:
    @instead_of(PostgresJobQueue, "_ready")
    async def ready(original: Any, self: Any, connection: Connection, number: int, after: str | None) -> Any:
        await connection.execute(
            "UPDATE lanes AS l SET due = NULL FROM holds AS h "
            "WHERE h.queue = l.queue AND h.grp = l.name AND l.owner IS NULL"
        )
        return await original(self, connection, number, after)


@BUGS.add("nothing expires", test=f"{_SUITE}test_whatever_waits_for_too_long_expires_and_its_group_goes_on")
def _() -> None:
    _in_the_database(
        """CREATE OR REPLACE FUNCTION expire_jobs(q integer, wall double precision, most integer) RETURNS integer
        LANGUAGE sql AS 'SELECT 0'"""
    )


@BUGS.add(
    "unfinished jobs are forgotten with those that are finished",
    test=f"{_SUITE}test_finished_jobs_are_forgotten_in_parts_the_oldest_first",
)
def _() -> None:
    @instead_of(postgres, "_drop_finished")
    async def drop(original: Any, connection: Connection, queue: int, before: float, limit: int) -> Any:
        dropped = await original(connection, queue, before, limit)
        await connection.execute("DELETE FROM jobs WHERE created_at < $1", before)
        return dropped


@BUGS.add("a job in hand is acted on", test=f"{_SUITE}test_a_job_in_hand_is_not_acted_on")
def _() -> None:
    _in_the_database(
        """CREATE OR REPLACE FUNCTION is_in_hand(in_lane bigint, place bigint) RETURNS boolean LANGUAGE sql STABLE
        AS 'SELECT false'"""
    )


@BUGS.add(
    "a failed job that lets the next one start stays in its place",
    test=f"{_SUITE}test_the_next_job_starts_when_one_failed_that_lets_it",
)
def _() -> None:
    @instead_of(PostgresJobQueue, "_nacked")
    async def nacked(original: Any, self: Any, connection: Connection, nack: Any, delay_s: float) -> Any:
        return await original(self, connection, nack._replace(unlock=False), delay_s)


@BUGS.add("a parked job comes by itself", test=f"{_SUITE}test_a_parked_job_never_comes_by_itself")
def _() -> None:
    @instead_of(PostgresJobQueue, "_nacked")
    async def nacked(original: Any, self: Any, connection: Connection, nack: Any, delay_s: float) -> Any:
        return await original(self, connection, nack, 0.0)
