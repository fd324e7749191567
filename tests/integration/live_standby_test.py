"""Two real router processes on one queue file and one real Redis: one works, the other takes over.

Messages flow all the time. A clean stop or a loss of the lock ends no life in the history of the witness, so there the
checker allows no attempt that is not due to a failure of the endpoint.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any

from flowcatalyst.core.tasks import Tasks
from tests.crash.scene import PATIENT_MS
from tests.servers.redis import RedisServer, redis_server
from tests.support.live import Api, Live, live, messages
from tests.support.router_process import IMPATIENT, RouterProcess, Waits
from tests.support.witness import Witness

TTL_S, REFRESH_S = 2.0, 0.5
DELIVERED_WITHIN_S = 20.0
SLACK_S = 5.0  # for a machine that is busy with other things
GROUPS = [f"g{number}" for number in range(12)]
WAVE_EVERY_S = 0.15
FAULT_RATE = 0.05
STATUS = "/monitoring/standby-status"


class Pair(Live):
    """A scene with a Redis and a flow of messages."""

    def __init__(self, scene: Live, redis: RedisServer) -> None:
        super().__init__(scene.folder, scene.witness, scene.config, scene.session)
        self.redis = redis
        self.flows = True

    @asynccontextmanager
    async def member(self, waits: Waits = IMPATIENT) -> AsyncIterator[RouterProcess]:
        env = {
            "FLOWCATALYST_STANDBY__REDIS_URL": self.redis.url,
            "FLOWCATALYST_STANDBY__TTL_S": str(TTL_S),
            "FLOWCATALYST_STANDBY__REFRESH_S": str(REFRESH_S),
        }
        async with self.router(waits, env=env) as router:
            yield router

    async def flow(self) -> None:
        """Publish a message of each group now and then."""
        for position in count(1):
            if not self.flows:
                return
            await self.publish(messages(self.witness.url, GROUPS, range(position, position + 1)))
            await asyncio.sleep(WAVE_EVERY_S)

    async def until_primary(self, router: RouterProcess, within_s: float = 30.0) -> dict[str, Any]:
        async with asyncio.timeout(within_s):
            status: dict[str, Any] = await self.api(router).until(STATUS, lambda now: now["state"] == "PRIMARY")
        return status

    async def until_standby_of(self, router: RouterProcess, primary: RouterProcess) -> None:
        """Until it does not work and knows who does."""
        holder = (await self.api(primary).get(STATUS))["identity"]
        await self.api(router).until(STATUS, lambda now: (now["state"], now["holder"]) == ("STANDBY", holder))

    async def until_more_delivered(self) -> None:
        """Until a whole wave that was published after this call has been delivered."""
        await self.witness.until_acked(len(self.published) + len(GROUPS), DELIVERED_WITHIN_S)

    async def stop_all(self, *routers: RouterProcess) -> None:
        """End the flow, deliver what is left of it, stop in order."""
        self.flows = False
        await self.until_delivered()
        for router in routers:
            await self.stop(router)


@asynccontextmanager
async def pair(folder: Path, witness: Witness | None = None) -> AsyncIterator[Pair]:
    (folder / "redis").mkdir()
    tasks = Tasks()
    with redis_server(folder / "redis") as redis:
        async with live(folder, witness) as a_scene:
            scene = Pair(a_scene, redis)
            scene.config.say({"DEFAULT-POOL": 8}, ["orders"])
            tasks.spawn(scene.flow(), "flow of messages")
            try:
                yield scene
            finally:
                await tasks.cancel()
                await scene.close()


async def test_only_one_of_two_works_and_a_clean_stop_hands_over_in_seconds(tmp_path: Path) -> None:
    async with pair(tmp_path, Witness(FAULT_RATE)) as scene, scene.member() as first:
        await scene.until_primary(first)
        async with scene.member() as second:
            await scene.until_standby_of(second, first)
            await scene.until_more_delivered()
            await assert_at_work(scene.api(first), is_at_work=True)
            await assert_at_work(scene.api(second), is_at_work=False)
            await scene.stop(first)
            await scene.until_primary(second, REFRESH_S + SLACK_S)
            await scene.until_more_delivered()
            await assert_at_work(scene.api(second), is_at_work=True)
            await scene.stop_all(second)
        await scene.assert_every_promise_was_kept()


async def assert_at_work(api: Api, *, is_at_work: bool) -> None:
    assert await api.status("GET", "/health/ready") == 200
    assert await api.status("GET", "/health") == 200
    assert await api.polled() == ({"orders"} if is_at_work else set())
    assert set(await api.pools()) == ({"DEFAULT-POOL"} if is_at_work else set())
    health = await api.get("/monitoring/health")
    assert health["role"] == ("primary" if is_at_work else "standby")
    assert [queue["queueName"] for queue in (await api.get("/monitoring/config"))["queues"]] == ["orders"]


async def test_a_standby_takes_messages_and_stops_cleanly_without_ever_having_worked(tmp_path: Path) -> None:
    async with pair(tmp_path) as scene, scene.member() as first:
        await scene.until_primary(first)
        async with scene.member() as second:
            await scene.until_standby_of(second, first)
            extra = {"mediationTarget": f"{scene.witness.url}/extra", "id": "run.extra.1", "messageGroupId": "extra"}
            await scene.api(second).post("/api/messages?queue=orders", extra)
            scene.published.add("run.extra.1")
            await scene.stop(second)
        await scene.stop_all(first)


async def test_a_killed_primary_is_replaced_within_the_time_to_live(tmp_path: Path) -> None:
    async with pair(tmp_path, Witness(FAULT_RATE)) as scene, scene.member() as first:
        await scene.until_primary(first)
        async with scene.member() as second:
            await scene.until_standby_of(second, first)
            await scene.until_more_delivered()
            killed = (await scene.api(first).get(STATUS))["identity"]
            await scene.kill(first)
            await scene.until_primary(second, TTL_S + SLACK_S)
            [told] = await scene.api(second).get("/monitoring/warnings?code=STANDBY")
            assert f"it took over from {killed}, which had the lock until " in told["message"]
            await scene.until_more_delivered()
            await scene.stop_all(second)
        await scene.assert_every_promise_was_kept()


async def test_a_primary_that_slept_through_its_lock_becomes_a_standby_and_can_work_again(tmp_path: Path) -> None:
    async with pair(tmp_path, Witness(FAULT_RATE)) as scene, scene.member() as first:
        before = await scene.until_primary(first)
        async with scene.member() as second:
            await scene.until_standby_of(second, first)
            await scene.until_more_delivered()
            await first.pause()
            between = await scene.until_primary(second, TTL_S + SLACK_S)
            await scene.witness.until_arrived(scene.witness.arrivals + 1)
            first.resume()
            await scene.until_standby_of(first, second)
            await scene.until_more_delivered()
            await scene.api(first).until("/monitoring/consumer-health", lambda consumers: consumers == [])
            await assert_at_work(scene.api(first), is_at_work=False)
            await scene.stop(second)
            after = await scene.until_primary(first, REFRESH_S + SLACK_S)
            await scene.until_more_delivered()
            await scene.stop_all(first)
        assert before["fencingNumber"] < between["fencingNumber"] < after["fencingNumber"]
        await scene.assert_every_promise_was_kept()


async def test_a_primary_that_slept_through_lock_and_leases_starts_nothing_that_another_took_over(
    tmp_path: Path,
) -> None:
    short_leases = Waits(visibility_s=1.0, timeout_ms=PATIENT_MS)
    async with pair(tmp_path) as scene, scene.member(short_leases) as first:
        await scene.until_primary(first)
        async with scene.member(short_leases) as second:
            await scene.until_standby_of(second, first)
            await scene.until_more_delivered()
            await first.pause()
            await scene.witness.router_gone()  # to those who are left it is dead: what it has in flight is unknown
            await scene.until_primary(second, TTL_S + SLACK_S)
            await scene.until_more_delivered()
            first.resume()
            await scene.until_standby_of(first, second)
            await scene.until_more_delivered()
            await scene.stop_all(second, first)
        await scene.assert_every_promise_was_kept()


async def test_a_primary_that_cannot_reach_redis_steps_down_and_later_one_works_again(tmp_path: Path) -> None:
    async with pair(tmp_path, Witness(FAULT_RATE)) as scene, scene.member() as first:
        before = await scene.until_primary(first)
        async with scene.member() as second:
            await scene.until_standby_of(second, first)
            await scene.until_more_delivered()
            scene.redis.pause()
            await scene.api(first).until(STATUS, lambda now: now["state"] == "STANDBY")
            await scene.api(first).until("/monitoring/consumer-health", lambda consumers: consumers == [])
            for router in (first, second):
                health = await scene.api(router).until("/monitoring/health", lambda now: now["status"] == "DEGRADED")
                assert [reason["part"] for reason in health["reasons"]] == ["standby"]
            scene.redis.resume()
            primary = await first_primary(scene, first, second)
            assert (await scene.api(primary).get(STATUS))["fencingNumber"] > before["fencingNumber"]
            await scene.until_more_delivered()
            await scene.stop_all(first, second)
        await scene.assert_every_promise_was_kept()


async def first_primary(scene: Pair, *routers: RouterProcess) -> RouterProcess:
    async with asyncio.timeout(TTL_S + REFRESH_S + SLACK_S):
        while True:
            for router in routers:
                if (await scene.api(router).get(STATUS))["state"] == "PRIMARY":
                    return router
            await asyncio.sleep(0.02)
