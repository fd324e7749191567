"""What is told of jobs without being asked for one: metrics, warnings, health."""

from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from flowcatalyst.control import metrics
from flowcatalyst.core.warnings import ENDED_BY, WarningCode
from flowcatalyst.dispatch import housekeeping
from tests.api.dispatching import JOBS, Dispatching, dispatching
from tests.api.running import until
from tests.api.subscribing import EVENTS, Subscribing


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "KEEP_S", 0.0)
    for name in ("WATCH_PERIOD_S", "EXPIRE_PERIOD_S", "DROP_PERIOD_S"):
        monkeypatch.setattr(housekeeping, name, 0.02)


async def samples(jobs: Dispatching) -> dict[str, float]:
    text = (await jobs.client.get("/metrics")).text
    return {
        one.name + (f"{{{one.labels['le']}}}" if "le" in one.labels else ""): one.value
        for family in text_string_to_metric_families(text)
        for one in family.samples
        if "pool" not in one.labels
    }


async def test_what_happens_to_jobs_is_counted(jobs: Dispatching) -> None:
    await jobs.blocked("1", "2")
    await jobs.create("3")
    await jobs.until("3", "COMPLETED")
    await jobs.act("2", "cancel")
    found = await samples(jobs)
    counted = {name: found[f"flowcatalyst_jobs_{name}_total"] for name in ("created", "completed", "failed", "parked")}
    assert counted == {"created": 3, "completed": 1, "failed": 1, "parked": 1}
    assert found["flowcatalyst_jobs_cancelled_total"] == 1
    assert found["flowcatalyst_job_duration_seconds_count"] == 1
    assert found["flowcatalyst_job_duration_seconds_sum"] > 0


async def test_events_are_counted_with_the_jobs_that_they_made_and_the_time_it_took(shop: Subscribing) -> None:
    await shop.subscribe("orders")
    await shop.subscribe("archive", "**")
    for name, more in (("1", {}), ("2", {"type": "invoice.sent"}), ("3", {"deduplicationId": "3"})):
        await shop.send(name, **more)
    again = await shop.client.post(f"{EVENTS}/batch", {"events": [shop.event("3", deduplicationId="3")] * 2})
    assert again.status == 200
    refused = await shop.client.post(EVENTS, {"type": "a b"})
    assert refused.status == 400
    text = (await shop.client.get("/metrics")).text
    found = {
        one.name + (f"{{{one.labels['le']}}}" if one.labels else ""): one.value
        for family in text_string_to_metric_families(text)
        for one in family.samples
        if one.name.startswith("flowcatalyst_event")
    }
    assert (found["flowcatalyst_events_accepted_total"], found["flowcatalyst_events_deduplicated_total"]) == (3, 2)
    assert [found[f"flowcatalyst_event_jobs_bucket{{{most}}}"] for most in ("0", "1", "2", "+Inf")] == [0, 1, 3, 3]
    assert (found["flowcatalyst_event_jobs_sum"], found["flowcatalyst_event_jobs_count"]) == (5, 3)
    assert found["flowcatalyst_event_matching_seconds_count"] == 5
    assert 0 < found["flowcatalyst_event_matching_seconds_sum"] < 60


async def test_the_metrics_of_message_groups_have_the_names_of_the_guide(jobs: Dispatching) -> None:
    await jobs.blocked("a1", "a2", group="a")
    await jobs.blocked("b1", group="b")
    found = await samples(jobs)
    assert (found["dispatch_groups_active"], found["dispatch_groups_blocked"]) == (2, 2)
    assert found["dispatch_messages_in_group_bucket{1}"] == 1
    assert found["dispatch_messages_in_group_bucket{10}"] == 2
    assert found["dispatch_messages_in_group_bucket{+Inf}"] == found["dispatch_messages_in_group_count"] == 2


async def test_what_waits_is_shown_by_what_it_waits_for(tmp_path: Path) -> None:
    async with dispatching(tmp_path, enabled=False) as jobs:
        await jobs.create("waiting")
        await jobs.create("scheduled", scheduledFor="2999-01-01T00:00:00Z")
        found = await samples(jobs)
    assert (found["flowcatalyst_jobs_waiting"], found["flowcatalyst_jobs_scheduled"]) == (1, 1)
    assert (found["flowcatalyst_jobs_parked"], found["flowcatalyst_jobs_oldest_waiting_seconds"] > 0) == (0, True)


async def test_a_router_without_jobs_has_no_metrics_of_them(tmp_path: Path) -> None:
    async with dispatching(tmp_path, platform={"enabled": False}) as jobs:
        assert not [name for name in await samples(jobs) if "job" in name or "event" in name or "dispatch_" in name]


async def open_warnings(jobs: Dispatching, code: str) -> list[dict[str, Any]]:
    """Those of this code that ask for somebody; that something is over again is acknowledged from the start."""
    is_over = WarningCode(code) in ENDED_BY
    path = f"/monitoring/warnings?code={code}&acknowledged={'true' if is_over else 'false'}"
    found: list[dict[str, Any]] = (await jobs.client.get(path)).json
    return found


async def until_told(jobs: Dispatching, code: str, count: int = 1) -> list[dict[str, Any]]:
    async def is_so() -> bool:
        return len(await open_warnings(jobs, code)) == count

    await until(is_so)
    return await open_warnings(jobs, code)


async def test_a_parked_job_is_a_warning_and_a_reason_of_health_until_somebody_acts(jobs: Dispatching) -> None:
    await jobs.blocked("1")
    (told,) = await until_told(jobs, "JOB_PARKED")
    assert (told["severity"], told["source"]) == ("ERROR", "jobs of pool DEFAULT-POOL")

    async def says_so() -> bool:
        return "a dispatch job waits for a person" in str((await jobs.client.get("/monitoring/health")).json)

    await until(says_so)  # its figures may be those of the look before
    await jobs.act("1", "retry")
    await until_told(jobs, "JOB_PARKED_OVER")
    await until_told(jobs, "JOB_PARKED", 0)

    async def is_healthy() -> bool:
        return "waits for a person" not in str((await jobs.client.get("/monitoring/health")).json)

    await until(is_healthy)


async def test_a_group_that_is_blocked_for_long_is_a_warning_until_it_goes_on(tmp_path: Path) -> None:
    async with dispatching(tmp_path, health={"group_blocked_s": 0.05}) as jobs:
        await jobs.blocked("1", "2")
        (told,) = await until_told(jobs, "JOB_GROUP_BLOCKED")
        assert told["source"] == "job group account:123"
        assert jobs.ids["1"] in told["message"]
        assert "a group of jobs is blocked" in str((await jobs.client.get("/monitoring/health")).json)
        await jobs.change("1", mode="NEXT_ON_ERROR")
        await until_told(jobs, "JOB_GROUP_UNBLOCKED")
        await until_told(jobs, "JOB_GROUP_BLOCKED", 0)


async def test_finished_jobs_are_forgotten_after_their_time_and_unfinished_ones_never(tmp_path: Path) -> None:
    async with dispatching(tmp_path, platform={"retention_days": 1e-6}) as jobs:
        await jobs.blocked("1", "2")
        await jobs.create("done")

        async def only_unfinished_left() -> bool:
            return await jobs.listed("") == ["2", "1"]

        await until(only_unfinished_left)
        assert (await samples(jobs))["flowcatalyst_jobs_dropped_total"] == 1
        (await jobs.client.get(f"{JOBS}/{jobs.ids['done']}")).assert_problem(404)
