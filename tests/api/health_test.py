from pathlib import Path

import aiohttp

from flowcatalyst import __version__
from flowcatalyst.app import App
from flowcatalyst.clock import SystemClock
from flowcatalyst.config import Settings
from flowcatalyst.web.asgi import build_api
from flowcatalyst.web.server import api_server, bind
from tests.api.running import Running, until


async def test_a_router_at_work_is_up_and_ready(router: Running) -> None:
    async def polled() -> bool:
        return all(consumer.last_poll_at is not None for consumer in router.app.consumers.values())

    await until(polled)
    answer = await router.client.get("/health")
    assert answer.status == 200
    assert (answer.json["status"], answer.json["version"]) == ("UP", __version__)
    names = {check["name"] for check in answer.json["checks"]}
    assert names == {"consumer default", "consumer high", "consumer medium", "consumer low", "storage"}
    for path in ("/health/live", "/health/ready"):
        answer = await router.client.get(path)
        assert (answer.status, answer.json["status"]) == (200, "UP")


class LateClock(SystemClock):
    """A clock that can be put forward."""

    def __init__(self) -> None:
        super().__init__()
        machine = self.monotonic
        self.ahead_s = 0.0
        self.monotonic = lambda: machine() + self.ahead_s


async def test_a_consumer_that_does_not_poll_for_a_minute_is_down(router: Running) -> None:
    consumer = router.app.consumers["high"]

    async def polled() -> bool:
        return consumer.last_poll_at is not None

    await until(polled)
    consumer.stop()
    clock = router.app.clock = LateClock()
    assert (await router.client.get("/health")).status == 200
    clock.ahead_s = 61.0
    answer = await router.client.get("/health")
    assert (answer.status, answer.json["status"]) == (503, "DOWN")
    check = next(check for check in answer.json["checks"] if check["name"] == "consumer high")
    assert check["status"] == "DOWN"
    assert (await router.client.get("/health/live")).status == 200


async def test_a_consumer_that_waits_for_room_is_up(router: Running) -> None:
    async def polled() -> bool:
        return all(consumer.last_poll_at is not None for consumer in router.app.consumers.values())

    await until(polled)
    for pool in router.app.router.pools.values():
        pool._capacity = 0

    async def waits() -> bool:
        return all(consumer.waits_for_room for consumer in router.app.consumers.values())

    await until(waits)
    clock = router.app.clock = LateClock()
    clock.ahead_s = 61.0
    answer = await router.client.get("/health")
    assert answer.status == 200
    assert "waits for room" in answer.json["checks"][0]["detail"]


async def test_closed_storage_is_down(router: Running) -> None:
    await router.app.dead_letters.close()
    answer = await router.client.get("/health")
    assert answer.status == 503
    assert next(check for check in answer.json["checks"] if check["name"] == "storage")["status"] == "DOWN"
    (await router.client.get("/monitoring/dead-letters")).assert_problem(503, "closed")


async def test_before_the_router_runs_the_api_is_alive_but_not_ready(tmp_path: Path) -> None:
    app = App(Settings(data_dir=tmp_path))
    listening = bind("127.0.0.1", 0)
    async with api_server(build_api(app), listening), aiohttp.ClientSession(listening.url) as session:
        for path, status in [("/health/live", 200), ("/health/ready", 503), ("/health", 503)]:
            async with session.get(path) as response:
                assert response.status == status
        async with session.post("/api/messages", json={"mediationTarget": "http://127.0.0.1:9/"}) as response:
            assert (response.status, response.content_type) == (503, "application/problem+json")
