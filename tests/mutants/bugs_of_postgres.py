"""Bugs in the queue on PostgreSQL, which no simulation plays: its suites have to catch them, on a real server.

Each is planted in what a process asks of the database, not in the functions there.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from flowcatalyst.core.message import Settled
from flowcatalyst.queues.postgres import lanes, owners
from flowcatalyst.queues.postgres.lanes import Entry, Receipt
from flowcatalyst.queues.postgres.owners import OwnerWatch
from flowcatalyst.queues.postgres.queue import PostgresQueue
from flowcatalyst.queues.postgres.store import PostgresStore
from flowcatalyst.storage.postgres import Connection
from tests.mutants.mutant import Bugs, Hunter, instead_of

BUGS: Final = Bugs(Hunter.TEST)
_SUITE: Final = "tests/conformance/postgres_test.py::TestPostgres::"
_EPOCHS: Final = "SELECT id, epoch FROM lanes WHERE id = ANY ($1::bigint[])"


@BUGS.add("a stale receipt counts as one of the present lease", test=f"{_SUITE}test_a_batch_of_acks_fails_in_part")
def _() -> None:
    @instead_of(lanes, "ack")
    async def ack(original: Any, connection: Connection, receipts: Sequence[Receipt]) -> list[Settled]:
        epochs = dict(await connection.fetch(_EPOCHS, [one.lane for one in receipts]))
        fresh = [one._replace(epoch=epochs.get(one.lane, one.epoch)) for one in receipts]
        found: list[Settled] = await original(connection, fresh)
        return found


@BUGS.add(
    "a group is not locked while one of its messages is in flight",
    test=f"{_SUITE}test_a_group_in_flight_is_locked_if_and_only_if_that_is_claimed",
)
def _() -> None:
    @instead_of(lanes, "take")
    async def take(original: Any, connection: Connection, *args: Any, **options: Any) -> Any:
        taken = await original(connection, *args, **options)
        unlock = "UPDATE lanes SET owner = NULL, leased = 0 WHERE id = ANY ($1::bigint[])"
        await connection.execute(unlock, [one.lane for one in taken])
        return taken


@BUGS.add(
    "a group stays locked for a message that unlocked it",
    test=f"{_SUITE}test_a_message_that_unlocks_its_group_lets_the_others_pass_and_comes_later",
)
def _() -> None:
    @instead_of(lanes, "nack")
    async def nack(
        original: Any,
        connection: Connection,
        receipts: Sequence[Receipt],
        failures: Sequence[int],
        delay_s: float,
        *,
        unlock: bool = False,
    ) -> Any:
        return await original(connection, receipts, failures, delay_s)


@BUGS.add(
    "the death of an owner is not noticed",
    test=f"{_SUITE}test_after_a_crash_everything_comes_again_in_order_if_that_is_claimed",
)
def _() -> None:
    @instead_of(OwnerWatch, "dead_among")
    def dead_among(original: Any, self: Any, beats: Mapping[int, int], now: float) -> dict[int, int]:
        return {}


@BUGS.add("an owner that lives is taken for dead", test=f"{_SUITE}test_a_lease_that_ends_shows_the_message_again")
def _() -> None:
    @instead_of(PostgresStore, "_renew")
    async def renew(original: Any, self: Any, session: Any) -> None:
        await original(self, session)
        await self.run(lambda connection: owners.forget(connection, [session.owner]))


@BUGS.add(
    "a delay is forgotten",
    test=f"{_SUITE}test_a_message_given_back_with_a_delay_comes_after_it_if_that_is_claimed",
)
def _() -> None:
    @instead_of(PostgresQueue, "_nacked")
    async def nacked(original: Any, self: Any, connection: Connection, nack: Any, delay_s: float) -> Any:
        return await original(self, connection, nack, 0.0)


@BUGS.add("failures are forgotten", test=f"{_SUITE}test_failures_are_handed_out_with_a_message_that_comes_again")
def _() -> None:
    @instead_of(PostgresQueue, "_nacked")
    async def nacked(original: Any, self: Any, connection: Connection, nack: Any, delay_s: float) -> Any:
        return await original(self, connection, nack._replace(failures=[0] * len(nack.failures)), delay_s)


@BUGS.add(
    "what was published together stands in another order",
    test=f"{_SUITE}test_messages_of_a_group_come_in_order_if_that_is_claimed",
)
def _() -> None:
    @instead_of(lanes, "publish")
    async def publish(original: Any, connection: Connection, queue: int, entries: Sequence[Entry]) -> Any:
        return [*reversed(await original(connection, queue, entries[::-1]))]


@BUGS.add(
    "a wake-up between a look and the wait after it is lost",
    test="tests/integration/postgres_queue_test.py::test_a_wake_up_between_a_look_and_the_wait_after_it_is_not_lost",
)
def _() -> None:
    @instead_of(PostgresQueue, "_sleep")
    async def sleep(original: Any, self: Any, changes: int, seconds: float) -> None:
        await original(self, self._changes, seconds)
