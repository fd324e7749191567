"""Several routers on one database of jobs: they divide the limits of their pools, and none starts what is another's."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from flowcatalyst.app.router import App
from flowcatalyst.control.settings import Settings
from flowcatalyst.core.clock import SystemClock
from flowcatalyst.core.message import DispatchMode
from flowcatalyst.dispatch.job import Job, NewJob, new_job
from flowcatalyst.dispatch.store.contract import Filter
from flowcatalyst.dispatch.store.postgres import PostgresJobStore
from tests.api.running import run_router, until
from tests.servers.postgres import PostgresServer
from tests.support.http_servers import Call, raw_server, reply
from tests.support.postgres import server
from tests.support.tcp_proxy import tcp_proxy

__all__ = ["server"]

POOL = "JOBS"
LIMIT = 5
PATIENCE_S = 60.0
_schemas = count(1)


class Receiver:
    """Counts the requests that are open, and answers them when it is told to, or their sender is gone."""

    def __init__(self) -> None:
        self.open: set[int] = set()  # numbers of requests
        self.most = 0
        self.arrived = 0
        self.gate = asyncio.Event()

    async def __call__(self, call: Call) -> None:
        self.arrived += 1
        self.open.add(call.number)
        self.most = max(self.most, len(self.open))
        waits = [asyncio.ensure_future(one) for one in (self.gate.wait(), call.until_client_is_gone())]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self.open.discard(call.number)
            for one in waits:
                one.cancel()
            await asyncio.wait(waits)  # a reader serves one at a time
        await call.send(reply(200))


class Place:
    """A database of jobs for one test, and the routers on it."""

    def __init__(self, server: PostgresServer, folder: Path) -> None:
        self.server = server
        self.folder = folder
        self.url = f"{server.url}?schema=processes_{next(_schemas)}"
        self.receiver = Receiver()
        self._numbers = count(1)

    def settings(self, url: str | None = None, **more: Any) -> Settings:
        folder = self.folder / str(next(self._numbers))
        return Settings(
            data_dir=folder,
            port=0,
            platform={"enabled": True, "database_url": url or self.url},
            **({"pools": [{"code": POOL, "concurrency": LIMIT}]} | more),
        )

    @asynccontextmanager
    async def router(self, url: str | None = None, **more: Any) -> AsyncIterator[App]:
        app = App(self.settings(url, **more))
        async with app.running():
            yield app

    async def create(self, store: Any, target: str, jobs: int, **more: Any) -> None:
        made = [self.job(target, **more) for _ in range(jobs)]
        await store.create(made)

    async def keep_busy(self, app: App, target: str, jobs: int) -> None:
        """Until all slots of the one router are in use by an endpoint that hangs, and so many jobs are there."""
        self.receiver.gate.set()
        assert app.jobs is not None
        await self.create(app.jobs, target, 1)
        await until_it_is(lambda: app.router.pools[POOL].stats.delivered == 1)  # one that answers gets all slots
        self.receiver.gate.clear()
        await self.create(app.jobs, target, jobs)
        await until_it_is(lambda: len(self.receiver.open) == LIMIT)

    def job(self, target: str, **more: Any) -> Job:
        name = f"job-{next(self._numbers)}"
        asked: dict[str, Any] = {"target_url": target, "code": "test", "dispatch_pool_code": POOL, **more}
        return new_job(NewJob(**asked), name, SystemClock().wall())


@pytest.fixture
def place(server: PostgresServer, tmp_path: Path) -> Place:
    return Place(server, tmp_path)


def slots(app: App, pool: str = POOL) -> int:
    return app.router.pools[pool].limits.concurrency


async def until_it_is(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():
            await asyncio.sleep(0.01)


async def test_a_router_alone_has_the_whole_of_every_pool(place: Place) -> None:
    async with place.router() as app:
        await until_it_is(lambda: slots(app) == LIMIT)


async def test_processes_divide_what_a_pool_may_and_one_that_leaves_gives_its_share_to_the_others(place: Place) -> None:
    async with place.router() as first:
        await until_it_is(lambda: slots(first) == LIMIT)
        async with AsyncExitStack() as stack:
            others = [await stack.enter_async_context(place.router()) for _ in range(2)]
            everybody = [first, *others]
            await until_it_is(lambda: sorted(map(slots, everybody)) == [1, 2, 2])
        await until_it_is(lambda: slots(first) == LIMIT)


async def test_a_newcomer_gets_nothing_until_others_have_come_down_to_their_share(place: Place) -> None:
    async with raw_server(place.receiver) as endpoint, place.router() as first:
        await place.keep_busy(first, endpoint.url("/hook"), 4 * LIMIT)
        async with place.router() as second:
            await until_it_is(lambda: slots(first) < LIMIT)
            assert slots(second) == 0
            place.receiver.gate.set()
            await until_it_is(lambda: slots(first) + slots(second) == LIMIT and slots(second) > 0)
            await until_it_is(lambda: place.receiver.arrived == 4 * LIMIT + 1)
    assert place.receiver.most <= LIMIT


async def test_a_router_that_is_cut_off_from_the_database_stops_before_others_take_its_share(place: Place) -> None:
    async with (
        tcp_proxy(place.server.port) as proxy,
        raw_server(place.receiver) as endpoint,
        place.router(place.url.replace(f":{place.server.port}/", f":{proxy.port}/")) as cut_off,
    ):
        await place.keep_busy(cut_off, endpoint.url("/hook"), 2 * LIMIT)
        arrived = place.receiver.arrived
        proxy.cut()
        async with place.router() as other:
            await until_it_is(lambda: place.receiver.arrived > arrived)
            assert cut_off.router.pools[POOL].in_flight == 0
            await until_it_is(lambda: slots(other) == LIMIT)
            place.receiver.gate.set()
            await proxy.mend()
            await until_it_is(lambda: slots(other) + slots(cut_off) == LIMIT and slots(cut_off) > 0)
    assert place.receiver.most <= LIMIT


async def test_what_waits_in_a_process_that_lost_its_only_slot_is_delivered_by_the_one_that_has_it(
    place: Place,
) -> None:
    one_slot: dict[str, Any] = {"pools": [{"code": f"P{number}", "concurrency": 1} for number in range(12)]}
    async with raw_server(place.receiver) as endpoint, place.router(**one_slot) as first:
        assert first.jobs is not None
        for number in range(12):
            mode = {"message_group": f"g{number}", "mode": DispatchMode.BLOCK_ON_ERROR}
            await place.create(first.jobs, endpoint.url("/hook"), 3, dispatch_pool_code=f"P{number}", **mode)
        await until_it_is(lambda: len(place.receiver.open) == 12)
        async with place.router(**one_slot) as second:
            await until_it_is(lambda: sum(slots(first, f"P{number}") for number in range(12)) < 12)
            place.receiver.gate.set()
            await until_it_is(lambda: place.receiver.arrived == 36)
            both = [first, second]
            await until_it_is(lambda: [sum(slots(app, f"P{n}") for app in both) for n in range(12)] == [1] * 12)


async def test_a_rate_limit_is_not_exceeded_by_one_that_comes(place: Place) -> None:
    """Permits that were used count for a minute, also those of another process."""
    limited: dict[str, Any] = {"pools": [{"code": POOL, "concurrency": LIMIT, "rate_limit_per_minute": 6}]}
    place.receiver.gate.set()
    async with raw_server(place.receiver) as endpoint, place.router(**limited) as first:
        assert first.jobs is not None
        await place.create(first.jobs, endpoint.url("/hook"), 20)
        await until_it_is(lambda: place.receiver.arrived == 6)
        async with place.router(**limited) as second:
            await until_it_is(lambda: slots(first) + slots(second) == LIMIT and slots(second) > 0)
            assert second.router.pools[POOL].limits.rate_per_minute == 0
            assert place.receiver.arrived == 6


async def test_monitoring_shows_the_limit_and_the_share_of_each_process(place: Place, tmp_path: Path) -> None:
    platform = {"enabled": True, "database_url": place.url}
    pools = [{"code": POOL, "concurrency": LIMIT, "rate_limit_per_minute": 60}]
    async with place.router(pools=pools), run_router(tmp_path / "api", platform=platform, pools=pools) as running:

        async def both_are_there() -> bool:
            share = (await running.client.get("/monitoring/pool-stats")).json[0]["share"]
            return bool(share["processes"] == 2 and share["concurrency"] in (2, 3))

        await until(both_are_there)
        shown = (await running.client.get("/monitoring/pool-stats")).json[0]
        assert (shown["concurrency"], shown["rateLimitPerMinute"]) == (LIMIT, 60)
        changed = await running.client.put(f"/monitoring/pools/{POOL}", {"concurrency": 8})
        assert (changed.json["concurrency"], changed.json["share"]["concurrency"]) == (8, 4)


async def test_a_router_on_a_file_of_its_own_divides_nothing(tmp_path: Path) -> None:
    async with run_router(tmp_path, platform={"enabled": True}) as running:
        assert (await running.client.get("/monitoring/pool-stats")).json[0]["share"] is None


async def test_a_database_that_is_down_at_the_start_is_told_of_and_used_when_it_is_there(
    place: Place, tmp_path: Path
) -> None:
    async with tcp_proxy(place.server.port) as proxy:
        proxy.cut()
        url = place.url.replace(f":{place.server.port}/", f":{proxy.port}/")
        platform = {"enabled": True, "database_url": url}
        async with run_router(tmp_path, platform=platform) as running:

            async def it_is_told() -> bool:
                return "connection refused" in (await running.client.get("/monitoring/health")).text

            await until(it_is_told)
            await proxy.mend()

            async def it_is_over() -> bool:
                return "connection refused" not in (await running.client.get("/monitoring/health")).text

            await until(it_is_over)
            await until_it_is(lambda: all(pool.limits.concurrency for pool in running.app.router.pools.values()))


async def test_a_password_in_the_url_is_shown_nowhere(place: Place, tmp_path: Path) -> None:
    secret = "s3cret@/?#" + "x" * 8
    url = place.server.url_for(f"postgres:{quote(secret, safe='')}@") + place.url.partition("?")[1] + "schema=hidden"
    async with run_router(tmp_path, platform={"enabled": True, "database_url": url}) as running:
        for path in ("/monitoring/config", "/monitoring/health", "/warnings"):
            assert "s3cret" not in (await running.client.get(path)).text
        assert "s3cret" not in repr(running.app.settings)
        assert isinstance(running.app.jobs, PostgresJobStore)
        assert "s3cret" not in repr(running.app.jobs.database.pool.server)
        assert await running.app.jobs.count(Filter(), 10) == 0
