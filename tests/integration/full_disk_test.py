"""A router whose files cannot grow says so, in its warnings, health, log and by webhook, and says when they can again.

The limit of the size of files stands for the disk: a process that meets it gets an error from the kernel.
"""

import asyncio
import json
import resource
from pathlib import Path
from typing import Any

import aiohttp

from tests.support.http_servers import RawServer, always, raw_server, reply
from tests.support.patience import PATIENCE_S
from tests.support.router_process import RouterProcess, Waits, router_process

BODY = {"mediationTarget": "http://127.0.0.1:9/"}


# Of jobs there is a larger file, and what it may have the queue may have too.
ONE_FILE = "[platform]\nenabled = false\n"


def fill_disk(router: RouterProcess) -> None:
    """No file of the process grows beyond what its largest one has now."""
    most = max(file.stat().st_size for file in router.data_dir.iterdir())
    resource.prlimit(router.process.pid, resource.RLIMIT_FSIZE, (most, resource.RLIM_INFINITY))


def free_disk(router: RouterProcess) -> None:
    unlimited = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    resource.prlimit(router.process.pid, resource.RLIMIT_FSIZE, unlimited)


async def publish(session: aiohttp.ClientSession, count: int) -> int:
    async with session.post("/api/messages", json=[BODY] * count) as response:
        return response.status


async def get(session: aiohttp.ClientSession, path: str) -> Any:
    async with session.get(path) as response:
        return await response.json()


async def until_warned(session: aiohttp.ClientSession, code: str) -> dict[str, Any]:
    while not (found := await get(session, f"/monitoring/warnings?code={code}")):
        await asyncio.sleep(0.05)
    [warning] = found
    return dict(warning)


def sent(webhook: RawServer) -> list[str]:
    warnings = [one for call in webhook.requests for one in json.loads(call.body)["warnings"]]
    return [one["code"] for one in warnings if one["code"].startswith("STORAGE")]


async def test_a_full_disk_is_told_once_and_so_is_that_there_is_space_again(tmp_path: Path) -> None:
    async with raw_server(always(reply(200))) as webhook:
        notify = f'[notifications]\nwebhook_url = "{webhook.url("/hook")}"\nbatch_s = 0.1\n'
        async with (
            asyncio.timeout(PATIENCE_S),
            router_process(tmp_path, Waits(more=f"{notify}\n{ONE_FILE}")) as router,
            aiohttp.ClientSession(router.url) as session,
        ):
            assert await publish(session, 1) == 202
            fill_disk(router)
            while await publish(session, 20) != 503:
                pass
            assert await publish(session, 20) == 503
            warning = await until_warned(session, "STORAGE_FAILED")
            queue = str(router.data_dir / "queue.db")
            assert (warning["severity"], warning["source"], warning["count"]) == ("CRITICAL", queue, 1)
            assert f"{queue} could not be read or written: check the disk; until then publishing" in warning["message"]
            health = await get(session, "/monitoring/health")
            assert health["status"] == "DEGRADED"
            assert {"level": "DEGRADED", "part": "storage", "text": warning["message"]} in health["reasons"]
            assert (await get(session, "/health"))["status"] == "DOWN"
            await asyncio.sleep(12)  # nothing is written for longer than it waits for another failure
            assert await get(session, "/monitoring/warnings?code=STORAGE_RECOVERED") == []
            free_disk(router)
            await until_warned(session, "STORAGE_RECOVERED")
            assert (await until_warned(session, "STORAGE_FAILED"))["acknowledged"]
            reasons = (await get(session, "/monitoring/health"))["reasons"]
            assert [one for one in reasons if one["part"] == "storage" or "STORAGE" in one["text"]] == []
            assert await publish(session, 20) == 202
            while len(sent(webhook)) < 2:
                await asyncio.sleep(0.05)
            assert sent(webhook) == ["STORAGE_FAILED", "STORAGE_RECOVERED"]
            lines = [json.loads(line) for line in router.log.read_text().splitlines() if line.startswith("{")]
            actions = [line["action"] for line in lines if line.get("action", "").startswith("storage")]
            assert actions == ["storage_failed", "storage_recovered"]


async def test_what_cannot_be_kept_is_in_force_until_a_restart_and_says_so(tmp_path: Path) -> None:
    async with (
        asyncio.timeout(PATIENCE_S),
        router_process(tmp_path, Waits(more=ONE_FILE)) as router,
        aiohttp.ClientSession(router.url) as session,
    ):
        assert (await act(session, "groups/early/hold"))[0] == 200
        resource.prlimit(router.process.pid, resource.RLIMIT_FSIZE, (1, resource.RLIM_INFINITY))
        pauses = router.data_dir / "pauses.db"
        why = f"it could not be kept ({pauses} could not be read or written: check the disk)"
        until = "until somebody lets it go on or this router is restarted"
        assert await act(session, "groups/late/hold") == (503, f"group late is held {until}: {why}")
        released = "group early goes on, and may be held again when this router is restarted"
        assert await act(session, "groups/early/release") == (503, f"{released}: {why}")
        assert await act(session, "pools/DEFAULT-POOL/pause") == (503, f"pool DEFAULT-POOL is paused {until}: {why}")
        assert [one["name"] for one in await get(session, "/monitoring/pauses")] == ["DEFAULT-POOL", "late"]
        told = f"{pauses} could not be read or written: check the disk"
        while not any(told in one["message"] for one in await get(session, "/monitoring/warnings?code=STORAGE_FAILED")):
            await asyncio.sleep(0.05)
        free_disk(router)
        assert (await act(session, "pools/DEFAULT-POOL/resume"))[0] == 200
        assert (await act(session, "groups/late/release"))[0] == 200
        assert await get(session, "/monitoring/pauses") == []


async def act(session: aiohttp.ClientSession, path: str) -> tuple[int, str]:
    """The status, and what was done or why not."""
    async with session.post(f"/monitoring/{path}") as response:
        answer = await response.json()
        return response.status, answer.get("text") or answer.get("detail", "")
