"""A router whose standard error nobody reads: a real process on a real pipe."""

import asyncio
import json
import os
from pathlib import Path

import aiohttp

from tests.support.http_servers import always, raw_server, reply
from tests.support.live import Api
from tests.support.router_process import Waits, router_process

MESSAGES = 2000  # each with a line of some 450 bytes, where the pipe takes 64 KiB
WAITS = Waits(timeout_ms=5000)


async def test_router_delivers_and_stops_in_order_while_nobody_reads_its_log(tmp_path: Path) -> None:
    there, here = os.pipe()
    try:
        async with (
            raw_server(always(reply(200))) as endpoint,
            router_process(tmp_path, WAITS, env={"FLOWCATALYST_LOG__LEVEL": "info"}, stderr=here) as router,
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=20)) as session,
        ):
            os.close(here)
            api = Api(session, router.url)
            for start in range(0, MESSAGES, 500):
                batch = [
                    {"id": f"m{number}", "mediationTarget": endpoint.url("/hook"), "messageGroupId": f"g{number % 50}"}
                    for number in range(start, start + 500)
                ]
                await api.post("/api/messages", batch)
            await endpoint.until(lambda server: len(server.requests) >= MESSAGES)
            assert len({json.loads(call.body)["messageId"] for call in endpoint.requests}) == MESSAGES
            await api.until("/monitoring/health", lambda health: health["status"] == "HEALTHY")
            reading = asyncio.get_running_loop().run_in_executor(None, _read, there)
            assert (await router.terminate())[0] == 0
            lines = [json.loads(line) for line in (await reading).splitlines()]
    finally:
        os.close(there)
    assert {line["message"] for line in lines if line["action"] == "attempt"} == {f"m{n}" for n in range(MESSAGES)}
    actions = [line["action"] for line in lines if line["action"] != "audit"]
    assert actions[-2:] == ["router_stopped", "api_stopped"]
    assert not [line for line in lines if line["action"] == "log_lines_dropped"]


def _read(pipe: int) -> bytes:
    found = b""
    while data := os.read(pipe, 65536):
        found += data
    return found
