"""Routers on other machines: jobs go out as pointers, come back as calls, and are settled by the answer of the attempt.

Here the router is played by the test: what is published is in a queue in memory.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec
import pytest

from flowcatalyst.api.dispatch.process import MAX_BYTES
from flowcatalyst.core.errors import InvalidMessageError, QueueUnavailableError
from flowcatalyst.core.message import MAX_NAME_CHARS, MessagePointer, parse_pointer
from flowcatalyst.core.targets import endpoint_of
from flowcatalyst.dispatch.sealing import new_secret_key
from flowcatalyst.queues.contract import Outgoing, Published
from flowcatalyst.router.breaker import SUCCESSES_TO_CLOSE, WINDOW_CALLS, BreakerState
from tests.api.dispatching import Dispatching, dispatching, on_sqlite
from tests.api.running import Answer, until
from tests.api.strangers_test import stranger
from tests.servers.postgres import PostgresServer

POOLS = "/api/dispatch-pools"
PROCESS = "/api/dispatch/process"
_schemas = count(1)
URL = "http://platform.example:8080/base/"


@dataclass(slots=True)
class Broker:
    """The way into a queue, as far as a platform sees it."""

    sent: list[Outgoing] = field(default_factory=list)
    is_down: bool = False
    refused_group: str = ""

    async def publish(self, messages: list[Outgoing]) -> list[Published]:
        if self.is_down:
            raise QueueUnavailableError("no broker")
        if any(message.group == self.refused_group for message in messages):
            raise InvalidMessageError("this group is too long")
        self.sent += messages
        return [Published("1") for _ in messages]

    async def open(self) -> None: ...

    async def close(self) -> None: ...


@dataclass(slots=True)
class Remote:
    """A platform whose pool FAR is served elsewhere."""

    jobs: Dispatching
    broker: Broker

    async def create(self, name: str, **more: Any) -> str:
        return await self.jobs.create(name, dispatchPoolCode="FAR", **more)

    async def ordered(self, *names: str, **more: Any) -> None:
        for name in names:
            await self.create(name, messageGroup="g", mode="BLOCK_ON_ERROR", **more)

    async def pointer(self, place: int) -> MessagePointer:
        """What was published at this place, when it is."""

        async def is_there() -> bool:
            return len(self.broker.sent) > place

        await until(is_there)
        return parse_pointer(self.broker.sent[place].body)

    async def call_back(self, pointer: MessagePointer, **more: Any) -> Answer:
        headers = {"Authorization": f"Bearer {pointer.auth_token}"} | more
        return await self.jobs.client.post(PROCESS, {"messageId": pointer.id}, headers=headers)


@asynccontextmanager
async def platform_with_remote_pool(folder: Path, **platform: Any) -> AsyncIterator[Remote]:
    usual = {"public_url": URL, "secret_key": new_secret_key()}
    async with dispatching(folder, platform=usual | platform) as jobs:
        broker = Broker()
        jobs.running.app.factory.publishers["far"] = broker  # type: ignore[assignment]
        made = await jobs.client.post(POOLS, {"code": "FAR", "concurrency": 2, "queue": "far"})
        assert made.status == 201, made.text
        yield Remote(jobs, broker)


@pytest.fixture(params=["sqlite", "postgres"])
async def remote(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Remote]:
    platform = {}
    if request.param == "postgres":
        server: PostgresServer = request.getfixturevalue("job_server")
        platform["database_url"] = f"{server.url}?schema=remote_{next(_schemas)}"
    async with platform_with_remote_pool(tmp_path, **platform) as remote:
        yield remote


on_sqlite_only = pytest.mark.parametrize("remote", ["sqlite"], indirect=True)


async def test_a_job_goes_out_as_a_pointer_and_its_attempt_settles_it(remote: Remote) -> None:
    job_id = await remote.create("a", messageGroup="g", mode="BLOCK_ON_ERROR")
    pointer = await remote.pointer(0)
    assert (pointer.id, pointer.pool_code, pointer.message_group_id) == (job_id, "FAR", "g")
    assert pointer.mediation_target == "http://platform.example:8080/base/api/dispatch/process"
    assert (remote.broker.sent[0].group, pointer.payload, pointer.headers) == ("g", msgspec.Raw(), None)
    assert await remote.jobs.status("a") == "QUEUED"
    assert remote.jobs.endpoint.started == []
    answer = await remote.call_back(pointer)
    assert (answer.status, answer.json) == (200, {"ack": True})
    whole = await remote.jobs.whole("a")
    assert (whole["job"]["status"], len(whole["attempts"])) == ("COMPLETED", 1)
    assert remote.jobs.endpoint.started == ["a"]


@on_sqlite_only
async def test_the_pointer_of_a_job_takes_its_trace_along_and_no_other_header(remote: Remote) -> None:
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    await remote.create("a", headers={"TraceParent": parent, "X-Secret": "s"})
    assert (await remote.pointer(0)).headers == {"traceparent": parent}


async def test_one_of_a_group_is_out_at_a_time(remote: Remote) -> None:
    await remote.ordered("a", "b", "c")
    for place, name in enumerate("abc"):
        pointer = await remote.pointer(place)
        assert pointer.id == remote.jobs.ids[name]
        assert len(remote.broker.sent) == place + 1
        await remote.call_back(pointer)
    assert remote.jobs.endpoint.started == ["a", "b", "c"]


async def test_a_failed_attempt_is_the_platforms_to_repeat(remote: Remote) -> None:
    remote.jobs.endpoint.fails("a", 500)
    await remote.ordered("a", "b", maxRetries=1, retryDelaysSeconds=[0.01])
    first = await remote.pointer(0)
    assert (await remote.call_back(first)).json == {"ack": True}
    again = await remote.pointer(1)
    assert again.id == first.id
    assert remote.broker.sent[0].deduplication_id != remote.broker.sent[1].deduplication_id
    assert (await remote.call_back(first)).json == {"ack": True}  # stale: nothing happens
    assert remote.jobs.endpoint.started == ["a"]
    await remote.call_back(again)
    await remote.call_back(await remote.pointer(2))
    assert remote.jobs.endpoint.started == ["a", "a", "b"]


@pytest.mark.parametrize("mode", ["BLOCK_ON_ERROR", "NEXT_ON_ERROR", "IMMEDIATE"])
async def test_no_retry_is_a_repeat_to_the_broker(remote: Remote, mode: str) -> None:
    remote.jobs.endpoint.fails("a", 500, 500)
    await remote.create("a", messageGroup="g", mode=mode, maxRetries=3, retryDelaysSeconds=[0.01])
    for place in range(3):
        assert (await remote.call_back(await remote.pointer(place))).json == {"ack": True}
    assert remote.jobs.endpoint.started == ["a", "a", "a"]
    assert len({one.deduplication_id for one in remote.broker.sent}) == 3  # one that is known is left out


async def test_a_job_that_fails_for_the_last_time_waits_for_a_person(remote: Remote) -> None:
    remote.jobs.endpoint.fails("a", 400)
    await remote.ordered("a", "b")
    assert (await remote.call_back(await remote.pointer(0))).json == {"ack": True}
    assert (await remote.jobs.until("a", "ERROR"))["job"]["nextAttemptAt"] is None
    await remote.jobs.act("a", "retry")
    assert (await remote.pointer(1)).id == remote.jobs.ids["a"]


async def test_at_an_open_circuit_breaker_no_attempt_is_spent_and_the_job_comes_again(remote: Remote) -> None:
    app, endpoint = remote.jobs.running.app, endpoint_of(remote.jobs.body()["targetUrl"])
    await remote.ordered("a", "b")
    breaker = app.breakers.get(endpoint)
    breaker._open(app.clock.monotonic() + 3600)
    assert (await remote.call_back(await remote.pointer(0))).json == {"ack": True}
    assert (remote.jobs.endpoint.started, breaker.rejected) == ([], 1)
    waiting = await remote.jobs.whole("a")
    assert (waiting["job"]["status"], waiting["attempts"]) == ("PENDING", [])
    assert len(remote.broker.sent) == 1  # nothing of its group passes it
    await remote.jobs.client.post(f"/monitoring/circuit-breakers/reset?endpoint={quote(endpoint, safe='')}")
    await remote.jobs.act("a", "retry")
    for place, name in enumerate("ab", 1):
        pointer = await remote.pointer(place)
        assert pointer.id == remote.jobs.ids[name]
        await remote.call_back(pointer)
    assert remote.jobs.endpoint.started == ["a", "b"]
    assert breaker.under_way == 0


async def test_attempts_for_routers_elsewhere_open_and_close_the_circuit_breaker(remote: Remote) -> None:
    app, names = remote.jobs.running.app, [f"j{number}" for number in range(WINDOW_CALLS)]
    breaker = app.breakers.get(endpoint_of(remote.jobs.body()["targetUrl"]))
    for name in names:
        remote.jobs.endpoint.fails(name, 503)
        await remote.create(name)
    for place in range(WINDOW_CALLS):
        await remote.call_back(await remote.pointer(place))
    assert (breaker.state, breaker.under_way, breaker.failing is not None) == (BreakerState.OPEN, 0, True)
    breaker.opened_at -= 3600  # it may be probed
    for place in range(SUCCESSES_TO_CLOSE):
        await remote.create(f"probe{place}")
        await remote.call_back(await remote.pointer(WINDOW_CALLS + place))
    assert (breaker.state, breaker.under_way, breaker.failing) == (BreakerState.CLOSED, 0, None)


async def test_calls_that_come_twice_at_once_make_one_attempt(remote: Remote) -> None:
    gate = remote.jobs.endpoint.hangs("a")
    await remote.ordered("a")
    pointer = await remote.pointer(0)
    calls = [asyncio.create_task(remote.call_back(pointer)) for _ in range(5)]
    while sum(one.done() for one in calls) < 4:  # those that are stale are answered at once
        await asyncio.wait([one for one in calls if not one.done()], return_when=asyncio.FIRST_COMPLETED)
    gate.set()
    assert [(await one).json for one in calls] == [{"ack": True}] * 5
    assert remote.jobs.endpoint.started == ["a"]


async def test_a_job_is_in_progress_while_its_attempt_runs(remote: Remote) -> None:
    gate = remote.jobs.endpoint.hangs("a")
    await remote.ordered("a")
    call = asyncio.create_task(remote.call_back(await remote.pointer(0)))
    await remote.jobs.until("a", "IN_PROGRESS")
    assert (await remote.jobs.act("a", "cancel")).status == 409
    gate.set()
    assert (await call).json == {"ack": True}


async def test_the_attempt_goes_on_when_its_caller_hangs_up(remote: Remote) -> None:
    gate = remote.jobs.endpoint.hangs("a")
    await remote.ordered("a")
    call = asyncio.create_task(remote.call_back(await remote.pointer(0)))
    await remote.jobs.until("a", "IN_PROGRESS")
    call.cancel()
    gate.set()
    await remote.jobs.until("a", "COMPLETED")
    assert remote.jobs.endpoint.started == ["a"]


async def test_a_held_group_is_asked_for_again_later(remote: Remote) -> None:
    await remote.ordered("a")
    pointer = await remote.pointer(0)
    await remote.jobs.client.post("/api/message-groups/g/hold")
    assert (await remote.call_back(pointer)).json == {"ack": False, "delaySeconds": 30.0}
    await remote.jobs.client.post("/api/message-groups/g/release")
    assert (await remote.call_back(pointer)).json == {"ack": True}
    assert remote.jobs.endpoint.started == ["a"]


async def test_a_cancelled_job_is_not_delivered(remote: Remote) -> None:
    await remote.ordered("a", "b")
    pointer = await remote.pointer(0)
    assert (await remote.jobs.act("a", "cancel")).status == 200
    assert (await remote.call_back(pointer)).json == {"ack": True}
    assert remote.jobs.endpoint.started == []
    await remote.call_back(await remote.pointer(1))
    assert remote.jobs.endpoint.started == ["b"]


async def test_an_edited_job_is_delivered_as_it_is_now(remote: Remote) -> None:
    await remote.ordered("a")
    pointer = await remote.pointer(0)
    assert (await remote.jobs.change("a", payload={"name": "edited"})).status == 200
    await remote.call_back(pointer)
    await remote.call_back(await remote.pointer(1))
    assert remote.jobs.endpoint.started == ["edited"]


@on_sqlite_only
@pytest.mark.parametrize(
    ("headers", "words"),
    [
        ({"Authorization": ""}, "brings a token"),
        ({"Authorization": "Basic abc"}, "brings a token"),
        ({"Authorization": "Bearer"}, "not made by this platform"),
        ({"Authorization": "Bearer fcj1.AAAA"}, "not made by this platform"),
    ],
)
async def test_who_has_no_token_is_refused(remote: Remote, headers: dict[str, str], words: str) -> None:
    await remote.ordered("a")
    pointer = await remote.pointer(0)
    (await remote.call_back(pointer, **headers)).assert_problem(401, words)
    assert remote.jobs.endpoint.started == []


@on_sqlite_only
@pytest.mark.parametrize("length", [f"Content-Length: {16 << 20}", "Transfer-Encoding: chunked"])
async def test_who_has_no_token_is_refused_before_the_body_is_read(remote: Remote, length: str) -> None:
    head = f"POST {PROCESS} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer x\r\n{length}\r\n\r\n"
    async with stranger(remote.jobs.running) as client:
        client.send(head.encode())  # nothing of the body ever comes
        status, problem = await client.answer()
    assert (status, "not made by this platform" in problem["detail"]) == (401, True)


@on_sqlite_only
async def test_a_body_that_no_router_sends_is_too_large_even_with_a_token(remote: Remote) -> None:
    await remote.ordered("a")
    headers = {"Authorization": f"Bearer {(await remote.pointer(0)).auth_token}"}
    answer = await remote.jobs.client.post(PROCESS, {"messageId": "x" * MAX_BYTES}, headers=headers)
    assert answer.json["detail"] == "the request body is larger than 16 KiB"
    answer.assert_problem(413, "larger than 16 KiB")
    assert remote.jobs.endpoint.started == []


@on_sqlite_only
async def test_a_call_back_for_a_message_with_the_longest_name_is_not_too_large(remote: Remote) -> None:
    await remote.ordered("a")
    headers = {"Authorization": f"Bearer {(await remote.pointer(0)).auth_token}"}
    body = {"messageId": "\x01" * MAX_NAME_CHARS}
    answer = await remote.jobs.client.post(PROCESS, body, headers=headers)
    answer.assert_problem(401, "for another message")


@on_sqlite_only
async def test_a_token_is_for_its_own_message(remote: Remote) -> None:
    await remote.create("a")
    await remote.create("b")
    one, other = await remote.pointer(0), await remote.pointer(1)
    mixed = msgspec.structs.replace(one, auth_token=other.auth_token)
    (await remote.call_back(mixed)).assert_problem(401, "for another message")
    assert remote.jobs.endpoint.started == []


async def test_a_token_expires(tmp_path: Path) -> None:
    async with platform_with_remote_pool(tmp_path, queued_limit_s=1.0) as remote:
        await remote.ordered("a")
        first = await remote.pointer(0)
        again = await remote.pointer(1)  # nobody called back
        assert first.id == again.id
        assert (await remote.call_back(first)).json == {"ack": True}
        assert remote.jobs.endpoint.started == []
        app = remote.jobs.running.app
        assert app.processing is not None
        app.processing._clock = _LaterClock(app.clock.wall() + 1_000)  # type: ignore[assignment]
        assert (await remote.call_back(again)).json == {"ack": True}
        assert remote.jobs.endpoint.started == []


class _LaterClock:
    def __init__(self, wall: float) -> None:
        self._wall = wall

    def wall(self) -> float:
        return self._wall


@on_sqlite_only
async def test_nothing_is_lost_while_the_broker_is_down(remote: Remote) -> None:
    remote.broker.is_down = True
    await remote.ordered("a", "b")
    warnings = remote.jobs.running.app.warnings

    async def is_warned() -> bool:
        return any("jobs cannot be published to queue far" in one.message for one in warnings.recent())

    await until(is_warned)
    await remote.jobs.until("a", "PENDING")
    remote.broker.is_down = False
    await remote.call_back(await remote.pointer(0))
    await remote.call_back(await remote.pointer(1))
    assert remote.jobs.endpoint.started == ["a", "b"]
    assert all(one.acknowledged for one in warnings.recent() if "cannot be published" in one.message)


@on_sqlite_only
async def test_one_that_no_broker_takes_is_parked_and_the_others_go(remote: Remote) -> None:
    remote.broker.refused_group = "bad"
    remote.broker.is_down = True
    await remote.create("a", messageGroup="bad", mode="BLOCK_ON_ERROR")
    await remote.create("b", messageGroup="good", mode="BLOCK_ON_ERROR")
    remote.broker.is_down = False
    whole = await remote.jobs.until("a", "ERROR")
    assert "cannot be published to queue far: this group is too long" in whole["job"]["lastError"]
    assert (await remote.pointer(0)).id == remote.jobs.ids["b"]


@on_sqlite_only
async def test_the_store_being_away_is_said_and_the_router_asks_again(
    remote: Remote, monkeypatch: pytest.MonkeyPatch
) -> None:
    await remote.ordered("a")
    pointer = await remote.pointer(0)

    async def away(ticket: Any) -> Any:
        raise QueueUnavailableError("the disk is full")

    with monkeypatch.context() as patch:
        store = remote.jobs.running.app.jobs
        assert store is not None
        patch.setattr(store, "claim", away)
        (await remote.call_back(pointer)).assert_problem(503, "disk is full")
    assert (await remote.call_back(pointer)).json == {"ack": True}
    assert remote.jobs.endpoint.started == ["a"]


@on_sqlite
async def test_a_platform_that_does_not_know_its_address_keeps_its_jobs(jobs: Dispatching) -> None:
    await jobs.client.post(POOLS, {"code": "FAR", "concurrency": 2, "queue": "far"})
    await jobs.create("a", dispatchPoolCode="FAR")
    warnings = jobs.running.app.warnings

    async def is_warned() -> bool:
        return any("platform.public_url is not set" in one.message for one in warnings.recent())

    await until(is_warned)
    assert await jobs.status("a") == "PENDING"


@on_sqlite
async def test_a_queue_of_this_process_is_no_queue_for_others(jobs: Dispatching) -> None:
    answer = await jobs.client.post(POOLS, {"code": "FAR", "concurrency": 2, "queue": "default"})
    answer.assert_problem(400, "queue default is in a file of this process")
