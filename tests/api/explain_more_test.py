"""/monitoring/explain: situations of a router that is not as usual: it stands by, stops, or cannot look everywhere."""

from pathlib import Path
from typing import Any

from flowcatalyst.control.pool_settings import PoolSettings, RetrySettings
from flowcatalyst.queues.memory import MemoryQueue
from flowcatalyst.router.breaker import OPEN_S
from tests.api.breakers_test import open_breaker
from tests.api.explain_test import SMALL, actions, again, explain, explained, hanging
from tests.api.running import Running, run_router, until
from tests.support.http_servers import Gate, always, raw_server, reply


async def test_what_may_wait_in_a_queue_that_cannot_be_searched_is_not_called_safe_to_send(router: Running) -> None:
    router.app.engine.queues["broker"] = MemoryQueue("broker", router.app.clock)
    try:
        found = await explain(router, "nope")
        assert found["safeToSendAgain"] is None
        assert found["sendAgainText"].startswith("Yes, unless it waits in a queue that could not be searched, or was ")
    finally:
        del router.app.engine.queues["broker"]


async def test_told_to_wait_by_its_endpoint(router: Running) -> None:
    later = reply(200, b'{"ack": false, "delaySeconds": 600}', "Content-Type: application/json")
    async with raw_server(always(later)) as server:
        await router.send(id="m-1", mediationTarget=server.url(), messageGroupId="g")
        found = await explained(router, "m-1", "IN_QUEUE", "NACKED")
        assert 590_000 < found["nextAttemptInMs"] <= 600_000
        assert found["summary"].startswith("Message m-1 was told to wait, waits in queue default and is due again in ")
        assert actions(found) == ["retry", "skip"]


async def test_a_removed_pool_that_still_has_something_in_flight(tmp_path: Path) -> None:
    async with run_router(tmp_path, pools=SMALL) as router, hanging(router, poolCode="SMALL"):
        router.app.engine.apply_pools({"DEFAULT-POOL": router.app.router.pools["DEFAULT-POOL"].limits})
        found = await explain(router, "SMALL")
        assert (found["kind"], found["cause"], actions(found)) == ("POOL", "RETIRING", [])
        assert found["summary"] == "Pool SMALL is no longer configured: it ends what it began, and is gone then."
        await explained(router, "m-1", "IN_FLIGHT", "ANSWER")


async def test_a_pool_while_its_router_stops(tmp_path: Path) -> None:
    async with run_router(tmp_path, pools=SMALL) as router, hanging(router, poolCode="SMALL"):
        await router.send(id="m-2", mediationTarget=router.receiver("fast"), messageGroupId="o", poolCode="SMALL")
        await explained(router, "m-2", "WAITING", "SLOTS")
        router.app.router.pools["SMALL"].drain()
        found = await explain(router, "SMALL")
        assert (found["cause"], actions(found)) == ("DRAINING", [])
        assert found["summary"] == "Pool SMALL ends with its router: nothing more starts in it."
        await explained(router, "m-1", "IN_FLIGHT", "ANSWER")

        async def is_back() -> bool:
            return bool((await explain(router, "m-2"))["state"] != "NEVER_SEEN")

        await until(is_back)


async def test_a_router_without_the_lock_looks_into_its_own_file(tmp_path: Path) -> None:
    async with run_router(tmp_path, standby={"redis_url": "redis://127.0.0.1:1/"}) as router:
        sent = await router.send(id="m-1", mediationTarget=router.receiver("fast"), messageGroupId="g")
        assert sent.status in (200, 201, 202), sent.text
        found = await explain(router, "m-1")
        assert (found["state"], found["cause"], found["queue"]) == ("STANDBY", "STANDBY", "default")
        assert found["chain"][-1] == "This router does not work now: it is a standby or disabled."
        assert again(found)[0] is False
        unknown = await explain(router, "nope")
        assert unknown["state"] == "NEVER_SEEN"
        assert again(unknown) == (None, "That cannot be told here: ask the primary router.")


async def test_behind_the_probes_of_a_breaker_that_is_half_open(tmp_path: Path) -> None:
    gate = Gate()
    pools = [PoolSettings(code="DEFAULT-POOL", concurrency=20)]
    async with run_router(tmp_path, pools=pools) as router, raw_server(gate) as server:
        open_breaker(router, server.url())
        router.app.breakers.get(server.url()).opened_at -= OPEN_S
        for number in range(5):
            await router.send(id=f"m-{number}", mediationTarget=server.url(), messageGroupId=f"g{number}")
        found: list[dict[str, Any]] = []

        async def two_wait() -> bool:
            found[:] = [await explain(router, f"m-{number}") for number in range(5)]
            return [one["cause"] for one in found].count("BREAKER") == 2

        await until(two_wait)
        waiting = next(one for one in found if one["cause"] == "BREAKER")
        assert waiting["summary"].endswith("whose circuit breaker waits for the answers to a few probes.")
        assert actions(waiting) == ["reset", "skip"]
        gate.opened.set()


async def test_in_its_queue_behind_a_head_that_this_router_has(tmp_path: Path) -> None:
    async with run_router(tmp_path, retry=RetrySettings(backoff_s=[300.0])) as router:
        await router.send(id="m-1", mediationTarget=router.receiver("server-error"), messageGroupId="g")
        await explained(router, "m-1", "ON_HOLD", "RETRY")
        await router.send(id="m-2", mediationTarget=router.receiver("fast"), messageGroupId="g")
        found = await explained(router, "m-2", "IN_QUEUE", "BEHIND_HEAD")
        assert found["chain"][0] == "1 message of its group g is before it; the first is message m-1."
        assert found["chain"][1].startswith("Message m-1, the first of group g, waits for its next attempt")
        assert found["chain"][2].endswith("got: HTTP 500.")
        assert (found["head"]["id"], found["lastAnswer"]["status"]) == ("m-1", 500)
        assert actions(found) == ["retry-head", "skip-head", "skip"]
