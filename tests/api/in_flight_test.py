import dataclasses
from pathlib import Path
from typing import Any

import pytest

from flowcatalyst.api.router.in_flight import MAX_CHECKED
from flowcatalyst.control.pool_settings import RetrySettings
from tests.api.running import Running, on_idle_router, run_router, until
from tests.support.http_servers import Gate, always, raw_server, reply

CHECK = "/monitoring/in-flight-messages/check"


async def in_flight(router: Running, query: str = "") -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await router.client.get(f"/monitoring/in-flight-messages{query}")).json
    return found


async def test_every_message_in_the_router_says_what_it_waits_for(router: Running) -> None:
    gate = Gate()
    async with raw_server(gate) as endpoint:
        message = {"mediationTarget": endpoint.url(), "messageGroupId": "g", "authToken": "s3cret"}
        await router.client.post("/api/messages", [{"id": "m-1", **message}, {"id": "m-2", **message}])

        async def both_are_there() -> bool:
            return len(await in_flight(router)) == 2

        await until(both_are_there)
        await endpoint.until(lambda server: len(server.requests) == 1)
        answer = await router.client.get("/monitoring/in-flight-messages")
        first, second = answer.json
        assert "s3cret" not in answer.text
        assert first["brokerId"] != second["brokerId"]
        assert first["elapsedMs"] >= second["elapsedMs"]
        wanted = {
            "id": "m-1",
            "queue": "default",
            "pool": "DEFAULT-POOL",
            "group": "g",
            "mode": "BLOCK_ON_ERROR",
            "attempts": 1,
            "failures": 0,
            "receiveCount": 1,
            "waiting": {"what": "the answer to attempt 1", "behind": None, "untilInMs": None},
        }
        assert {key: first[key] for key in wanted} == wanted
        assert second["waiting"] == {"what": "its turn in group g", "behind": "m-1", "untilInMs": None}
        gate.opened.set()
        await router.until_settled()
        assert await in_flight(router) == []


async def test_messages_in_the_router_can_be_looked_up(router: Running) -> None:
    gate = Gate()
    async with raw_server(gate) as endpoint:
        for number in range(4):
            pool = "POOL-HIGH" if number % 2 else "DEFAULT-POOL"
            group = f"g-{number}"
            await router.send(id=f"m-{number}", mediationTarget=endpoint.url(), messageGroupId=group, poolCode=pool)
        await endpoint.until(lambda server: len(server.requests) == 4)
        everything = await in_flight(router)
        assert [one["id"] for one in everything] == ["m-0", "m-1", "m-2", "m-3"]
        assert ids(await in_flight(router, "?limit=2")) == ["m-0", "m-1"]
        assert ids(await in_flight(router, "?id=m-2")) == ["m-2"]
        assert ids(await in_flight(router, f"?id={everything[3]['brokerId']}")) == ["m-3"]
        assert ids(await in_flight(router, "?pool=POOL-HIGH")) == ["m-1", "m-3"]
        assert ids(await in_flight(router, "?group=g-1")) == ["m-1"]
        assert ids(await in_flight(router, "?group=g-1&pool=DEFAULT-POOL")) == []
        gate.opened.set()


async def test_a_message_for_an_endpoint_that_has_its_share_of_the_slots_says_so(router: Running) -> None:
    gate = Gate()
    async with raw_server(gate) as endpoint:
        for number in range(2):
            await router.send(
                id=f"m-{number}", mediationTarget=endpoint.url(), messageGroupId=f"g-{number}", poolCode="POOL-LOW"
            )
        await endpoint.until(lambda server: len(server.requests) == 1)

        async def second_waits() -> bool:
            return len(await in_flight(router, "?id=m-1")) == 1

        await until(second_waits)
        [second] = await in_flight(router, "?id=m-1")
        origin = endpoint.url().rsplit("/", 1)[0]
        what = f"a slot for {origin}/, which has its share: 1 of 2"
        assert second["waiting"] == {"what": what, "behind": None, "untilInMs": None}
        gate.opened.set()
        await router.until_settled()


def ids(found: list[dict[str, Any]]) -> list[str]:
    return [one["id"] for one in found]


async def test_a_message_its_pool_is_done_with_waits_for_its_queue_to_confirm(router: Running) -> None:
    gate, busy = Gate(), Gate()
    async with raw_server(gate) as endpoint, raw_server(busy) as other:
        await router.send(id="busy", mediationTarget=other.url(), messageGroupId="other")  # so that acks are collected
        await other.until(lambda server: len(server.requests) == 1)
        await router.send(id="m", mediationTarget=endpoint.url(), messageGroupId="g")
        await endpoint.until(lambda server: len(server.requests) == 1)
        settler = router.app.settlers["default"]
        settler.batching = dataclasses.replace(settler.batching, settle_linger_s=1.0)
        gate.opened.set()

        async def pool_is_done() -> bool:
            return router.app.router.pools["DEFAULT-POOL"].stats.delivered == 1

        await until(pool_is_done)
        message = next(one for one in await in_flight(router) if one["id"] == "m")
        assert message["waiting"]["what"] == "its queue to confirm"
        busy.opened.set()


@on_idle_router
@pytest.mark.parametrize("query", ["?limit=0", "?limit=1001", "?limit=x"])
async def test_a_limit_out_of_bounds_is_refused(idle_router: Running, query: str) -> None:
    for path in ("/monitoring/in-flight-messages", "/monitoring/dead-letters"):
        (await idle_router.client.get(path + query)).assert_problem(400, "limit")


UNKNOWN = {
    "state": "UNKNOWN",
    "inFlight": False,
    "pool": None,
    "failures": None,
    "waiting": None,
    "deadLetter": None,
}


async def test_a_check_tells_for_each_id_whether_the_router_has_the_message(router: Running) -> None:
    gate = Gate()
    async with raw_server(gate) as endpoint:
        message = {"mediationTarget": endpoint.url(), "poolCode": "POOL-LOW", "messageGroupId": "g"}
        await router.client.post("/api/messages", [{"id": one, **message} for one in ("here", "behind")])
        await endpoint.until(lambda server: len(server.requests) == 1)

        async def both_are_there() -> bool:
            return len(await in_flight(router)) == 2

        await until(both_are_there)
        owned = {"inFlight": True, "pool": "POOL-LOW", "failures": 0, "deadLetter": None}
        answer = {"what": "the answer to attempt 1", "behind": None, "untilInMs": None}
        here = {"id": "here", "state": "IN_FLIGHT", **owned, "waiting": answer}
        turn = {"what": "its turn in group g", "behind": "here", "untilInMs": None}
        behind = {"id": "behind", "state": "WAITING", **owned, "waiting": turn}
        unknown = {"id": "null", **UNKNOWN}
        found = await router.client.post(CHECK, {"ids": ["null", "here", "null", "behind"]})
        assert (found.status, found.json) == (200, [unknown, here, unknown, behind])
        gate.opened.set()
        await router.until_settled()
        delivered = {"id": "here", **UNKNOWN, "state": "DELIVERED"}
        assert (await router.client.post(CHECK, {"ids": ["here"]})).json == [delivered]


async def test_a_check_tells_a_message_that_went_back_to_its_queue_from_one_that_was_never_seen(
    tmp_path: Path,
) -> None:
    async with run_router(tmp_path, retry=RetrySettings(backoff_s=[])) as router:
        await router.send(id="stuck", mediationTarget=router.receiver("server-error"))

        async def is_back() -> bool:
            return router.app.router.pools["DEFAULT-POOL"].stats.nacked == 1

        await until(is_back)
        stuck = {"id": "stuck", **UNKNOWN, "state": "NACKED", "failures": 1}
        assert (await router.client.post(CHECK, {"ids": ["stuck", "never"]})).json == [
            stuck,
            {"id": "never", **UNKNOWN},
        ]


async def test_a_check_tells_that_a_message_was_nacked_whose_endpoint_asked_to_wait(router: Running) -> None:
    async with raw_server(always(reply(429, b"", "Retry-After: 60"))) as server:
        await router.send(id="later", mediationTarget=server.url())

        async def is_back() -> bool:
            return router.app.router.pools["DEFAULT-POOL"].stats.nacked == 1

        await until(is_back)
        later = {"id": "later", **UNKNOWN, "state": "NACKED", "failures": 0}
        assert (await router.client.post(CHECK, {"ids": ["later"]})).json == [later]


async def test_a_check_tells_a_dead_letter_as_long_as_it_is_kept(router: Running) -> None:
    await router.send(id="dead", mediationTarget=router.receiver("client-error"))
    await router.until_dead(1)
    await router.until_settled()
    dead = {"id": "dead", **UNKNOWN, "state": "DEAD_LETTER", "deadLetter": 1}
    assert (await router.client.post(CHECK, {"ids": ["dead"]})).json == [dead]
    await router.client.request("DELETE", "/monitoring/dead-letters/1")
    assert (await router.client.post(CHECK, {"ids": ["dead"]})).json == [{"id": "dead", **UNKNOWN}]


@on_idle_router
async def test_as_many_ids_as_documented_can_be_checked_at_once(idle_router: Running) -> None:
    answer = await idle_router.client.post(CHECK, {"ids": [f"m-{number}" for number in range(MAX_CHECKED)]})
    assert (answer.status, len(answer.json)) == (200, MAX_CHECKED)


@on_idle_router
@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"ids": []}, ["`ids` must have at least 1 entry"]),
        ({"ids": ["m"] * (MAX_CHECKED + 1)}, [f"`ids` must have at most {MAX_CHECKED} entries"]),
        ({"ids": "m"}, ["`ids` must be a list, not text"]),
        ({"ids": [5]}, ["`ids[0]` must be text, not a number"]),
        ({"ids": [None]}, ["`ids[0]` must be text, not null"]),
        ({}, ["ids"]),
        (["m"], ["the body must be an object, not a list"]),
        ({"ids": ["m"], "pool": "P"}, ["`pool` is not a field here; the fields are ids"]),
    ],
)
async def test_a_check_that_cannot_be_read_says_why(idle_router: Running, body: Any, words: list[str]) -> None:
    (await idle_router.client.post(CHECK, body)).assert_problem(400, *words)
