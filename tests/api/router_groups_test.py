"""/monitoring/groups: a group that stands still is seen wherever its first message is, and can be made to move."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from flowcatalyst.control import acting, stored_messages
from flowcatalyst.control.audit import Actor
from flowcatalyst.control.pool_settings import RetrySettings
from flowcatalyst.control.view import RouterView
from flowcatalyst.queues.inspection import StoredMessage
from flowcatalyst.router.pauses import PauseKind
from tests.api.running import Answer, Running, on_idle_router, run_router, until
from tests.support.http_servers import Call, Gate, RawServer, always, raw_server, reply

GROUPS = "/monitoring/groups"


@pytest.fixture
async def impatient(tmp_path: Path) -> AsyncIterator[Running]:
    """A failure goes to its queue at once, for 30 s."""
    async with run_router(tmp_path, retry=RetrySettings(backoff_s=[])) as running:
        yield running


async def blocked(router: Running, *names: str, group: str = "g", target: str | None = None, **more: Any) -> None:
    """Messages of a group whose first one fails and is back in its queue."""
    nacked = router.app.router.pools["DEFAULT-POOL"].stats.nacked
    for name in names:
        sent = {"id": name, "mediationTarget": target or router.receiver("server-error"), "messageGroupId": group}
        await router.client.post("/api/messages", sent | more)

    async def is_back() -> bool:
        depth, stats = await router.app.queues["default"].depth(), router.app.router.pools["DEFAULT-POOL"].stats
        return stats.nacked > nacked and not len(router.app.tracker) and depth is not None and not depth.leased

    await until(is_back)


async def listed(router: Running, query: str = "") -> list[dict[str, Any]]:
    answer = await router.client.get(f"{GROUPS}{query}")
    assert answer.status == 200, answer.text
    items: list[dict[str, Any]] = answer.json["items"]
    return items


async def act(router: Running, group: str, what: str) -> Answer:
    return await router.client.post(f"{GROUPS}/{quote(group, safe='')}/{what}")


async def test_a_group_whose_head_waits_in_its_queue_is_listed_with_all_that_is_known(impatient: Running) -> None:
    await blocked(impatient, "m-1", "m-2", "m-3")
    [one] = await listed(impatient, "?blocked=true")
    assert one["group"] == "g"
    assert (one["pool"], one["queue"], one["state"]) == ("DEFAULT-POOL", "default", "BLOCKED")
    assert one["head"]["id"] == "m-1"
    assert (one["head"]["where"], one["head"]["failures"]) == ("IN_QUEUE", 1)
    assert one["head"]["endpoint"] == impatient.receiver("server-error")
    assert (one["lastAnswer"]["status"], one["lastAnswer"]["detail"]) == (500, "HTTP 500")
    assert one["lastAnswer"]["excerpt"]
    assert 0 < one["nextAttemptInMs"] <= 30_000
    assert one["blockedForMs"] > 0
    assert (one["waitingBehind"], one["waitingBehindExact"]) == (2, True)
    assert one["waitsFor"].startswith("Message m-1 was nacked to queue default and is due again in ")


async def test_a_blocked_group_is_known_after_a_restart(tmp_path: Path) -> None:
    retry = RetrySettings(backoff_s=[])
    async with run_router(tmp_path, retry=retry) as before:
        await blocked(before, "m-1", "m-2")
    async with run_router(tmp_path, retry=retry) as after:
        [one] = await listed(after, "?blocked=true")
        assert (one["group"], one["state"], one["head"]["failures"]) == ("g", "BLOCKED", 1)
        target = before.receiver("server-error")
        assert (one["queue"], one["head"]["id"], one["head"]["endpoint"]) == ("default", "m-1", target)
        assert one["waitsFor"].startswith("Its first message, m-1, failed 1 time and is due again in ")
        for query in ("queue=default", f"endpoint={quote(target)}", "pool=DEFAULT-POOL"):
            assert len(await listed(after, f"?blocked=true&{query}")) == 1
        for query in ("queue=high", "endpoint=https://other.example/"):
            assert await listed(after, f"?blocked=true&{query}") == []
        assert one["waitingBehind"] == 1
        assert 0 < one["nextAttemptInMs"] <= 30_000


async def test_the_longest_blocked_come_first_and_pages_go_on_where_they_ended(impatient: Running) -> None:
    for number in range(5):
        await blocked(impatient, f"m-{number}", group=f"g{number}")
    assert [one["group"] for one in await listed(impatient, "?blocked=true")] == ["g0", "g1", "g2", "g3", "g4"]
    seen, cursor = [], ""
    for _ in range(3):
        page = (await impatient.client.get(f"{GROUPS}?blocked=true&limit=2{cursor}")).json
        seen += [one["group"] for one in page["items"]]
        cursor = f"&cursor={page['next']}"
    assert seen == ["g0", "g1", "g2", "g3", "g4"]
    assert page["next"] is None


async def test_groups_can_be_filtered(impatient: Running) -> None:
    await blocked(impatient, "m-1", group="orders:1")
    await blocked(impatient, "m-2", group="users:1")
    assert [one["group"] for one in await listed(impatient, "?prefix=orders")] == ["orders:1"]
    assert await listed(impatient, "?pool=POOL-HIGH") == []
    assert len(await listed(impatient, "?pool=DEFAULT-POOL&queue=default")) == 2
    assert await listed(impatient, "?queue=high") == []
    assert len(await listed(impatient, f"?endpoint={impatient.receiver('server')}")) == 2
    assert await listed(impatient, "?endpoint=https://other.example/") == []


async def test_a_group_under_way_is_listed_unless_only_blocked_ones_are_asked_for(router: Running) -> None:
    gate = Gate()
    async with raw_server(gate) as server:
        message = {"mediationTarget": server.url(), "messageGroupId": "g"}
        await router.client.post("/api/messages", [{"id": name, **message} for name in ("m-1", "m-2")])
        await server.until(lambda server: len(server.requests) == 1)

        async def both() -> bool:
            return len(router.app.tracker) == 2

        await until(both)
        [one] = await listed(router)
        assert (one["state"], one["head"]["where"], one["waitingBehind"]) == ("IN_FLIGHT", "IN_FLIGHT", 1)
        assert await listed(router, "?blocked=true") == []
        gate.opened.set()
        await router.until_settled()
        assert await listed(router) == []


async def test_a_token_that_an_endpoint_repeats_is_not_shown(impatient: Running) -> None:
    async def echo(call: Call) -> None:
        await call.send(reply(500, call.headers.get("authorization", "").encode()))

    async with raw_server(echo) as server:
        await blocked(impatient, "m-1", target=server.url(), authToken="s3cr3t-token")
        answer = await impatient.client.get(f"{GROUPS}/g")
        assert answer.json["lastAnswer"]["status"] == 500
        assert "s3cr3t-token" not in answer.text


async def test_a_retried_head_is_tried_at_once_and_the_group_goes_on(impatient: Running) -> None:
    answers = iter([reply(500), reply(200), reply(200)])

    async def script(call: Call) -> None:
        await call.send(next(answers))

    async with raw_server(script) as server:
        await blocked(impatient, "m-1", "m-2", target=server.url())
        done = (await act(impatient, "g", "retry-head")).json
        assert done["done"], done
        await impatient.until_settled()
        assert len(server.requests) == 3


async def test_a_skipped_head_is_a_dead_letter_and_those_behind_it_are_delivered(impatient: Running) -> None:
    async def script(call: Call) -> None:
        await call.send(reply(500 if b"m-1" in call.body else 200))

    async with raw_server(script) as server:
        await blocked(impatient, "m-1", "m-2", "m-3", target=server.url())
        done = (await act(impatient, "g", "skip-head")).json
        assert done["done"]
        assert done["text"] == "message m-1 becomes a dead letter now"
        [letter] = await impatient.until_dead(1)
        assert letter["messageId"] == "m-1"
        assert letter["reason"] == "skipped by anonymous; last: HTTP 500"
        assert letter["status"] == 500
        await impatient.until_settled()
        assert [b"m-1" in body for body in _bodies(server)] == [True, False, False]
        audit = (await impatient.client.get("/monitoring/audit")).json
        assert "message_skip" in {one["action"] for one in audit}


async def test_a_message_that_was_not_received_yet_is_skipped_when_its_turn_comes(impatient: Running) -> None:
    answers = iter([reply(500), reply(200), reply(200)])

    async def script(call: Call) -> None:
        await call.send(next(answers))

    async with raw_server(script) as server:
        await blocked(impatient, "m-1", target=server.url())
        for name in ("m-2", "m-3"):
            await impatient.send(id=name, mediationTarget=server.url(), messageGroupId="g")
        done = (await impatient.client.post("/monitoring/messages/m-2/skip")).json
        assert done["text"] == "message m-2 becomes a dead letter when its turn in queue default comes"
        assert (await act(impatient, "g", "retry-head")).json["done"]
        [letter] = await impatient.until_dead(1)
        assert (letter["messageId"], letter["reason"]) == ("m-2", "skipped by anonymous")
        await impatient.until_settled()
        assert [b"m-2" in body for body in _bodies(server)] == [False, False, False]


def _bodies(server: RawServer) -> list[bytes]:
    return [request.body for request in server.requests]


async def test_a_held_group_waits_across_a_restart_until_it_is_released(tmp_path: Path) -> None:
    async with raw_server(always(reply(200))) as server:
        async with run_router(tmp_path) as before:
            held = (await act(before, "order 1/2", "hold")).json
            assert held["group"]["state"] == "HELD"
            assert held["group"]["heldBy"] == "anonymous"
            await before.send(id="m-1", mediationTarget=server.url(), messageGroupId="order 1/2")
            await before.send(id="m-2", mediationTarget=server.url(), messageGroupId="other")
            await server.until(lambda server: len(server.requests) == 1)
        async with run_router(tmp_path) as after:

            async def is_there() -> bool:
                return len(after.app.tracker) == 1

            await until(is_there)
            one = (await after.client.get(f"{GROUPS}/order%201%2F2")).json
            assert (one["state"], one["head"]["id"], one["head"]["where"]) == ("HELD", "m-1", "AT_GATE")
            assert len(server.requests) == 1
            released = (await act(after, "order 1/2", "release")).json
            assert released["text"] == "group order 1/2 goes on"
            await after.until_settled()
            assert len(server.requests) == 2
            assert not (await act(after, "order 1/2", "release")).json["done"]


async def test_a_paused_pool_receives_nothing_across_a_restart_until_it_is_resumed(tmp_path: Path) -> None:
    async with raw_server(always(reply(200))) as server:
        async with run_router(tmp_path) as before:
            paused = await before.client.post("/monitoring/pools/POOL-HIGH/pause")
            assert paused.json["pausedBy"] == "anonymous"
        async with run_router(tmp_path) as after:
            await after.send(id="m-1", mediationTarget=server.url(), poolCode="POOL-HIGH", messageGroupId="g")
            await after.send(id="m-2", mediationTarget=server.url(), messageGroupId="h")
            await server.until(lambda server: len(server.requests) == 1)
            depth = await after.app.queues["default"].depth()
            assert depth is not None
            assert depth.waiting == 1
            assert [one["name"] for one in (await after.client.get("/monitoring/pauses")).json] == ["POOL-HIGH"]
            resumed = await after.client.post("/monitoring/pools/POOL-HIGH/resume")
            assert resumed.json["pausedBy"] is None
            await after.until_settled()
            assert len(server.requests) == 2


async def test_a_paused_endpoint_gets_nothing_until_it_is_resumed(router: Running) -> None:
    async with raw_server(always(reply(200))) as server:
        url = server.url("/hook")
        paused = (await router.client.post(f"/monitoring/endpoints/pause?endpoint={quote(url)}")).json
        assert (paused["endpoint"], paused["pausedBy"]) == (url, "anonymous")
        await router.send(id="m-1", mediationTarget=url, messageGroupId="g")
        await router.send(id="m-2", mediationTarget=server.url("/other"), messageGroupId="h")
        await server.until(lambda server: len(server.requests) == 1)
        listed = (await router.client.get(f"/monitoring/endpoints?prefix={quote(url)}")).json["items"]

        async def waits() -> bool:
            found = (await router.client.get(f"/monitoring/endpoints?prefix={quote(url)}")).json["items"]
            return bool(found[0]["waiting"] == 1)

        await until(waits)
        assert listed[0]["delivered"] == 0
        await router.client.post(f"/monitoring/endpoints/resume?endpoint={quote(url)}")
        await router.until_settled()
        [shown] = (await router.client.get(f"/monitoring/endpoints?prefix={quote(url)}")).json["items"]
        assert (shown["delivered"], shown["failed"], shown["pausedBy"], shown["waiting"]) == (1, 0, None, 0)
        assert shown["meanMs"] > 0


async def test_endpoints_are_listed_by_pages(router: Running) -> None:
    for name in ("a", "b", "c"):
        await router.client.post(f"/monitoring/endpoints/pause?endpoint=http://{name}.example/")
    first = (await router.client.get("/monitoring/endpoints?limit=2")).json
    assert [one["endpoint"] for one in first["items"]] == ["http://a.example/", "http://b.example/"]
    second = (await router.client.get(f"/monitoring/endpoints?limit=2&cursor={first['next']}")).json
    assert [one["endpoint"] for one in second["items"]] == ["http://c.example/"]
    assert second["next"] is None


@on_idle_router
@pytest.mark.parametrize("what", ["retry-head", "skip-head"])
async def test_a_group_that_nobody_knows_cannot_be_acted_on(idle_router: Running, what: str) -> None:
    (await act(idle_router, "nobody", what)).assert_problem(404, "nothing is known here of group 'nobody'")


@on_idle_router
@pytest.mark.parametrize("what", ["retry", "skip"])
async def test_a_message_that_nobody_knows_cannot_be_acted_on(idle_router: Running, what: str) -> None:
    answer = await idle_router.client.post(f"/monitoring/messages/nobody/{what}")
    answer.assert_problem(404, "neither has message 'nobody'", "/monitoring/explain")


@on_idle_router
async def test_bad_names_cursors_and_endpoints_are_refused_in_one_sentence(idle_router: Running) -> None:
    client = idle_router.client
    (await client.get(f"{GROUPS}?cursor=x")).assert_problem(400, "cursor")
    (await client.get(f"{GROUPS}/{'g' * 300}")).assert_problem(400, "256 characters")
    (await client.get(f"{GROUPS}/nobody")).assert_problem(404, "group 'nobody'")
    (await client.post("/monitoring/endpoints/pause?endpoint=nonsense")).assert_problem(400, "endpoint")
    (await client.post("/monitoring/pools/NOPE/pause")).assert_problem(404, "no pool 'NOPE'")


async def test_after_a_restart_a_head_that_waits_in_its_queue_can_be_retried_and_skipped(tmp_path: Path) -> None:
    retry = RetrySettings(backoff_s=[])
    async with raw_server(always(reply(500))) as server:
        async with run_router(tmp_path, retry=retry) as before:
            await blocked(before, "m-1", "m-2", target=server.url())
        async with run_router(tmp_path, retry=retry) as after:
            one = (await after.client.get(f"{GROUPS}/g")).json
            assert (one["head"]["id"], one["head"]["endpoint"]) == ("m-1", server.url())
            assert (await act(after, "g", "retry-head")).json["done"]
            await server.until(lambda server: len(server.requests) == 2)

            async def is_back() -> bool:
                return not len(after.app.tracker)

            await until(is_back)
        async with run_router(tmp_path, retry=retry) as after:
            server.script = always(reply(200))
            done = (await act(after, "g", "skip-head")).json
            assert done["done"], done
            [letter] = await after.until_dead(1)
            assert letter["messageId"] == "m-1"
            await after.until_settled()
            assert b"m-2" in _bodies(server)[-1]


async def test_a_skip_is_not_forgotten_by_a_restart(tmp_path: Path) -> None:
    async with raw_server(always(reply(200))) as server:
        async with run_router(tmp_path) as before:
            await act(before, "g", "hold")
            message = {"mediationTarget": server.url(), "messageGroupId": "g"}
            await before.client.post("/api/messages", [{"id": name, **message} for name in ("m-1", "m-2")])

            async def both() -> bool:
                return len(before.app.tracker) == 2

            await until(both)
            skipped = await before.client.post("/monitoring/messages/m-2/skip")
            assert skipped.json["done"]
        async with run_router(tmp_path) as after:
            await act(after, "g", "release")
            [letter] = await after.until_dead(1)
            assert (letter["messageId"], letter["reason"]) == ("m-2", "skipped by anonymous")
            await after.until_settled()
            assert [b"m-1" in body for body in _bodies(server)] == [True]

            async def forgotten() -> bool:
                left = await after.app.pause_store.writer.read(
                    lambda connection: connection.execute("SELECT count(*) FROM skips").fetchone()[0]
                )
                return bool(left == 0)

            await until(forgotten)


async def test_an_endpoint_of_a_paused_origin_says_so_and_is_not_resumed_by_itself(router: Running) -> None:
    async with raw_server(always(reply(200))) as server:
        url = server.url("/hook")
        origin = url.removesuffix("/hook")
        await router.client.post(f"/monitoring/endpoints/pause?endpoint={quote(origin)}")
        await router.send(id="m-1", mediationTarget=url, messageGroupId="g")

        async def waits() -> bool:
            found = (await router.client.get("/monitoring/explain/m-1")).json
            return bool(found["cause"] == "ENDPOINT_PAUSED")

        await until(waits)
        refused = await router.client.post(f"/monitoring/endpoints/resume?endpoint={quote(url)}")
        refused.assert_problem(409, f"all of {origin} is, resume that")
        [resume, _] = (await router.client.get("/monitoring/explain/m-1")).json["actions"]
        assert (await router.client.post(resume["path"])).status == 200
        await router.until_settled()
        assert len(server.requests) == 1


async def test_a_hold_and_a_release_at_the_same_time_leave_the_file_as_the_router_is(router: Running) -> None:
    for number in range(20):
        await act(router, f"g{number}", "hold")
        await asyncio.gather(act(router, f"g{number}", "release"), act(router, f"g{number}", "hold"))
    kept = await router.app.pause_store.writer.read(
        lambda connection: {name for (name,) in connection.execute("SELECT name FROM pauses")}
    )
    assert kept == set(router.app.pauses.groups)


async def test_a_message_that_comes_while_it_is_looked_for_is_skipped_all_the_same(
    router: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = stored_messages.find
    pool = router.app.router.pools["DEFAULT-POOL"]

    async def find_late(app: RouterView, name: str) -> tuple[str, StoredMessage] | None:
        found = await find(app, name)
        pool.resume()

        async def is_here() -> bool:
            return len(router.app.tracker) == 1

        await until(is_here)
        return found

    async with raw_server(always(reply(200))) as server:
        pool.pause()
        await router.app.engine.acts.resume(PauseKind.GROUP, "g")
        router.app.engine.acts.pause(PauseKind.GROUP, "g", "ann")
        await router.send(id="m-1", mediationTarget=server.url(), messageGroupId="g")
        monkeypatch.setattr(stored_messages, "find", find_late)
        done = await acting.skip_in_queue(router.app, "m-1", Actor("ann"))
        assert done is not None
        assert done.text == "message m-1 becomes a dead letter now"
        [letter] = await router.until_dead(1)
        assert letter["messageId"] == "m-1"
        assert server.requests == []


async def test_two_who_replay_a_letter_at_once_send_it_once(router: Running) -> None:
    await router.send(id="dead", mediationTarget=router.receiver("client-error"), messageGroupId="g")
    await router.until_dead(1)
    await router.until_settled()
    router.app.router.pools["DEFAULT-POOL"].pause()
    answers = await asyncio.gather(*(router.client.post("/monitoring/dead-letters/1/replay") for _ in range(5)))
    assert sorted(answer.status for answer in answers)[:2] != [200, 200]
    depth = await router.app.queues["default"].depth()
    assert depth is not None
    assert depth.waiting == 1
