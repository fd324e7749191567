"""`flowcatalyst.client` on a real router: what it publishes is there once, whatever becomes of the answers."""

import asyncio
import ssl
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trustme
from hypothesis import given
from hypothesis import strategies as st

from flowcatalyst.api.dispatch.jobs import MAX_JOBS
from flowcatalyst.client import (
    AccessError,
    AsyncClient,
    Client,
    ClientError,
    Event,
    Job,
    RefusedError,
    UnavailableError,
    UnexpectedAnswerError,
)
from flowcatalyst.client import client as client_module
from flowcatalyst.core.credentials import hash_key
from flowcatalyst.dispatch.event import NewEvent
from flowcatalyst.dispatch.job import NewJob
from tests.api.dispatching import JOBS, Dispatching, on_sqlite
from tests.api.running import run_router
from tests.support.http_servers import Call, Gate, RawServer, Script, always, in_turn, raw_server, reply

MADE = reply(201, b'{"id": "1", "jobs": 2}')


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How long clients would have paused, had time passed."""
    asked_s: list[float] = []
    monkeypatch.setattr(Client, "_closed_within", lambda client, pause_s: asked_s.append(pause_s))
    return asked_s


async def in_thread(server: RawServer | str, work: Callable[[Client], Any], **options: Any) -> Any:
    """What a sync client does, beside the loop of the server."""

    def run() -> Any:
        with Client(server if isinstance(server, str) else server.url(""), **options) as client:
            return work(client)

    return await asyncio.to_thread(run)


def losing_answers(jobs: Dispatching, count: int) -> Script:
    """Passes requests on to the router, and breaks the connection instead of answering the first ones."""

    async def script(call: Call) -> None:
        answer = await jobs.client.request("POST", call.path, body=call.body)
        if call.number <= count:
            call.reset()
        else:
            await call.send(reply(answer.status, answer.text.encode()))

    return script


async def names_in_store(jobs: Dispatching) -> list[str]:
    answer = await jobs.client.get(f"{JOBS}?limit=100")
    return sorted(one["metadata"]["name"] for one in answer.json["items"])


def named(jobs: Dispatching, name: str, **more: Any) -> dict[str, Any]:
    later = datetime.now(UTC) + timedelta(hours=1)
    return jobs.body(name, metadata={"name": name}, scheduledFor=later, **more)


async def test_a_job_is_durable_when_it_is_published_and_is_delivered(jobs: Dispatching) -> None:
    async with AsyncClient(jobs.running.listening.url) as client:
        made = await client.publish_job(jobs.body("1", messageGroup="order:7", mode="BLOCK_ON_ERROR"))
    assert made.item is not None
    assert (made.status, made.ok, made.repeated, made.item["messageGroup"]) == (201, True, False, "order:7")
    jobs.ids["1"] = made.item["id"]
    await jobs.until("1", "COMPLETED")


@on_sqlite
async def test_a_batch_has_a_result_for_each_in_as_many_requests_as_it_takes(
    jobs: Dispatching, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "MAX_BATCH", 2)
    bodies = [named(jobs, "a"), {"code": "x"}, named(jobs, "b"), named(jobs, "c", idempotencyKey="k")]
    bodies.append(bodies[-1])
    async with raw_server(losing_answers(jobs, 0)) as relay:
        results = await in_thread(relay, lambda client: client.publish_jobs(iter(bodies)))
        assert [len(msgspec.json.decode(call.body)["jobs"]) for call in relay.requests] == [2, 2, 1]
    assert [one.status for one in results] == [201, 400, 201, 201, 200]
    assert results[1].problem == "`targetUrl` is missing"
    assert (results[1].item, results[1].ok, results[4].repeated) == (None, False, True)
    assert await names_in_store(jobs) == ["a", "b", "c"]


@on_sqlite
async def test_a_repeat_after_a_lost_answer_makes_no_second_job(jobs: Dispatching, pauses: list[float]) -> None:
    async with raw_server(losing_answers(jobs, 2)) as relay:
        made = await in_thread(relay, lambda client: client.publish_job(named(jobs, "a")))
        assert (made.status, made.repeated, len(relay.requests), len(pauses)) == (200, True, 3, 2)
        results = await in_thread(relay, lambda client: client.publish_jobs([named(jobs, "b"), named(jobs, "c")]))
        assert [one.status for one in results] == [201, 201]
    assert await names_in_store(jobs) == ["a", "b", "c"]


async def events_in_store(jobs: Dispatching) -> list[str]:
    """By their subjects; each has a job."""
    found = (await jobs.client.get("/api/events?limit=100")).json["items"]
    made = (await jobs.client.get(f"{JOBS}?subscription=orders&limit=100")).json["items"]
    assert sorted(one["metadata"]["eventId"] for one in made) == sorted(one["id"] for one in found)
    return sorted(one["subject"] for one in found)


async def test_a_repeat_after_a_lost_answer_makes_no_second_event_and_no_second_job(
    jobs: Dispatching, pauses: list[float]
) -> None:
    wanted = {"code": "orders", "targetUrl": jobs.server.url("/hook"), "eventTypes": [{"eventTypeCode": "order.*"}]}
    assert (await jobs.client.post("/api/subscriptions", wanted | {"status": "PAUSED"})).status == 201

    def event(name: str, **more: Any) -> dict[str, Any]:
        return {"type": "order.created", "source": "shop", "subject": name, "messageGroup": "g"} | more

    async with raw_server(losing_answers(jobs, 2)) as relay:
        made = await in_thread(relay, lambda client: client.publish_event(event("a")))
        assert (made.status, made.repeated, made.item["jobs"], len(relay.requests)) == (200, True, 1, 3)
    batch = [event("b"), event("c", id="c-1"), event("d", deduplicationId="d-1"), {"type": "order.created"}]
    async with raw_server(losing_answers(jobs, 2)) as relay:
        results = await in_thread(relay, lambda client: client.publish_events(batch))
        assert [one.status for one in results] == [200, 200, 200, 400]
        again = await in_thread(relay, lambda client: client.publish_events(batch[1:3]))
        assert [one.repeated for one in again] == [True, True]
    assert len(pauses) == 4
    assert await events_in_store(jobs) == list("abcd")


@on_sqlite
async def test_what_could_not_be_published_can_be_published_again_and_is_there_once(
    jobs: Dispatching, pauses: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "MAX_BATCH", 2)
    bodies = [named(jobs, name) for name in "abcdef"]
    passed_on = losing_answers(jobs, 0)

    async def breaks(call: Call) -> None:
        await jobs.client.request("POST", call.path, body=call.body)
        call.reset()

    # The first break is that of a connection that was kept, which counts as no attempt.
    async with raw_server(in_turn(passed_on, breaks, breaks, breaks, passed_on)) as relay:
        with pytest.raises(UnavailableError, match="did not take it in 2 attempts") as failed:
            await in_thread(relay, lambda client: client.publish_jobs(bodies), retries=1)
        assert len(failed.value.results) == 2
        assert [one["metadata"]["name"] for one in failed.value.unsent] == list("cdef")
        results = await in_thread(relay, lambda client: client.publish_jobs(failed.value.unsent))
    assert [one.status for one in results] == [200, 200, 201, 201]
    assert await names_in_store(jobs) == list("abcdef")


@on_sqlite
async def test_what_can_never_be_delivered_is_refused_with_the_sentence_of_the_platform(jobs: Dispatching) -> None:
    async with AsyncClient(jobs.running.listening.url) as client:
        with pytest.raises(RefusedError, match="mode BLOCK_ON_ERROR orders the jobs of a group") as refused:
            await client.publish_job(jobs.body(mode="BLOCK_ON_ERROR"))
        assert refused.value.status == 400
        with pytest.raises(ValueError, match="Out of range float"):
            await client.publish_jobs([jobs.body(), jobs.body(payload=float("nan"))])
        with pytest.raises(TypeError, match="set is nothing that JSON can say"):
            await client.publish_job(jobs.body(payload={1}))
    assert (await jobs.client.get(JOBS)).json["items"] == []


async def test_a_router_that_dispatches_no_jobs_says_so_and_keys_are_asked_for(tmp_path: Path) -> None:
    auth = {"mode": "api_key", "admin": [hash_key(b"right")]}
    async with run_router(tmp_path, auth=auth) as running:
        url = running.listening.url
        for options in ({}, {"api_key": "wrong"}):
            with pytest.raises(AccessError):
                await in_thread(url, lambda client: client.publish_job({}), **options)
        with pytest.raises(RefusedError, match=r"set platform\.enabled"):
            await in_thread(url, lambda client: client.publish_job({}), api_key="right")


async def test_events_are_published_one_by_one_and_in_batches() -> None:
    results = b'{"results": [{"status": 201, "event": {"id": "1"}}, {"status": 400, "problem": {"detail": "no type"}}]}'
    async with raw_server(in_turn(always(MADE), always(reply(200, results)))) as server:
        made = await in_thread(server, lambda client: client.publish_event({"type": "order.created", "source": "shop"}))
        assert (made.status, made.item) == (201, {"id": "1", "jobs": 2})
        events: list[dict[str, object]] = [{"type": "order.paid", "source": "shop", "deduplicationId": "o-1"}, {}]
        first, second = await in_thread(server, lambda client: client.publish_events(events))
        assert (first.item, second.problem) == ({"id": "1"}, "no type")
        one, batch = server.requests
    assert (one.path, batch.path) == ("/api/events", "/api/events/batch")
    assert len(msgspec.json.decode(one.body)["deduplicationId"]) == 36
    assert msgspec.json.decode(batch.body)["events"][0] == events[0]


async def test_connections_are_kept_and_one_that_the_server_closed_costs_no_attempt(pauses: list[float]) -> None:
    async def last_words(call: Call) -> None:
        await call.send(MADE)
        call.close()  # without having said so

    async with raw_server(in_turn(always(MADE), always(MADE), last_words, always(MADE))) as server:
        results = await in_thread(server, lambda client: [client.publish_event({}) for _ in range(5)])
        assert [one.status for one in results] == [201] * 5
        assert (server.connections, pauses) == (2, [])


async def test_what_may_be_tried_again_is_and_for_as_long_as_the_platform_asks_for(pauses: list[float]) -> None:
    async def says_nothing(call: Call) -> None:
        call.close()

    busy = reply(429, b'{"detail": "later"}', "Retry-After: 7")
    forever = reply(503, b"", "Retry-After: 99999")
    script = in_turn(always(busy), always(forever), says_nothing, always(reply(502, b"<html>")), always(MADE))
    async with raw_server(script) as server:
        made = await in_thread(server, lambda client: client.publish_event({}))
        assert made.status == 201
        assert len({call.body for call in server.requests}) == 1  # one key
    assert pauses[:2] == [7.0, 60.0]
    assert all(0.4 <= pause_s <= 1.6 for pause_s in pauses[2:])


async def test_one_who_is_closed_while_he_pauses_gives_up_at_once() -> None:
    async with raw_server(always(reply(503, b"", "Retry-After: 60"))) as server:
        client = AsyncClient(server.url(""))
        publishing = asyncio.ensure_future(client.publish_event({}))
        await server.until(lambda server: len(server.requests) == 1)
        await client.close()
        with pytest.raises(UnavailableError, match=r"in 1 attempt, and the client was closed: HTTP 503"):
            await publishing


async def test_an_answer_that_never_ends_ends_at_the_time_allowed(pauses: list[float]) -> None:
    async def drips(call: Call) -> None:
        await call.send(b"HTTP/1.1 201 Created\r\nContent-Length: 1000000\r\n\r\n")
        while True:
            await call.send(b" ")
            await asyncio.sleep(0.01)

    async with raw_server(drips) as server:
        with pytest.raises(UnavailableError, match="in 1 attempt: timed out"):
            await in_thread(server, lambda client: client.publish_event({}), timeout_s=0.2, retries=0)


@pytest.mark.parametrize(
    ("answer", "error", "sentence"),
    [
        (reply(201, b"<html>"), UnexpectedAnswerError, "is there a FlowCatalyst"),
        (reply(301, b"", "Location: /elsewhere"), UnexpectedAnswerError, "answered HTTP 301"),
        (reply(404, b"nothing here"), RefusedError, "HTTP 404"),
        (
            b"HTTP/1.1 201 Created\r\nContent-Length: 50\r\nConnection: close\r\n\r\n{}",
            UnavailableError,
            "ended before",
        ),
    ],
)
async def test_what_is_no_answer_of_ours_is_told(
    pauses: list[float], answer: bytes, error: type[ClientError], sentence: str
) -> None:
    async def script(call: Call) -> None:
        await call.send(answer)
        call.close()

    async with raw_server(script) as server:
        with pytest.raises(error, match=sentence) as failed:
            await in_thread(server, lambda client: client.publish_event({"type": "a"}), retries=0)
        assert [one["type"] for one in failed.value.unsent] == ["a"]


async def test_fewer_results_than_items_is_no_answer_of_ours() -> None:
    async with raw_server(always(reply(200, b'{"results": []}'))) as server:
        with pytest.raises(UnexpectedAnswerError, match="a result for each item"):
            await in_thread(server, lambda client: client.publish_events([{}]))


async def test_over_tls_only_who_has_a_certificate_to_be_trusted_gets_anything(pauses: list[float]) -> None:
    authority = trustme.CA()
    server_tls, trusting = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.create_default_context()
    authority.issue_cert("127.0.0.1").configure_cert(server_tls)
    authority.configure_trust(trusting)
    async with raw_server(always(MADE), tls=server_tls) as server:
        made = await in_thread(server, lambda client: client.publish_event({}), tls=trusting)
        assert made.status == 201
        with pytest.raises(UnavailableError, match="is not to be trusted"):
            await in_thread(server, lambda client: client.publish_event({}))
        assert (len(server.requests), pauses) == (1, [])


async def test_who_is_cancelled_while_he_waits_leaves_the_client_usable() -> None:
    gate = Gate(MADE)
    async with raw_server(gate) as server, AsyncClient(server.url("")) as client:
        waiting = asyncio.ensure_future(client.publish_event({}))
        await server.until(lambda server: len(server.requests) == 1)
        waiting.cancel()
        gate.opened.set()
        assert (await client.publish_event({})).status == 201
        with pytest.raises(asyncio.CancelledError):
            await waiting


@pytest.mark.parametrize("url", ["127.0.0.1:8080", "ftp://h", "http://", "http://h?x=1", "http://u:p@h"])
def test_an_address_that_cannot_be_one_is_refused_at_once(url: str) -> None:
    with pytest.raises(ValueError, match="address"):
        Client(url)


def test_a_key_that_cannot_stand_in_a_header_is_refused_at_once() -> None:
    with pytest.raises(ValueError, match="printable ASCII"):
        Client("http://127.0.0.1", api_key="a\r\nb")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"timeout_s": 0}, "timeout_s has to be a number of seconds above 0, not 0"),
        ({"timeout_s": -1.0}, "timeout_s has to be"),
        ({"timeout_s": float("inf")}, "timeout_s has to be"),
        ({"timeout_s": float("nan")}, "timeout_s has to be"),
        ({"retries": -1}, "retries has to be 0 or more, not -1"),
    ],
)
def test_options_that_cannot_work_are_refused_at_once(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        Client("http://127.0.0.1", **options)


async def test_what_is_no_event_or_no_list_of_them_is_told_in_a_sentence() -> None:
    odd: Any = "x"
    async with AsyncClient("http://127.0.0.1:9") as client:
        with pytest.raises(TypeError, match=r"^the event has to be a dict of its fields, not str$"):
            await client.publish_event(odd)
        with pytest.raises(TypeError, match=r"^the job has to be a dict of its fields, not str$"):
            await client.publish_jobs(odd)
        odd = {"type": "a", "source": "b"}
        with pytest.raises(TypeError, match=r"^publish_events takes a list: publish_event takes one event$"):
            await client.publish_events(odd)


async def test_a_time_without_a_zone_is_refused_in_a_sentence() -> None:
    with pytest.raises(ValueError, match=r"^the time 2026-01-02 03:04:05 has no zone: give it one"):
        await in_thread(
            "http://127.0.0.1:9", lambda client: client.publish_event({"time": datetime(2026, 1, 2, 3, 4, 5)})
        )


async def test_one_who_is_closed_publishes_nothing_more() -> None:
    async with raw_server(always(MADE)) as server:
        client = AsyncClient(server.url(""))
        await client.close()
        with pytest.raises(UnavailableError, match="the client is closed") as failed:
            await client.publish_event({"type": "a"})
        assert [one["type"] for one in failed.value.unsent] == ["a"]
        assert server.requests == []


async def test_an_event_with_an_id_has_a_key_and_gets_no_other() -> None:
    event = {"type": "order.created", "source": "shop", "id": "o-1"}
    async with raw_server(always(MADE)) as server:
        await in_thread(server, lambda client: client.publish_event(event))
        assert msgspec.json.decode(server.requests[0].body) == event


@given(sizes=st.lists(st.integers(1, 700_000), max_size=12))
def test_batches_keep_the_order_and_the_limits(sizes: list[int]) -> None:
    items = [bytes(size) for size in sizes]
    batches = list(client_module._batches(items))
    assert [item for batch in batches for item in batch] == items
    assert all(len(batch) == 1 or len(b",".join(batch)) <= client_module.MAX_BATCH_BYTES for batch in batches)
    assert all(batches)


def test_a_batch_has_as_many_items_as_the_platform_takes() -> None:
    assert [len(one) for one in client_module._batches([b""] * 2001)] == [MAX_JOBS, MAX_JOBS, 1]


@pytest.mark.parametrize(("form", "of_platform"), [(Job, NewJob), (Event, NewEvent)])
def test_the_fields_of_what_is_published_are_those_of_the_platform(form: Any, of_platform: Any) -> None:
    fields = {one.encode_name: one.required for one in msgspec.structs.fields(of_platform)}
    assert set(form.__annotations__) == set(fields)
    assert form.__required_keys__ == {name for name, required in fields.items() if required}
