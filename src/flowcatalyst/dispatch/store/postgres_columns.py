"""Jobs as the functions of the database take them: a list for each column.

The driver encodes all that a statement takes at once, on the loop. So what all jobs have in common, which is most of
the jobs of one event, is given once, and so is a payload that several share; the statement spreads them.
"""

import asyncio
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from flowcatalyst.dispatch.job import Job, encode_headers

JOBS_A_TURN: Final = 500  # whose columns are made before others on the loop have their turn

_ESCAPE: Final = "\x1b"
_TYPES: Final = (
    *("text",) * 7,  # id, kind, code, target, content type, headers, group
    "integer",  # sequence
    *("text",) * 2,  # mode, pool
    "double precision",  # timeout
    "integer",  # retries
    "text",  # delays
    *("double precision",) * 2,  # scheduled, expires
    *("text",) * 2,  # idempotency key, metadata
    "double precision",  # created
    "bytea",  # payload
    "text",  # subscription
)
_ID, _KEY, _PAYLOAD = 0, 15, 18


def stored(text: str) -> str:
    """PostgreSQL takes no NUL: it is written as two characters."""
    if "\0" in text or _ESCAPE in text:
        return text.replace(_ESCAPE, _ESCAPE + "1").replace("\0", _ESCAPE + "0")
    return text


def stored_or_none(text: str | None) -> str | None:
    return None if text is None else stored(text)


def restored(text: str) -> str:
    return text.replace(_ESCAPE + "0", "\0").replace(_ESCAPE + "1", _ESCAPE) if _ESCAPE in text else text


def mark(name: str, value: str) -> str:
    """What stands for an entry of metadata before the database hashes it."""
    return msgspec.json.encode((name, value)).decode()


def arguments(first: int) -> str:
    """The columns of jobs in a call of `make_jobs` or `accept_events`: `job_columns` gives its parameters from `first`
    on."""
    spread_out = [spread(first + place, kind, first) for place, kind in enumerate(_TYPES)]
    payloads, marked = f"${first + _PAYLOAD}::bytea[]", first + len(_TYPES)
    which = spread(marked + 2, "integer", first)
    shared = f"ARRAY(SELECT ({payloads})[n] FROM unnest({which}) AS n)"
    spread_out[_PAYLOAD] = f"CASE WHEN ${marked + 2}::integer[] IS NULL THEN {payloads} ELSE {shared} END"
    return ", ".join([*spread_out, f"${marked}", f"${marked + 1}"])


def spread(number: int, kind: str, ids: int) -> str:
    """A parameter that `once` made, for all whose ids are another parameter."""
    count = f"cardinality(${ids}::text[])"
    filled = f"array_fill((${number}::{kind}[])[1], ARRAY[{count}])"
    return f"CASE WHEN cardinality(${number}::{kind}[]) < {count} THEN {filled} ELSE ${number}::{kind}[] END"


def once(column: list[Any]) -> list[Any]:
    """A single value if it is the same for all."""
    return column[:1] if column.count(column[0] if column else None) == len(column) else column


async def job_columns(jobs: Sequence[Job]) -> tuple[list[Any] | None, ...]:
    """What `arguments` stands for: columns, marks of metadata, and which payload each has if some share one."""
    columns: list[list[Any]] = [[] for _ in _TYPES]
    marked: list[int] = []
    marks: list[str] = []
    for begin in range(0, len(jobs), JOBS_A_TURN):
        if begin:
            await asyncio.sleep(0)
        some = jobs[begin : begin + JOBS_A_TURN]
        for column, more in zip(columns, _columns(some), strict=True):
            column += more
        entries = [(n, entry) for n, job in enumerate(some, begin + 1) for entry in job.metadata.items()]
        marked += [n for n, _ in entries]
        marks += [mark(*entry) for _, entry in entries]
    columns[_PAYLOAD], which = _shared(columns[_PAYLOAD])
    given: list[list[Any] | None] = [
        column if place in (_ID, _PAYLOAD) else once(column) for place, column in enumerate(columns)
    ]
    if given[_KEY] in ([], [None]):
        given[_KEY] = None
    return (*given, marked, marks, which)


def _columns(jobs: Sequence[Job]) -> tuple[list[Any], ...]:
    return (
        [stored(job.id) for job in jobs],
        [job.kind.value for job in jobs],
        [stored(job.code) for job in jobs],
        [stored(job.target) for job in jobs],
        [stored(job.content_type) for job in jobs],
        [encode_headers(job.headers) if job.headers else "[]" for job in jobs],
        [stored_or_none(job.group) for job in jobs],
        [job.sequence for job in jobs],
        [job.mode.value for job in jobs],
        [stored(job.pool) for job in jobs],
        [job.terms.timeout_s for job in jobs],
        [job.terms.max_retries for job in jobs],
        [_array(job.terms.delays_s) for job in jobs],
        [job.scheduled_for for job in jobs],
        [job.expires_at for job in jobs],
        [stored_or_none(job.idempotency_key) for job in jobs],
        [msgspec.json.encode(job.metadata).decode() if job.metadata else "{}" for job in jobs],
        [job.created_at for job in jobs],
        [job.payload for job in jobs],
        [stored_or_none(job.subscription) for job in jobs],
    )


def _shared(payloads: list[bytes | None]) -> tuple[list[bytes | None], list[int] | None]:
    """Each payload once, and which of them each job has, counted from 1; None: each has its own.

    Those of one event are the same object: to compare what they say would take longer.
    """
    places: dict[int, int] = {}
    which = [places.setdefault(id(payload), len(places) + 1) for payload in payloads]
    if len(places) == len(payloads):
        return payloads, None
    firsts = dict(zip(which, payloads, strict=True))  # in the order of their places
    return list(firsts.values()), once(which)


def _array(delays_s: Sequence[float]) -> str:
    return "{" + ",".join(map(repr, delays_s)) + "}"
