"""`flowcatalyst platform`, and what `up` and `router` do about the platform."""

import asyncio
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.support.http_servers import always, raw_server, reply
from tests.support.patience import PATIENCE_S
from tests.support.router_process import RouterProcess, router_process, run_cli


async def get(router: RouterProcess, path: str) -> tuple[int, Any]:
    async with aiohttp.ClientSession() as session, session.get(f"{router.url}{path}") as answer:
        return answer.status, await answer.json()


@pytest.mark.parametrize(
    ("command", "queues"),
    [("platform", set()), ("up", {"default", "high", "medium", "low"})],
    ids=["platform reads no queue", "up reads its own"],
)
async def test_jobs_are_delivered(tmp_path: Path, command: str, queues: set[str]) -> None:
    async with raw_server(always(reply(200))) as server, router_process(tmp_path, command=(command,)) as router:
        job = {"code": "test", "targetUrl": server.url("/hook"), "payload": {"total": 12}}
        async with (
            aiohttp.ClientSession() as session,
            session.post(f"{router.url}/api/dispatch-jobs", json=job) as made,
        ):
            assert made.status == 201
        async with asyncio.timeout(PATIENCE_S):
            while not server.requests:
                await asyncio.sleep(0.01)
        assert server.requests[0].body == b'{"total": 12}'
        _, consumers = await get(router, "/monitoring/consumer-health")
        assert {one["queue"] for one in consumers} == {"dispatch jobs", *queues}
        assert (await router.terminate())[0] == 0


async def test_a_router_alone_keeps_no_jobs(tmp_path: Path) -> None:
    source = tmp_path / "config.json"
    source.write_text('{"processingPools": [], "queues": [{"queueName": "orders", "queueUri": "embedded:orders"}]}')
    async with router_process(tmp_path, command=("router", "--config-url", source)) as router:
        status, problem = await get(router, "/api/dispatch-jobs")
    assert status == 404
    assert "platform.enabled" in problem["detail"]


async def test_a_platform_that_is_switched_off_says_so(tmp_path: Path) -> None:
    code, _, errors = await run_cli(
        "platform", "--data-dir", tmp_path / "data", env={"FLOWCATALYST_PLATFORM__ENABLED": "false"}
    )
    assert code == 2
    assert errors == "flowcatalyst: platform.enabled is false: there is nothing to run; leave it out\n"
