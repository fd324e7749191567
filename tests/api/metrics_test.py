from prometheus_client.parser import text_string_to_metric_families

from flowcatalyst import __version__
from flowcatalyst.message import Result, Severity
from flowcatalyst.operations.warnings import WarningCode
from tests.api.running import Running, on_idle_router

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


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
        "flowcatalyst_pool_given_back_total": 0,
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


@on_idle_router
async def test_metrics_tell_which_build_runs(idle_router: Running) -> None:
    samples = await scrape(idle_router)
    (labels,) = [dict(labels) for name, labels in samples if name == "flowcatalyst_build_info"]
    assert labels["version"] == __version__
