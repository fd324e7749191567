import asyncio
from collections.abc import Iterator

import pytest
from prometheus_client.parser import text_string_to_metric_families

from flowcatalyst import __version__
from flowcatalyst.app.router import App
from flowcatalyst.control import depths, group_figures, metrics
from flowcatalyst.control.metrics import SLICE, Metrics, StoredFigures
from flowcatalyst.core.message import Result, Severity
from flowcatalyst.core.tasks import Tasks
from flowcatalyst.core.warnings import WarningCode
from flowcatalyst.queues.contract import Outgoing
from tests.api.running import Running, on_idle_router
from tests.support.clocks import SetClock
from tests.support.http_servers import always, raw_server, reply
from tests.support.patience import PATIENCE_S

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


@pytest.fixture(autouse=True)
def _always_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test changes is seen at once."""
    monkeypatch.setattr(metrics, "KEEP_S", 0.0)
    monkeypatch.setattr(depths, "KEEP_S", 0.0)
    monkeypatch.setattr(group_figures, "KEEP_S", 0.0)
    monkeypatch.setattr(group_figures, "RESTS", 0)


async def scrape(router: Running) -> Samples:
    answer = await router.client.get("/metrics")
    assert answer.status == 200
    assert answer.media_type == "text/plain"
    families = text_string_to_metric_families(answer.text)
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in families
        for sample in family.samples
    }


def value(samples: Samples, name: str, **labels: str) -> float:
    return samples[name, frozenset(labels.items())]


async def test_the_content_type_names_format_and_charset_once(router: Running) -> None:
    answer = await router.client.get("/metrics")
    assert answer.headers["Content-Type"] == "text/plain; version=1.0.0; charset=utf-8"


async def test_metrics_tell_what_each_pool_did_and_holds(router: Running) -> None:
    await router.client.post("/api/seed/messages?count=30&queue=low")
    await router.client.post(
        "/api/messages", {"mediationTarget": router.receiver("client-error"), "poolCode": "POOL-LOW"}
    )
    await router.until_dead(1)
    await router.until_settled()
    samples = await scrape(router)
    wanted = {
        "flowcatalyst_pool_queued": 0,
        "flowcatalyst_pool_in_flight": 0,
        "flowcatalyst_pool_groups": 0,
        "flowcatalyst_pool_held_groups": 0,
        "flowcatalyst_pool_concurrency": 2,
        "flowcatalyst_pool_capacity": 50,
        "flowcatalyst_pool_delivered_total": 30,
        "flowcatalyst_pool_dead_lettered_total": 1,
        "flowcatalyst_pool_nacked_total": 0,
        "flowcatalyst_pool_retried_total": 0,
        "flowcatalyst_pool_rate_limit_waits_total": 0,
    }
    assert {name: value(samples, name, pool="POOL-LOW") for name in wanted} == wanted
    attempts = {
        result: value(samples, "flowcatalyst_pool_attempts_total", pool="POOL-LOW", result=result) for result in Result
    }
    assert attempts == {"SUCCESS": 30, "ERROR_PROCESS": 0, "ERROR_CONFIG": 1, "ERROR_CONNECTION": 0}
    assert value(samples, "flowcatalyst_dead_letters") == 1
    assert value(samples, "flowcatalyst_tracker_size") == 0
    assert value(samples, "flowcatalyst_warnings") == 1
    for state in ("waiting", "leased", "delayed"):
        assert value(samples, "flowcatalyst_queue_messages", queue="low", state=state) == 0


async def test_metrics_tell_whether_the_router_works_and_whether_somebody_should_look(router: Running) -> None:
    samples = await scrape(router)
    assert value(samples, "flowcatalyst_primary") == 1
    assert value(samples, "flowcatalyst_health") == 0
    router.app.warnings.add(WarningCode.PROCESSING, Severity.CRITICAL, "a test", "test")
    samples = await scrape(router)
    assert value(samples, "flowcatalyst_health") == 1
    assert value(samples, "flowcatalyst_open_warnings", severity="CRITICAL") == 1
    assert value(samples, "flowcatalyst_open_warnings", severity="WARN") == 0


async def test_metrics_count_dropped_copies_by_queue(router: Running) -> None:
    router.app.tracker.dropped["low"] += 3
    samples = await scrape(router)
    assert value(samples, "flowcatalyst_duplicates_dropped_total", queue="low") == 3
    assert value(samples, "flowcatalyst_duplicates_dropped_total", queue="high") == 0


async def test_duration_buckets_are_cumulative(router: Running) -> None:
    stats = router.app.router.pools["POOL-LOW"].stats
    for duration_s in (0.001, 0.03, 0.03, 2.0, 5000.0):
        stats.attempt(Result.SUCCESS, duration_s)
    samples = await scrape(router)
    name = "flowcatalyst_attempt_duration_seconds"
    counts = {
        bound: value(samples, f"{name}_bucket", pool="POOL-LOW", le=bound)
        for bound in ("0.005", "0.025", "0.05", "1.0", "2.5", "900.0", "+Inf")
    }
    assert counts == {"0.005": 1, "0.025": 1, "0.05": 3, "1.0": 3, "2.5": 4, "900.0": 4, "+Inf": 5}
    assert value(samples, f"{name}_count", pool="POOL-LOW") == 5
    assert value(samples, f"{name}_sum", pool="POOL-LOW") == 5002.061


async def test_metrics_tell_how_late_messages_were_delivered(router: Running) -> None:
    await router.client.post("/api/seed/messages?count=30&queue=low")
    await router.until_settled()
    samples = await scrape(router)
    name = "flowcatalyst_delivery_lag_seconds"
    assert value(samples, f"{name}_count", pool="POOL-LOW") == 30
    assert 0 < value(samples, f"{name}_sum", pool="POOL-LOW") < 30 * PATIENCE_S
    assert value(samples, f"{name}_bucket", pool="POOL-LOW", le="3600.0") == 30
    assert value(samples, f"{name}_count", pool="POOL-HIGH") == 0


async def test_metrics_tell_what_waits_longest_and_which_groups_are_blocked(router: Running) -> None:
    async with raw_server(always(reply(500))) as endpoint:
        for number in range(2):
            await router.send(mediationTarget=endpoint.url(), id=f"m{number}", messageGroupId="g", poolCode="POOL-LOW")

        async def blocked() -> Samples | None:
            samples = await scrape(router)
            return samples if value(samples, "flowcatalyst_pool_blocked_groups", pool="POOL-LOW") else None

        async with asyncio.timeout(PATIENCE_S):
            while (samples := await blocked()) is None:
                await asyncio.sleep(0.01)
        assert value(samples, "flowcatalyst_pool_blocked_groups", pool="POOL-LOW") == 1
        assert 0 < value(samples, "flowcatalyst_pool_longest_blocked_seconds", pool="POOL-LOW") < PATIENCE_S
        assert 0 < value(samples, "flowcatalyst_pool_oldest_waiting_seconds", pool="POOL-LOW") < PATIENCE_S
        assert 0 < value(samples, "flowcatalyst_queue_oldest_message_seconds", queue="default") < PATIENCE_S
        assert value(samples, "flowcatalyst_pool_blocked_groups", pool="POOL-HIGH") == 0
        endpoint.script = always(reply(200))
        await router.until_settled()
    samples = await scrape(router)
    for name in ("blocked_groups", "longest_blocked_seconds", "oldest_waiting_seconds"):
        assert value(samples, f"flowcatalyst_pool_{name}", pool="POOL-LOW") == 0
    assert ("flowcatalyst_queue_oldest_message_seconds", frozenset({("queue", "default")})) not in samples


@on_idle_router
async def test_metrics_tell_which_build_runs(idle_router: Running) -> None:
    samples = await scrape(idle_router)
    (labels,) = [dict(labels) for name, labels in samples if name == "flowcatalyst_build_info"]
    assert labels["version"] == __version__


@on_idle_router
async def test_text_is_made_once_a_second_whoever_asks(idle_router: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    made, lines = [], metrics.lines
    monkeypatch.setattr(metrics, "KEEP_S", 1.0)
    clock = SetClock()

    def counted(app: App, stored: StoredFigures) -> Iterator[str]:
        made.append(clock.now)
        return lines(app, stored)

    monkeypatch.setattr(metrics, "lines", counted)
    monkeypatch.setattr(idle_router.app, "clock", clock)
    asked = Metrics(idle_router.app)
    first, *others = await asyncio.gather(*(asked.render() for _ in range(5)))
    assert all(text is first for text in [*others, await asked.render()])
    clock.now += 0.999
    assert await asked.render() is first
    assert len(made) == 1
    clock.now += 0.001
    assert await asked.render() is not first
    assert len(made) == 2


@on_idle_router
async def test_others_run_while_the_text_of_many_pools_is_made(
    idle_router: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns, longest = 0, 0
    pieces_since_turn = 0

    async def other() -> None:
        nonlocal turns, pieces_since_turn
        while True:
            await asyncio.sleep(0)
            turns, pieces_since_turn = turns + 1, 0

    def many(app: App, stored: StoredFigures) -> Iterator[str]:
        nonlocal longest, pieces_since_turn
        for number in range(100 * SLICE):
            pieces_since_turn += 1
            longest = max(longest, pieces_since_turn)
            yield f"series_{number} 1\n"

    monkeypatch.setattr(metrics, "lines", many)
    running = Tasks()
    running.spawn(other())
    text = await Metrics(idle_router.app).render()
    await running.cancel()
    assert text.startswith(b"series_0 1\nseries_1 1\n")
    assert f"series_{100 * SLICE - 1} 1\n".encode() in text
    assert turns >= 100
    assert longest <= SLICE


async def test_paths_of_an_origin_are_one_series_with_the_worst_state(router: Running) -> None:
    for number in range(50):
        router.app.breakers.get(f"https://shop.test:8443/orders/{number}")
    broken = router.app.breakers.get("https://shop.test:8443/broken")
    for _ in range(10):
        broken.record(failed=True, now=1.0, admitted_at=1.0)
    router.app.breakers.get("http://other.test/hook")
    samples = await scrape(router)
    states = {dict(labels)["origin"]: state for (name, labels), state in samples.items() if name.endswith("er_state")}
    assert states == {"https://shop.test:8443": 2, "http://other.test": 0}
    assert value(samples, "flowcatalyst_circuit_breakers", state="OPEN") == 1
    assert value(samples, "flowcatalyst_circuit_breakers", state="CLOSED") == 51


async def test_no_path_of_a_webhook_gets_into_the_metrics_which_are_open_to_everybody(router: Running) -> None:
    async with raw_server(always(reply(404, b"no"))) as endpoint:
        await router.send(mediationTarget=endpoint.url("/services/T0/s3cret?key=s3cret"))
        await router.until_dead(1)
    router.app.breakers.get("no URL but a s3cret")  # whatever somebody may put there one day
    text = (await router.client.get("/metrics")).text
    assert "s3cret" not in text
    assert f'origin="http://127.0.0.1:{endpoint.port}"' in text
    assert 'origin="none"' in text


async def test_names_with_quotes_and_line_ends_are_labels_too(router: Running) -> None:
    odd = 'a "b" \\ \n c'
    router.app.router.pools[odd] = router.app.router.pools["POOL-LOW"]
    monkeyed = router.app.router.pools[odd]
    code, monkeyed.code = monkeyed.code, odd
    samples = await scrape(router)
    monkeyed.code = code
    del router.app.router.pools[odd]
    assert value(samples, "flowcatalyst_pool_concurrency", pool=odd) == 2


async def test_messages_that_fall_to_the_default_pool_are_counted_by_why(router: Running) -> None:
    to = f'"mediationTarget": "{router.receiver("fast")}"'
    bodies = [
        f'{{"id": "1", {to}, "poolCode": "NOWHERE"}}',
        f'{{"id": "2", {to}, "poolCode": "NOWHERE-ELSE"}}',
        f'{{"id": "3", {to}}}',
        f'{{"id": "4", {to}, "poolCode": "DEFAULT-POOL"}}',
        f'{{"id": "5", {to}, "poolCode": "POOL-LOW"}}',
    ]
    await router.app.queues["default"].publish([Outgoing(body, "g") for body in bodies])
    await router.until_settled()
    samples = await scrape(router)
    name = "flowcatalyst_default_pool_messages_total"
    assert [value(samples, name, pool_code=why) for why in ("unknown", "missing")] == [2, 1]
