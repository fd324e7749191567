import asyncio
from collections.abc import Iterator

import pytest

from flowcatalyst.control import group_figures
from flowcatalyst.control.group_figures import GroupWatch
from flowcatalyst.router.top_groups import GroupSurvey
from tests.api.running import Running, on_idle_router
from tests.support.clocks import SetClock
from tests.support.http_servers import Gate, raw_server
from tests.support.patience import PATIENCE_S

PATH = "/monitoring/top-groups"


async def test_the_deepest_oldest_and_slowest_groups_are_named(
    router: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_figures, "KEEP_S", 0.0)
    monkeypatch.setattr(group_figures, "RESTS", 0)
    async with raw_server(gate := Gate()) as endpoint:
        to_pool = {"mediationTarget": endpoint.url(), "messageGroupId": "g", "poolCode": "POOL-LOW"}
        together = [{"id": f"m{number}", **to_pool} for number in range(4)]  # what comes later stays in the queue
        await router.client.post("/api/messages", together)
        await endpoint.until(lambda seen: len(seen.requests) == 1)
        found = (await router.client.get(PATH)).json
        assert found["byDepth"] == [{"group": "g", "pool": "POOL-LOW", "waiting": 3}]
        [old] = found["byAge"]
        assert (old["group"], old["pool"]) == ("g", "POOL-LOW")
        assert 0 < old["oldestMs"] < PATIENCE_S * 1000
        gate.opened.set()
        await router.until_settled()
    found = (await router.client.get(PATH)).json
    assert (found["byDepth"], found["byAge"]) == ([], [])
    [slow] = [one for one in found["byLatency"] if one["group"] == "g"]
    assert (slow["pool"], slow["deliveries"]) == ("POOL-LOW", 4)
    assert slow["meanMs"] > 0


@on_idle_router
async def test_all_who_ask_share_a_pass_and_the_next_one_waits_fifty_times_as_long_as_it_took(
    idle_router: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, passes = SetClock(), 0

    def steps(_survey: GroupSurvey) -> Iterator[None]:
        nonlocal passes
        passes += 1
        clock.now += 0.1
        yield

    monkeypatch.setattr(GroupSurvey, "steps", steps)
    watch = GroupWatch(lambda: idle_router.app.engine, clock)
    began = clock.now
    await asyncio.gather(*(watch.figures() for _ in range(5)))
    assert passes == 1
    clock.now = began + 4.9
    await watch.figures()
    assert passes == 1
    clock.now = began + 5.1
    await watch.figures()
    assert passes == 2
