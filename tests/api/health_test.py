import asyncio
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from pydantic import SecretStr

from flowcatalyst import __version__
from flowcatalyst.api.asgi import build_api
from flowcatalyst.api.server import api_server, bind
from flowcatalyst.app.router import App
from flowcatalyst.control.health import FAILING_CONSUMER_S, SILENT_STORAGE_S
from flowcatalyst.control.router_config import RouterConfig
from flowcatalyst.control.settings import Settings, StandbySettings, SyncSettings
from flowcatalyst.control.standby import StandbyState
from flowcatalyst.core.clock import SystemClock
from flowcatalyst.core.errors import QueueUnavailableError
from flowcatalyst.core.message import Severity
from flowcatalyst.core.warnings import WarningCode, WarningFilter
from flowcatalyst.queues.contract import Loss
from flowcatalyst.queues.embedded.queue import EmbeddedQueue
from flowcatalyst.queues.embedded.store import EmbeddedStore
from flowcatalyst.router.consumer import Consumer
from flowcatalyst.router.outages import DownEndpoint
from flowcatalyst.router.settler import Settler
from flowcatalyst.router.watch import SILENT_CONSUMER_S, Watch, Watches
from tests.api.breakers_test import open_breaker
from tests.api.resting import resting_standby, resting_sync
from tests.api.running import Running, run_router, until
from tests.support.http_servers import Gate, always, raw_server, reply

PROBES = ("/health/live", "/health/ready", "/health/startup", "/health", "/monitoring/health")


async def test_a_router_at_work_is_up_and_ready(router: Running) -> None:
    async def polled() -> bool:
        return all(consumer.reports.last_poll_at is not None for consumer in router.app.consumers.values())

    await until(polled)
    answer = await router.client.get("/health")
    assert answer.status == 200
    assert (answer.json["status"], answer.json["version"]) == ("UP", __version__)
    names = {check["name"] for check in answer.json["checks"]}
    assert names == {"consumer default", "consumer high", "consumer medium", "consumer low", "storage"}
    for path in ("/health/live", "/health/ready", "/health/startup"):
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
        return consumer.reports.last_poll_at is not None

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


async def test_a_consumer_that_waits_for_capacity_is_up(router: Running) -> None:
    async def polled() -> bool:
        return all(consumer.reports.last_poll_at is not None for consumer in router.app.consumers.values())

    await until(polled)
    for pool in router.app.router.pools.values():
        pool.admission.free_capacity = lambda limits: 0  # type: ignore[method-assign]

    async def waits() -> bool:
        return all(consumer.waits_for_capacity for consumer in router.app.consumers.values())

    await until(waits)
    clock = router.app.clock = LateClock()
    clock.ahead_s = 61.0
    answer = await router.client.get("/health")
    assert answer.status == 200
    assert "waits for free capacity" in answer.json["checks"][0]["detail"]


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
        for path, status in [("/health/live", 200), ("/health/ready", 503), ("/health/startup", 503), ("/health", 503)]:
            async with session.get(path) as response:
                assert response.status == status
        async with session.post("/api/messages", json={"mediationTarget": "http://127.0.0.1:9/"}) as response:
            assert (response.status, response.content_type) == (503, "application/problem+json")


async def test_a_router_that_stops_has_started_but_is_not_ready(router: Running) -> None:
    router.app.stopping = True
    answer = await router.client.get("/health/ready")
    assert (answer.status, answer.json["checks"][0]["detail"]) == (503, "stopping")
    assert (await router.client.get("/health/startup")).status == 200
    await assert_one_reason(router, "WARNING", "router", "the router is stopping: it takes no more messages")


async def test_a_router_that_drains_says_for_how_many_attempts_it_waits(router: Running) -> None:
    hangs = Gate()
    async with raw_server(hangs) as server:
        await router.send(mediationTarget=server.url())

        async def has_begun() -> bool:
            return router.app.router.pools["DEFAULT-POOL"].in_flight == 1

        await until(has_begun)
        router.app.stopping = True
        await assert_one_reason(router, "WARNING", "router", "is stopping, waits for 1 attempt in flight")
        hangs.opened.set()
        await router.until_settled()


async def test_a_standby_is_up_ready_and_healthy(router: Running) -> None:
    resting_standby(router)
    router.app.at_work = False
    for path in ("/health", "/health/ready", "/health/startup"):
        answer = await router.client.get(path)
        assert (answer.status, answer.json["status"]) == (200, "UP")
    assert answer.json["checks"] == [{"name": "router", "status": "UP", "detail": "standby"}]
    assert await health(router) == {"status": "HEALTHY", "role": "standby", "reasons": []}


async def test_probes_answer_at_once_while_a_broker_and_the_storage_hang(
    router: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    freed = asyncio.Event()

    async def hang(self: Any, *args: Any) -> list[Any]:
        await freed.wait()
        return []

    monkeypatch.setattr(EmbeddedQueue, "receive", hang)
    monkeypatch.setattr(type(router.app.store.writer), "read", hang)
    clock = router.app.clock = LateClock()
    for silent_s, status in ((0.0, 200), (SILENT_STORAGE_S, 503)):
        clock.ahead_s = silent_s
        for path in PROBES:
            async with asyncio.timeout(0.5):
                answer = await router.client.get(path)
            assert answer.status == (status if path == "/health" else 200)
    freed.set()


async def test_storage_that_answers_again_is_up_again(router: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    freed = asyncio.Event()

    async def hang(self: Any, *args: Any) -> None:
        await freed.wait()

    monkeypatch.setattr(type(router.app.store.writer), "read", hang)
    clock = router.app.clock = LateClock()
    assert (await router.client.get("/health")).status == 200
    clock.ahead_s = SILENT_STORAGE_S
    storage = (await router.client.get("/health")).json["checks"][-1]
    assert (storage["name"], storage["status"], storage["detail"]) == ("storage", "DOWN", "no answer for 5 s")
    monkeypatch.undo()
    freed.set()
    assert (await router.client.get("/health")).status == 200


# /monitoring/health


async def health(router: Running) -> dict[str, Any]:
    found: dict[str, Any] = (await router.client.get("/monitoring/health")).json
    return found


async def assert_one_reason(router: Running, level: str, part: str, *words: str) -> None:
    """It is this level, for one reason, of this part, with these words."""
    found = await health(router)
    (reason,) = found["reasons"]
    assert (found["status"], reason["level"], reason["part"]) == (level, level, part)
    for word in words:
        assert word in reason["text"]


async def test_an_idle_router_is_healthy(router: Running) -> None:
    assert await health(router) == {"status": "HEALTHY", "role": "primary", "reasons": []}


async def test_a_dead_consumer_degrades_the_router(router: Running) -> None:
    consumer = router.app.consumers["high"]
    consumer.stop()

    async def stopped() -> bool:
        return all(task.done() for task in router.app.engine._consuming["high"])

    await until(stopped)
    consumer.reports.last_error = "the broker is away"
    consumer.reports.last_poll_at = consumer._polls_since = router.app.clock.monotonic() - SILENT_CONSUMER_S - 2
    await assert_one_reason(router, "DEGRADED", "consumer", "queue high", "not polled for 62 s", "broker is away")


async def test_a_consumer_whose_latest_poll_failed_is_a_warning(
    router: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    receive_from = EmbeddedQueue.receive

    async def receive(self: EmbeddedQueue, limit: int, wait_s: float, demand: object = None) -> list[Any]:
        if self.name == "high":
            raise QueueUnavailableError("the broker is away")
        return [*await receive_from(self, limit, wait_s)]

    monkeypatch.setattr(EmbeddedQueue, "receive", receive)

    async def failed() -> bool:
        return bool(router.app.consumers["high"].reports.last_error)

    await until(failed)
    await assert_one_reason(router, "WARNING", "consumer", "latest poll of queue high failed", "broker is away")
    consumer = router.app.consumers["high"]
    consumer.reports.last_poll_at = consumer._polls_since = router.app.clock.monotonic() - FAILING_CONSUMER_S
    await assert_one_reason(router, "DEGRADED", "consumer", "queue high", "not polled for 30 s", "broker is away")


async def test_an_open_breaker_is_a_warning_that_names_its_endpoint(router: Running) -> None:
    open_breaker(router, "http://shop.test/")
    await assert_one_reason(router, "WARNING", "circuit breaker", "http://shop.test/", "is open")
    router.app.breakers.get("http://shop.test/").reset()
    assert (await health(router))["status"] == "HEALTHY"


async def test_a_failed_config_sync_is_a_warning(router: Running) -> None:
    sync = resting_sync(router)
    sync.in_force = RouterConfig()
    assert (await health(router))["status"] == "HEALTHY"
    sync.last_error = "http://config.test/ answered 500"
    await assert_one_reason(router, "WARNING", "config sync", "http://config.test/ answered 500")


async def test_a_primary_that_cannot_reach_its_lock_is_a_warning(router: Running) -> None:
    standby = resting_standby(router)
    standby.state, standby.last_error = StandbyState.PRIMARY, "Redis refuses the connection"
    await assert_one_reason(router, "WARNING", "standby", "Redis refuses")
    assert (await health(router))["role"] == "primary"


async def test_a_standby_that_cannot_reach_its_lock_is_degraded_since_it_cannot_take_over(router: Running) -> None:
    resting_standby(router).last_error = "Redis refuses the connection"
    router.app.at_work = False
    await assert_one_reason(router, "DEGRADED", "standby", "Redis refuses", "no router is known to be at work since")
    assert (await health(router))["role"] == "standby"


async def test_a_configuration_that_is_not_used_as_it_is_written_is_a_warning_until_it_is_corrected(
    router: Running,
) -> None:
    warnings = router.app.warnings
    for field in ("concurrncy", "rateLimt"):
        warnings.add(WarningCode.CONFIG_REJECTED, Severity.WARN, f"pool A has an unknown field {field}", "config sync")
    await assert_one_reason(router, "WARNING", "configuration", "2 entries are not used", "unknown field")
    warnings.acknowledge_all()
    assert (await health(router))["status"] == "HEALTHY"


async def test_of_several_losses_the_health_names_the_worst(router: Running) -> None:
    for name, messages in (("high", 3), ("default", 70), ("low", 1)):
        reports = router.app.consumers[name].reports
        reports._queue.losses.append(Loss(f"it held {messages} messages", messages))
        reports._tell_of_losses()
    await assert_one_reason(router, "WARNING", "messages", "3 warnings, the worst: queue default: it held 70 messages")


async def test_another_process_on_the_same_queue_file_is_told_if_it_stays(router: Running) -> None:
    other = EmbeddedStore(router.app.store.path, SystemClock())
    await other.open()
    await router.app.store.reap()
    shared, warnings = router.app.shared_file, router.app.warnings
    await shared.look()
    assert (await health(router))["status"] == "HEALTHY"  # a command may have it open for a moment
    await shared.look()
    await shared.look()
    await assert_one_reason(router, "WARNING", "storage", "another process has the queue file", "its own limits")
    [told] = warnings.recent(WarningFilter(code=WarningCode.QUEUE_SETUP, acknowledged=False))
    assert (told.source, told.count) == ("queue file", 1)
    await other.close()
    await router.app.store.reap()
    await shared.look()
    assert (await health(router))["status"] == "HEALTHY"
    assert warnings.recent(WarningFilter(code=WarningCode.QUEUE_SETUP, acknowledged=False)) == []


async def test_routers_that_share_a_standby_lock_may_share_a_queue_file(router: Running) -> None:
    resting_standby(router)
    router.app.store.others_alive = 1
    for _ in range(3):
        await router.app.shared_file.look()
    assert (await health(router))["status"] == "HEALTHY"


async def test_a_watcher_that_is_late_is_a_warning(router: Running) -> None:
    watch = next(one for one in router.app.engine.watches.all if one.name == "leases")
    watch.looked_at -= 3 * watch.period_s + 31
    await assert_one_reason(router, "WARNING", "watcher", "watcher of leases is late")


async def test_a_warning_that_is_an_error_or_worse_counts_until_somebody_acknowledges_it(router: Running) -> None:
    warnings = router.app.warnings
    warnings.add(WarningCode.ROUTING, Severity.WARN, "not that bad", "router")
    assert (await health(router))["status"] == "HEALTHY"
    warnings.add(WarningCode.CONFIGURATION, Severity.ERROR, "HTTP 404 from http://shop.test/", "mediator")
    await assert_one_reason(router, "WARNING", "warnings", "a warning that nobody", "ERROR CONFIGURATION", "HTTP 404")
    warnings.add(WarningCode.PROCESSING, Severity.CRITICAL, "no room on the disk", "consumer")
    warnings.add(WarningCode.CONFIGURATION, Severity.ERROR, "HTTP 400 from http://shop.test/", "mediator")
    await assert_one_reason(router, "WARNING", "warnings", "3 warnings", "CRITICAL PROCESSING", "no room on the disk")
    await router.client.post("/monitoring/warnings/acknowledge")
    assert (await health(router))["status"] == "HEALTHY"


async def test_what_is_over_is_no_reason_even_if_nobody_acknowledged_it(router: Running) -> None:
    warnings = router.app.warnings
    for code in (WarningCode.ENDPOINT_DOWN, WarningCode.GROUP_BLOCKED, WarningCode.QUEUE_UNAVAILABLE):
        warnings.add(code, Severity.ERROR, "it was so", "somebody")
    assert (await health(router))["status"] == "HEALTHY"


async def test_an_endpoint_that_is_down_is_a_reason_and_its_breaker_no_second_one(router: Running) -> None:
    open_breaker(router, "http://shop.test/")
    since = router.app.clock.monotonic() - 300
    router.app.engine.endpoint_outages.down["http://shop.test/"] = DownEndpoint(since, "HTTP 503", since + 120)
    text = "http://shop.test/ has been down for 5 minutes: HTTP 503; tried last 3 minutes ago"
    await assert_one_reason(router, "WARNING", "endpoint", text)


async def test_of_many_endpoints_that_are_down_some_are_named_and_the_others_counted(router: Running) -> None:
    since = router.app.clock.monotonic() - 300
    for n in range(1000):
        router.app.engine.endpoint_outages.down[f"http://shop.test/{n}"] = DownEndpoint(since, "HTTP 503")
        open_breaker(router, f"http://mail.test/{n}")
    found = await health(router)
    assert [reason["part"] for reason in found["reasons"]] == ["endpoint"] * 6 + ["circuit breaker"] * 6
    assert found["reasons"][5]["text"] == "995 more endpoints are down"
    assert found["reasons"][11]["text"] == "995 more circuit breakers are not closed"


async def test_one_more_endpoint_than_are_named_is_one_in_words(router: Running) -> None:
    since = router.app.clock.monotonic() - 300
    for n in range(6):
        router.app.engine.endpoint_outages.down[f"http://shop.test/{n}"] = DownEndpoint(since, "HTTP 503")
        open_breaker(router, f"http://mail.test/{n}")
    reasons = (await health(router))["reasons"]
    assert reasons[5]["text"] == "1 more endpoint is down"
    assert reasons[11]["text"] == "1 more circuit breaker is not closed"


async def test_an_endpoint_that_redirects_is_not_called_down(router: Running) -> None:
    since = router.app.clock.monotonic() - 300
    router.app.engine.endpoint_outages.down["http://shop.test/"] = DownEndpoint(since, "HTTP 302")
    text = "http://shop.test/ has not accepted deliveries for 5 minutes: it redirects (HTTP 302), and redirects are not"
    await assert_one_reason(router, "WARNING", "endpoint", text)


async def test_a_probe_says_that_somebody_should_look_but_stays_up(router: Running) -> None:
    answer = await router.client.get("/health")
    assert (answer.status, answer.json["level"], answer.json["reasons"]) == (200, "HEALTHY", [])
    down = router.app.engine.endpoint_outages.down
    for name in ("a", "b"):
        down[f"http://secret.test/{name}"] = DownEndpoint(0.0, "HTTP 503")
    answer = await router.client.get("/health")
    assert (answer.status, answer.json["status"], answer.json["level"]) == (200, "UP", "WARNING")
    assert answer.json["reasons"] == ["endpoint"]
    assert "secret.test" not in answer.text  # strangers may ask
    for path in ("/health/live", "/health/ready", "/health/startup"):
        assert (await router.client.get(path)).status == 200


async def test_the_worst_reason_decides_and_all_are_told(router: Running) -> None:
    open_breaker(router, "http://shop.test/")
    resting_standby(router).last_error = "Redis refuses the connection"
    resting_sync(router).last_error = "no answer"
    found = await health(router)
    assert found["status"] == "DEGRADED"
    assert [reason["part"] for reason in found["reasons"]] == ["circuit breaker", "config sync", "standby"]


async def test_a_router_that_is_not_at_work_is_not_blamed_for_what_rests(router: Running) -> None:
    open_breaker(router, "http://shop.test/")
    router.app.consumers["high"].reports.last_error = "the broker is away"
    router.app.engine.watches.all[0].looked_at = 0.0
    router.app.at_work = False
    assert await health(router) == {"status": "HEALTHY", "role": "not at work", "reasons": []}


async def test_a_task_of_the_router_that_died_is_degraded_and_works_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deaths = ["watch leases", "settle default", "consume default"]
    settle, look_once, wait_for_room = Settler.settle, Watches.look_once, Consumer._wait_for_capacity

    def dies_of(name: str) -> None:
        if name in deaths:
            deaths.remove(name)
            raise ValueError("a bug")

    async def settle_once(self: Settler) -> None:
        dies_of(f"settle {self.name}")
        await settle(self)

    async def look(self: Watches, watch: Watch) -> None:
        dies_of(f"watch {watch.name}")
        await look_once(self, watch)

    async def wait(self: Consumer) -> None:
        dies_of("consume default" if "default" in repr(self) else "")
        await wait_for_room(self)

    monkeypatch.setattr(Settler, "settle", settle_once)
    monkeypatch.setattr(Watches, "look_once", look)
    monkeypatch.setattr(Consumer, "_wait_for_capacity", wait)
    monkeypatch.setattr("flowcatalyst.router.engine.LEASE_PERIOD_S", 0.1)
    async with run_router(tmp_path) as router:
        await router.client.post("/api/seed/messages?count=20&queue=default")

        async def all_died() -> bool:
            return not deaths

        await until(all_died)
        health = (await router.client.get("/monitoring/health")).json
        assert health["status"] == "DEGRADED"
        died = {reason["text"].split("'")[1] for reason in health["reasons"] if reason["part"] == "task"}
        assert died == {"watch leases", "settle default", "consume default"}
        codes = [warning.code for warning in router.app.warnings.recent() if warning.severity is Severity.ERROR]
        assert codes.count(WarningCode.TASK_DIED) == 3
        await router.until_settled()
        assert (await router.stats())["totalRequests"] == 20


async def test_a_router_without_a_queue_that_can_be_used_says_so(tmp_path: Path) -> None:
    config = tmp_path / "router.json"
    config.write_text('{"processingPools": [{"code": "A"}], "queues": [{"queueName": "q", "queueUri": "nonsense:q"}]}')
    async with run_router(tmp_path / "data", sync=SyncSettings(config_url=str(config))) as router:
        health = (await router.client.get("/monitoring/health")).json
        assert health["status"] == "WARNING"
        assert "nothing is polled" in health["reasons"][0]["text"]


async def test_a_disabled_router_is_ready_and_does_nothing(tmp_path: Path) -> None:
    sync, standby = SyncSettings(config_url="http://127.0.0.1:9/"), StandbySettings(redis_url=SecretStr("redis://x/0"))
    async with run_router(tmp_path, enabled=False, sync=sync, standby=standby) as router:
        for path in ("/health", "/health/ready", "/health/startup"):
            assert (await router.client.get(path)).status == 200
        health = (await router.client.get("/monitoring/health")).json
        assert (health["role"], health["status"]) == ("disabled", "WARNING")
        assert "no queue is polled" in health["reasons"][0]["text"]
        assert (await router.client.get("/monitoring/standby-status")).json["state"] == "STANDBY"
        assert "flowcatalyst_primary 0" in (await router.client.get("/metrics")).text
        (await router.client.post("/config/reload")).assert_problem(409, "disabled")


async def test_what_is_sent_to_a_disabled_router_waits_in_its_queue(tmp_path: Path) -> None:
    async with raw_server(always(reply(200))) as endpoint:
        async with run_router(tmp_path, enabled=False) as router:
            assert (await router.send(mediationTarget=endpoint.url())).status == 202
            assert (router.app.consumers, router.app.router.pools) == ({}, {})
            depth = await router.app.queues["default"].depth()
            assert depth is not None
            assert (depth.waiting, endpoint.requests) == (1, [])
        async with run_router(tmp_path) as router:
            await router.until_settled()
            assert len(endpoint.requests) == 1
