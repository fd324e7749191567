"""Bugs of what people and housekeeping do to dispatch jobs."""

from sqlite3 import Connection
from typing import Any, Final

from flowcatalyst.dispatch.job import Status, number_at, position
from flowcatalyst.dispatch.store.contract import Change, JobStateError, Retry
from flowcatalyst.dispatch.store.job_rows import act, groups, house, settle
from flowcatalyst.dispatch.store.job_rows.columns import state_of
from flowcatalyst.queues.embedded import jobs as lanes_and_messages
from tests.mutants.bugs_of_jobs import without_refresh
from tests.mutants.mutant import Bugs, Hunter, instead_of

BUGS: Final = Bugs(Hunter.JOBS)


def _place(row: Any) -> int:
    return position(state_of(row).job.sequence, row[0])


# People


@BUGS.add("a retry by a person keeps the failures of before")
def _() -> None:
    @instead_of(act, "_act_on")
    def act_on(original: Any, connection: Connection, row: Any, action: Any, *args: Any) -> None:
        failures = state_of(row).failures
        original(connection, row, action, *args)
        if isinstance(action, Retry):
            connection.execute("UPDATE messages SET failures = ? WHERE seq = ?", (failures, _place(row)))
            connection.execute("UPDATE jobs SET failures = ? WHERE number = ?", (failures, row[0]))


@BUGS.add("a retry by a person waits as long as the job would have")
def _() -> None:
    @instead_of(act, "_act_on")
    def act_on(original: Any, connection: Connection, row: Any, action: Any, *args: Any) -> None:
        found = connection.execute("SELECT visible_at FROM messages WHERE seq = ?", (_place(row),)).fetchone()
        original(connection, row, action, *args)
        if isinstance(action, Retry) and found is not None:
            connection.execute("UPDATE messages SET visible_at = ? WHERE seq = ?", (found[0], _place(row)))
            connection.execute(
                "UPDATE lanes SET due = ? WHERE id = (SELECT lane FROM messages WHERE seq = ?)", (found[0], _place(row))
            )


@BUGS.add("a cancelled job goes on blocking its group")
def _() -> None:
    @instead_of(settle, "end")
    def end(original: Any, connection: Connection, places: Any, status: Status, *args: Any) -> Any:
        if status is Status.CANCELLED:
            return without_refresh(lambda: original(connection, places, status, *args))
        return original(connection, places, status, *args)


@BUGS.add("a cancelled or expired job is still counted")
def _() -> None:
    @instead_of(settle, "end")
    def end(original: Any, connection: Connection, places: Any, *args: Any) -> Any:
        ended = original(connection, places, *args)
        connection.execute(lanes_and_messages.COUNT, {"queue": "jobs", "change": ended})
        return ended


@BUGS.add("a job whose mode is changed stays in the lane of the old one")
def _() -> None:
    @instead_of(act, "_move")
    def move(original: Any, connection: Connection, state: Any, place: int, mode: Any, now: float) -> None:
        """Only its row says so."""


@BUGS.add("a job whose mode is changed waits no longer")
def _() -> None:
    @instead_of(act, "_move")
    def move(original: Any, connection: Connection, state: Any, place: int, mode: Any, now: float) -> None:
        original(connection, state, place, mode, now)
        connection.execute("UPDATE messages SET visible_at = NULL WHERE seq = ?", (place,))


@BUGS.add("a group that a job leaves by its new mode goes on waiting for it")
def _() -> None:
    @instead_of(act, "_move")
    def move(original: Any, connection: Connection, state: Any, place: int, mode: Any, now: float) -> None:
        without_refresh(lambda: original(connection, state, place, mode, now))


@BUGS.add("an edited job is sent where it went before")
def _() -> None:
    @instead_of(act, "_act_on")
    def act_on(original: Any, connection: Connection, row: Any, action: Any, *args: Any) -> None:
        original(connection, row, Change(mode=action.mode) if isinstance(action, Change) else action, *args)


@BUGS.add("a person may change a job that a router has in hand")
def _() -> None:
    @instead_of(act, "_check")
    def check(original: Any, state: Any, action: Any, *, waits: bool) -> None:
        if state.status is not Status.QUEUED:
            original(state, action, waits=waits)


@BUGS.add("a person may not change what waits for a retry")
def _() -> None:
    @instead_of(act, "_check")
    def check(original: Any, state: Any, action: Any, *, waits: bool) -> None:
        original(state, action, waits=waits)
        if state.next_attempt_at is not None:
            raise JobStateError("it waits for its retry")


@BUGS.add("a finished job can be cancelled")
def _() -> None:
    @instead_of(act, "_check")
    def check(original: Any, state: Any, action: Any, *, waits: bool) -> None:
        if state.status is not Status.COMPLETED:
            original(state, action, waits=waits)


# Groups


@BUGS.add("a hold does not stop what is ready")
def _() -> None:
    @instead_of(groups, "hold")
    def hold(original: Any, *args: Any, **options: Any) -> Any:
        return without_refresh(lambda: original(*args, **options))


@BUGS.add("a released group does not go on")
def _() -> None:
    @instead_of(groups, "release")
    def release(original: Any, *args: Any, **options: Any) -> Any:
        return without_refresh(lambda: original(*args, **options))


# Housekeeping


@BUGS.add("a job expires and leaves its message behind")
def _() -> None:
    @instead_of(settle, "end")
    def end(original: Any, connection: Connection, places: Any, status: Status, now: float, wall: float) -> Any:
        if status is not Status.EXPIRED:
            return original(connection, places, status, now, wall)
        rows = [(wall, number_at(place)) for place in places]
        return connection.executemany(
            "UPDATE jobs SET status = 'EXPIRED', finished_at = ? WHERE number = ? AND finished_at IS NULL", rows
        ).rowcount


@BUGS.add("a job that expired is handed out")
def _() -> None:
    @instead_of(house, "expire")
    def expire(original: Any, *args: Any, **options: Any) -> int:
        return 0

    @instead_of(house, "is_over")
    def is_over(original: Any, expires_at: float | None, wall: float) -> bool:
        return False


@BUGS.add("a job expires while a router has it in hand")
def _() -> None:
    @instead_of(house, "expire")
    def expire(original: Any, connection: Connection, limit: int, now: float, wall: float) -> int:
        return int(original(connection, limit, now + 3600.0, wall))


@BUGS.add("jobs expire seconds too early")
def _() -> None:
    @instead_of(house, "expire")
    def expire(original: Any, connection: Connection, limit: int, now: float, wall: float) -> int:
        return int(original(connection, limit, now, wall + 5.0))
