"""Publishing: each item gets a key, batches are split, and what may be tried again is, under the same keys."""

import json
import math
import ssl
import threading
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from http import HTTPStatus
from http.client import HTTPException
from itertools import count
from types import TracebackType
from typing import Any, Final, NamedTuple, Self

from flowcatalyst.client.connections import Answer, Connections
from flowcatalyst.client.results import (
    AccessError,
    ClientError,
    RefusedError,
    Result,
    UnavailableError,
    UnexpectedAnswerError,
)
from flowcatalyst.core.clock import IdSource, SystemClock

MAX_BATCH: Final = 1000  # items, which is what the platform takes
MAX_BATCH_BYTES: Final = 1_000_000  # less than the 1 MiB that many a proxy takes
TIMEOUT_S: Final = 30.0
RETRIES: Final = 5
FIRST_PAUSE_S: Final = 0.2  # doubled each time
LONGEST_PAUSE_S: Final = 10.0
LONGEST_ASKED_PAUSE_S: Final = 60.0  # that Retry-After may ask for

_TRIED_AGAIN: Final = frozenset({408, 425, 429, 500, 502, 503, 504})


class _Resource(NamedTuple):
    path: str
    one: str  # what an item is called in results
    many: str  # and in a batch
    key: str  # the field that keeps a repeat from making a second one
    own_id: str | None = None  # another field that does so, where the sender gives it


_JOBS: Final = _Resource("/api/dispatch-jobs", "job", "jobs", "idempotencyKey")
_EVENTS: Final = _Resource("/api/events", "event", "events", "deduplicationId", own_id="id")


class Client:
    """Publishes to one platform. Any number of threads may use one; it keeps connections open until `close`.

    A request without an answer that counts (none in time, 429, 5xx) is repeated up to `retries` times, under the same
    idempotency keys: those that are not given are made here, but for events with an `id`, which is their key. So a
    repeat after a lost answer makes no second job.
    """

    def __init__(
        self,
        url: str,
        *,
        api_key: str | None = None,
        headers: Mapping[str, str] | None = None,
        timeout_s: float = TIMEOUT_S,
        retries: int = RETRIES,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        if not (timeout_s > 0 and math.isfinite(timeout_s)):
            raise ValueError(f"timeout_s has to be a number of seconds above 0, not {timeout_s}")
        if retries < 0:
            raise ValueError(f"retries has to be 0 or more, not {retries}")
        clock = SystemClock()
        sent = {"Content-Type": "application/json", "Accept": "application/json", **(headers or {})}
        if api_key is not None:
            sent["X-API-Key"] = api_key
        if not all(one.isascii() and one.isprintable() for pair in sent.items() for one in pair):
            raise ValueError("the API key and headers may have printable ASCII characters only")
        self._connections = Connections(url, sent, timeout_s, tls, clock)
        self._retries = retries
        self._ids = IdSource(clock)
        self._closed = threading.Event()

    def publish_job(self, job: Mapping[str, object]) -> Result:
        """Durable when this returns. Raises `RefusedError` if it can never be delivered as it is."""
        return self._publish(_JOBS, job)

    def publish_jobs(self, jobs: Iterable[Mapping[str, object]]) -> list[Result]:
        """A result for each, in their order; one that is refused is no error of the others.

        They are sent in their order, in as many requests as it takes. A `ClientError` tells which were not.
        """
        return self._publish_all(_JOBS, jobs)

    def publish_event(self, event: Mapping[str, object]) -> Result:
        """Durable with its jobs when this returns; `item["jobs"]` says how many. Raises `RefusedError`."""
        return self._publish(_EVENTS, event)

    def publish_events(self, events: Iterable[Mapping[str, object]]) -> list[Result]:
        """As `publish_jobs`."""
        return self._publish_all(_EVENTS, events)

    def close(self) -> None:
        """A call that pauses before its next attempt, or has not sent all of its parts, fails at once."""
        self._closed.set()
        self._connections.close()

    @property
    def closed(self) -> bool:
        return self._closed.is_set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _publish(self, resource: _Resource, given: Mapping[str, object]) -> Result:
        item = self._with_key(resource, given)
        try:
            answer = self._post(resource.path, _encoded(item))
            return Result(answer.status, _object(answer))
        except ClientError as error:
            error.unsent = [item]
            raise

    def _publish_all(self, resource: _Resource, given: Iterable[Mapping[str, object]]) -> list[Result]:
        if isinstance(given, Mapping):
            raise TypeError(f"publish_{resource.many} takes a list: publish_{resource.one} takes one {resource.one}")
        items = [self._with_key(resource, one) for one in given]
        encoded = [_encoded(item) for item in items]  # all, before any is sent: a mistake is one of the whole call
        results: list[Result] = []
        for batch in _batches(encoded):
            body = b'{"%b":[%b]}' % (resource.many.encode(), b",".join(batch))
            try:
                found = _object(self._post(f"{resource.path}/batch", body)).get("results")
                if not isinstance(found, list) or len(found) != len(batch):
                    raise UnexpectedAnswerError(f"{self._connections.url} did not answer with a result for each item")
                results += [_result(one, resource.one) for one in found]
            except ClientError as error:
                error.results, error.unsent = results, items[len(results) :]
                raise
        return results

    def _with_key(self, resource: _Resource, given: Mapping[str, object]) -> dict[str, Any]:
        if not isinstance(given, Mapping):
            raise TypeError(f"the {resource.one} has to be a dict of its fields, not {type(given).__name__}")
        item = dict(given)
        has_id = resource.own_id is not None and item.get(resource.own_id) is not None
        if item.get(resource.key) is None and not has_id:
            item[resource.key] = self._ids.new_id()
        return item

    def _post(self, path: str, body: bytes) -> Answer:
        if self.closed:
            raise UnavailableError("the client is closed: make another one")
        for attempt in count(1):
            asked_s = 0.0
            try:
                answer = self._connections.post(path, body)
            except ssl.SSLCertVerificationError as error:
                raise UnavailableError(f"{self._connections.url} is not to be trusted: {error}") from error
            except (OSError, HTTPException) as error:
                why = str(error) or type(error).__name__
            else:
                if answer.status not in _TRIED_AGAIN:
                    return self._checked(answer)
                why = _detail(answer)
                after = answer.headers.get("Retry-After", "")
                asked_s = min(float(after), LONGEST_ASKED_PAUSE_S) if after.isdecimal() else 0.0
            ceiling_s = min(FIRST_PAUSE_S * 2 ** (attempt - 1), LONGEST_PAUSE_S)
            pause_s = max(asked_s, ceiling_s * (0.5 + self._ids.rng.random() / 2))
            if attempt > self._retries or self._closed_within(pause_s):
                closed = ", and the client was closed" if self.closed else ""
                tries = "1 attempt" if attempt == 1 else f"{attempt} attempts"
                raise UnavailableError(f"{self._connections.url} did not take it in {tries}{closed}: {why}")
        raise AssertionError  # a count has no end

    def _closed_within(self, pause_s: float) -> bool:
        """Pause, unless somebody closes the client meanwhile."""
        return self._closed.wait(pause_s)

    def _checked(self, answer: Answer) -> Answer:
        if answer.status in (HTTPStatus.OK, HTTPStatus.CREATED):
            return answer
        if answer.status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
            raise AccessError(_detail(answer), answer.status)
        if HTTPStatus.BAD_REQUEST <= answer.status < HTTPStatus.INTERNAL_SERVER_ERROR:
            raise RefusedError(_detail(answer), answer.status)
        raise UnexpectedAnswerError(f"{self._connections.url} answered {_detail(answer)}, which no FlowCatalyst does")


def _encoded(item: Mapping[str, object]) -> bytes:
    return json.dumps(item, ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=_as_text).encode()


def _as_text(value: object) -> str:
    if isinstance(value, datetime):
        if value.utcoffset() is None:
            raise ValueError(f"the time {value} has no zone: give it one, as datetime.now(UTC) does")
        return value.isoformat()
    raise TypeError(f"{type(value).__name__} is nothing that JSON can say")


def _batches(encoded: list[bytes]) -> Iterator[list[bytes]]:
    """In their order, none of more items or bytes than a request may have; a larger item is alone."""
    batch: list[bytes] = []
    size = 0
    for item in encoded:
        if batch and (len(batch) == MAX_BATCH or size + len(item) > MAX_BATCH_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(item)
        size += len(item) + 1
    if batch:
        yield batch


def _object(answer: Answer) -> dict[str, Any]:
    try:
        found = json.loads(answer.body)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise UnexpectedAnswerError("the answer is not a JSON object: is there a FlowCatalyst at this address?")
    return found


def _result(one: dict[str, Any], name: str) -> Result:
    problem = one.get("problem")
    return Result(int(one["status"]), one.get(name), None if problem is None else str(problem.get("detail")))


def _detail(answer: Answer) -> str:
    """The sentence of a problem, or the status."""
    try:
        return str(_object(answer)["detail"])
    except (ClientError, KeyError):
        return f"HTTP {answer.status}"
