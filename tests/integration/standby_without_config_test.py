"""The config source is down when a router starts: one of several waits for it, one on its own tries for a while."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import aiohttp

from flowcatalyst.api.server import bind
from flowcatalyst.app.router import App
from flowcatalyst.app.serve import serve
from flowcatalyst.control.settings import Settings, SyncSettings
from tests.integration.live_standby_test import REFRESH_S, SLACK_S, STATUS, Pair, pair
from tests.support.http_servers import always, raw_server, reply
from tests.support.live import document
from tests.support.patience import PATIENCE_S
from tests.support.router_process import Waits

NO_CONFIG: Final = always(reply(503, b"not now"))
QUICK_ATTEMPTS: Final = Waits(more="[sync]\nattempts = 2\nattempt_pause_s = 0.05\ninterval_s = 1\n")
HEALTH: Final = "/monitoring/health"


async def until_it_asked_more_often_than_a_start_may(scene: Pair) -> None:
    asked = len(scene.config.server.requests)
    async with asyncio.timeout(PATIENCE_S):
        while len(scene.config.server.requests) < asked + 6:
            await asyncio.sleep(0.02)


def reasons(health: Mapping[str, Any], part: str) -> list[tuple[str, str]]:
    return [(reason["level"], reason["text"]) for reason in health["reasons"] if reason["part"] == part]


async def test_a_standby_whose_config_source_is_down_waits_for_it_and_leaves_the_lock_to_others(tmp_path: Path) -> None:
    async with pair(tmp_path) as scene:
        scene.config.server.script = NO_CONFIG
        async with scene.member(QUICK_ATTEMPTS) as first:
            api = scene.api(first)
            await until_it_asked_more_often_than_a_start_may(scene)
            health = await api.get(HEALTH)
            assert (health["status"], health["role"]) == ("DEGRADED", "standby")
            [(level, text)] = reasons(health, "config sync")
            assert level == "DEGRADED"
            assert f"{scene.config.url} answered 503" in text
            assert await api.status("GET", "/health/startup") == 200
            assert await api.status("GET", "/health/ready") == 503
            assert (await api.get(STATUS))["state"] == "STANDBY"
            assert scene.redis.command("EXISTS", "flowcatalyst:router:primary") == ":0\r\n"
            scene.config.say({"DEFAULT-POOL": 8}, ["orders"])
            await scene.until_primary(first)
            assert await api.status("GET", "/health/ready") == 200
            assert reasons(await api.get(HEALTH), "config sync") == []
            await scene.until_more_delivered()
            await scene.stop_all(first)
        await scene.assert_every_promise_was_kept()


async def test_a_standby_that_started_while_the_config_source_was_down_takes_over_once_it_is_back(
    tmp_path: Path,
) -> None:
    async with pair(tmp_path) as scene, scene.member() as first:
        await scene.until_primary(first)
        scene.config.server.script = NO_CONFIG
        async with scene.member(QUICK_ATTEMPTS) as second:
            await until_it_asked_more_often_than_a_start_may(scene)
            await scene.until_more_delivered()
            scene.config.say({"DEFAULT-POOL": 8}, ["orders"])
            await scene.until_standby_of(second, first)
            await scene.stop(first)
            await scene.until_primary(second, REFRESH_S + SLACK_S)
            await scene.until_more_delivered()
            await scene.stop_all(second)
        await scene.assert_every_promise_was_kept()


async def test_a_standby_that_still_waits_for_its_configuration_stops_at_once_and_cleanly(tmp_path: Path) -> None:
    async with pair(tmp_path) as scene:
        scene.config.server.script = NO_CONFIG
        async with scene.member() as first:  # tries for a minute
            await scene.stop(first)


async def test_a_router_on_its_own_says_what_it_waits_for_while_it_tries(tmp_path: Path) -> None:
    async with raw_server(NO_CONFIG) as server, aiohttp.ClientSession() as session:
        free = bind("127.0.0.1", 0)
        free.socket.close()
        sync = SyncSettings(config_url=server.url("/config"), attempts=1000, attempt_pause_s=0.05)
        app = App(Settings(data_dir=tmp_path, port=free.port, sync=sync))
        starting = asyncio.get_running_loop().create_task(starts(app))
        async with asyncio.timeout(PATIENCE_S):
            while len(server.requests) < 3:
                await asyncio.sleep(0.02)
            async with session.get(f"{free.url}{HEALTH}") as answer:
                health = await answer.json()
            async with session.get(f"{free.url}/health/startup") as answer:
                assert answer.status == 503
            [(level, text)] = reasons(health, "config sync")
            assert level == "DEGRADED"
            assert "the pools and queues are not known yet" in text
            assert "answered 503" in text
            server.script = always(reply(200, document({"FAST": 7}, ["orders"])))
            assert await starting == {"orders"}


async def starts(app: App) -> set[str]:
    """The queues that it polls once it has started."""
    async with serve(app):
        return set(app.consumers)
