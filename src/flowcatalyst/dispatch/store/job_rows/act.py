"""What people do to jobs, one by one and all that a filter names."""

import sqlite3
from typing import Final

from flowcatalyst.core.message import DispatchMode
from flowcatalyst.dispatch.job import FINISHED, JobState, Status, encode_headers, position
from flowcatalyst.dispatch.store.contract import (
    Acted,
    Action,
    Cancel,
    Change,
    Filter,
    InHandError,
    JobStateError,
    Retry,
    UnknownJobError,
    in_hand,
    in_words,
    not_to_be_retried,
)
from flowcatalyst.dispatch.store.job_rows.columns import (
    LOCK,
    OUT,
    QUEUE,
    Row,
    refresh,
    row_by_id,
    state_of,
    state_to_act_on,
)
from flowcatalyst.dispatch.store.job_rows.look import find
from flowcatalyst.dispatch.store.job_rows.settle import end
from flowcatalyst.dispatch.store.job_rows.walk import rows_of
from flowcatalyst.queues.embedded import lanes
from flowcatalyst.queues.embedded.lanes import encode


def act(
    connection: sqlite3.Connection, job_id: str, action: Action, actor: str, now: float, wall: float
) -> JobState | UnknownJobError | JobStateError:
    """What the job is then, or why not: an error that is raised here would undo what shares the transaction."""
    lanes.unlock_what_is_due(connection, QUEUE, now, LOCK)  # a lease that is over keeps nobody from acting
    try:
        _act_on(connection, row_by_id(connection, job_id, now), action, actor, now, wall)
    except (UnknownJobError, JobStateError) as error:
        return error
    return find(connection, job_id, now)


def act_on_all(
    connection: sqlite3.Connection,
    which: Filter,
    action: Action,
    actor: str,
    limit: int,
    cursor: int | None,
    now: float,
    wall: float,
) -> Acted:
    lanes.unlock_what_is_due(connection, QUEUE, now, LOCK)
    rows, end_of_part = rows_of(connection, which, limit, cursor, now)
    refused: list[JobStateError] = []
    in_hand: list[str] = []
    for row in rows:
        try:
            _act_on(connection, row, action, actor, now, wall)
        except JobStateError as error:
            refused.append(error)
            if isinstance(error, InHandError):
                in_hand.append(state_of(row).job.id)
    return Acted(len(rows) - len(refused), len(refused), tuple(in_hand), end_of_part)


_RETRY: Final = "UPDATE jobs SET status = 'PENDING', failures = 0, next_attempt_at = NULL WHERE number = ?"
_SHOW: Final = "UPDATE messages SET visible_at = NULL, failures = 0, failed_at = NULL WHERE seq = ?"
_CHANGE: Final = """
    UPDATE jobs SET mode = ifnull(:mode, mode), target = ifnull(:target, target),
      content_type = ifnull(:content_type, content_type), headers = ifnull(:headers, headers),
      payload = ifnull(:payload, payload)
    WHERE number = :number"""
_REMEMBER: Final = "INSERT INTO actions (job, at, actor, action) VALUES (?, ?, ?, ?)"
_MESSAGE: Final = "SELECT lane, visible_at FROM messages WHERE seq = ?"


def _act_on(connection: sqlite3.Connection, row: Row, action: Action, actor: str, now: float, wall: float) -> None:
    """Raises `JobStateError` before it has changed anything."""
    number, state = row[0], state_to_act_on(row)
    place = position(state.job.sequence, number)
    _, visible_at = connection.execute(_MESSAGE, (place,)).fetchone() or (None, None)
    _check(state, action, waits=row[28] == OUT or (visible_at is not None and visible_at > now))
    match action:
        case Cancel():
            end(connection, [place], Status.CANCELLED, now, wall)
        case Retry():
            connection.execute(_RETRY, (number,))
            connection.execute(_SHOW, (place,))
            lane = lanes.one(connection, _MESSAGE, (place,))
            _make_receipts_stale(connection, lane)
            refresh(connection, [lane], now)
        case Change(mode=mode, target=target, payload=payload, content_type=content_type, headers=headers):
            values = {"mode": mode, "target": target, "payload": payload, "content_type": content_type}
            encoded = None if headers is None else encode_headers(headers)
            connection.execute(_CHANGE, {**values, "headers": encoded, "number": number})
            _move(connection, state, place, mode or state.job.mode, now)
    if action != Change():
        connection.execute(_REMEMBER, (number, wall, actor, in_words(action)))


def _check(state: JobState, action: Action, *, waits: bool) -> None:
    job_id, status = state.job.id, state.status
    if status in FINISHED:
        raise JobStateError(f"job {job_id} is {status}")
    if status is Status.QUEUED:
        raise InHandError(in_hand(job_id))
    if isinstance(action, Retry) and status is not Status.ERROR and not waits:
        raise JobStateError(not_to_be_retried(job_id, status))
    if isinstance(action, Change) and action.mode not in (None, DispatchMode.IMMEDIATE) and state.job.group is None:
        raise JobStateError(f"job {job_id} has no messageGroup: it can only be IMMEDIATE")


_ADD_OWN_LANE: Final = """
    INSERT INTO lanes (id, queue, grp, pool, turn, leased_to)
    SELECT :new, :queue, :grp, pool, :new, seq FROM messages WHERE seq = :seq"""
_MOVE_TO_OWN_LANE: Final = "UPDATE messages SET lane = :new, given_back = 0 WHERE seq = :seq"
_ADD_GROUP_LANE: Final = """
    INSERT INTO lanes (id, queue, name, grp, pool, turn)
    SELECT :new, :queue, :grp, :grp, pool, :new FROM messages
    WHERE seq = :seq AND NOT EXISTS (SELECT 1 FROM lanes WHERE queue = :queue AND name = :grp)"""
# What comes into a lease that goes on is no part of it.
_MOVE_TO_GROUP: Final = """
    UPDATE messages SET lane = l.id, given_back = iif(messages.seq <= l.leased_to, l.epoch, 0)
    FROM lanes AS l WHERE l.queue = :queue AND l.name = :grp AND messages.seq = :seq"""
_MARK_AGAIN: Final = """
    UPDATE messages SET given_back = given_back + 1 FROM lanes AS l
    WHERE l.id = :lane AND l.owner IS NULL AND messages.lane = l.id AND messages.seq <= l.leased_to
    AND messages.given_back = l.epoch"""
_WAS_OUT: Final = "SELECT 1 FROM lanes WHERE id = ? AND owner IS NULL AND out_until IS NOT NULL"
_MAKE_STALE: Final = "UPDATE lanes SET epoch = epoch + 1 WHERE id = :lane AND owner IS NULL"


def _move(connection: sqlite3.Connection, state: JobState, place: int, mode: DispatchMode, now: float) -> None:
    """To where its mode has a job: in the lane of its group, or in one of its own."""
    found = connection.execute(_MESSAGE, (place,)).fetchone()
    if found is None:
        return  # its time has not come
    lane, visible_at = found
    _make_receipts_stale(connection, lane)
    if mode is state.job.mode:
        if connection.execute(_WAS_OUT, (lane,)).fetchone() is not None:
            refresh(connection, [lane], now)
        return
    waits = state.status is Status.ERROR or visible_at is not None
    group = None if mode is DispatchMode.IMMEDIATE else state.job.group
    move = {"queue": QUEUE, "grp": encode(group), "seq": place, "new": lanes.new_numbers(connection, 1, now)}
    if group is None or (mode is DispatchMode.NEXT_ON_ERROR and waits):
        statements = _ADD_OWN_LANE, _MOVE_TO_OWN_LANE
    else:
        statements = _ADD_GROUP_LANE, _MOVE_TO_GROUP
    for statement in statements:
        connection.execute(statement, move)
    now_in = lanes.one(connection, _MESSAGE, (place,))
    refresh(connection, {lane, now_in}, now)


def _make_receipts_stale(connection: sqlite3.Connection, lane: int) -> None:
    """Those of a lease that ended unnoticed: what its router sent may not be what is to be sent now."""
    connection.execute(_MARK_AGAIN, {"lane": lane})
    connection.execute(_MAKE_STALE, {"lane": lane})
