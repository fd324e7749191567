"""What people do to the jobs and groups of a PostgreSQL database."""

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from flowcatalyst.core.errors import QueueUnavailableError
from flowcatalyst.dispatch.job import JobState, Status, encode_headers
from flowcatalyst.dispatch.store import postgres_rows, postgres_search
from flowcatalyst.dispatch.store.contract import (
    RECALL_LOCK_S,
    Acted,
    Action,
    Cancel,
    Change,
    Filter,
    InHandError,
    JobStateError,
    Recall,
    Retry,
    UnknownJobError,
    in_hand,
    in_words,
    not_to_be_retried,
)
from flowcatalyst.dispatch.store.postgres_columns import stored
from flowcatalyst.storage.postgres import Connection

_ACT: Final = "SELECT act_on_jobs($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)"
_DONE: Final = "done"


async def act(connection: Connection, queue: int, wall: float, job_id: str, action: Action, actor: str) -> JobState:
    number = await postgres_rows.number_of(connection, job_id)
    (outcome,) = await _act_on(connection, queue, wall, [number], action, actor)
    if outcome != _DONE:
        raise _refusal(job_id, outcome)
    return await postgres_rows.find(connection, job_id)


async def act_on_all(
    connection: Connection,
    queue: int,
    wall: float,
    which: Filter,
    action: Action,
    actor: str,
    limit: int,
    cursor: int | None,
) -> Acted:
    """In a transaction of its caller, on a connection that walks indexes."""
    found = await postgres_search.find_numbers(connection, which, limit, cursor)
    if not found.numbers:
        return Acted(0, 0, (), found.before)
    await connection.execute("SELECT lock_jobs($1)", found.numbers)
    matching = await postgres_search.match(connection, which, found.numbers)  # some may have changed before we had them
    numbers = [number for number in found.numbers if number in matching]
    outcomes = await _act_on(connection, queue, wall, numbers, action, actor) if numbers else []
    done = sum(outcome == _DONE for outcome in outcomes)
    taken = [number for number, outcome in zip(numbers, outcomes, strict=True) if outcome == Status.QUEUED]
    states = await postgres_rows.states_of(connection, taken)
    ids = tuple(states[number].job.id for number in taken)
    return Acted(done, len(outcomes) - done, ids, found.before)


async def _act_on(
    connection: Connection, queue: int, wall: float, numbers: Sequence[int], action: Action, actor: str
) -> Sequence[str]:
    """What came of it for each job."""
    match action:
        case Retry():
            what, change = "retry", Change()
        case Cancel():
            what, change = "cancel", Change()
        case Change():
            what, change = "change", action
    note = None if action == Change() else in_words(action)
    outcomes: Sequence[str] = await connection.fetchval(
        _ACT,
        queue,
        numbers,
        what,
        wall,
        stored(actor),
        note,
        change.mode,
        None if change.target is None else stored(change.target),
        None if change.content_type is None else stored(change.content_type),
        None if change.headers is None else encode_headers(change.headers),
        change.payload,
    )
    return outcomes


def _refusal(job_id: str, outcome: str) -> Exception:
    match outcome:
        case "UNKNOWN":
            return UnknownJobError(f"there is no job {job_id}")
        case "UNGROUPED":
            return JobStateError(f"job {job_id} has no messageGroup: it can only be IMMEDIATE")
        case "BUSY":
            return QueueUnavailableError(f"job {job_id} is being changed by somebody else: try again")
        case Status.QUEUED:
            return InHandError(in_hand(job_id))
        case Status.PENDING:
            return JobStateError(not_to_be_retried(job_id, outcome))
    return JobStateError(f"job {job_id} is {outcome}")


_RECALL: Final = "SELECT asked, until, is_busy FROM recall_lanes(lanes_to_recall($1, $2, $3, $4), $5)"


async def recall(
    connection: Connection, queue: int, jobs: Sequence[str], group: str | None, subscription: str | None
) -> Recall[datetime]:
    """Raises `QueueUnavailableError` if somebody else keeps some of them locked."""
    name = None if group is None else stored(group)
    code = None if subscription is None else stored(subscription)
    if code is not None:  # what is in hand of it is found by who has it in hand
        await connection.execute("SELECT wait_for_takes()")
    row = await connection.fetchrow(_RECALL, queue, [stored(job) for job in jobs], name, code, RECALL_LOCK_S)
    if row["is_busy"]:
        raise QueueUnavailableError("these jobs are being changed by somebody else: try again")
    return Recall(tuple(row["asked"]), row["until"])


async def is_answered(connection: Connection, lanes: Sequence[int]) -> bool:
    answered: bool = await connection.fetchval("SELECT recalls_answered($1)", lanes)
    return answered


async def end_recall(connection: Connection, queue: int, recall: Recall[datetime]) -> None:
    await connection.execute("SELECT end_recall($1, $2, $3)", queue, recall.lanes, recall.until)


async def set_paused(connection: Connection, queue: int, subscription: str, *, paused: bool) -> None:
    await connection.execute("SELECT set_paused($1, $2, $3)", queue, stored(subscription), paused)


async def settle_pauses(connection: Connection, queue: int, limit: int) -> int:
    """Raises `QueueUnavailableError` if all that is left is what somebody else keeps locked."""
    settled, is_busy = await connection.fetchrow("SELECT settled, is_busy FROM settle_pauses($1, $2)", queue, limit)
    if is_busy and not settled:
        raise QueueUnavailableError("jobs of a subscription are being changed by somebody else: try again")
    count: int = settled
    return count
