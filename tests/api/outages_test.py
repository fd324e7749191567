"""A whole router tells of an endpoint that is down and of dead letters: in its health, its warnings and by webhook."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from flowcatalyst.app import router as app_module
from flowcatalyst.router import engine
from tests.api.running import Running, run_router, until
from tests.support.http_servers import Gate, RawServer, Script, always, raw_server, reply

LIMITS = {"endpoint_down_s": 0.5, "group_blocked_s": 0.5, "dead_letters_s": 3600.0}


@asynccontextmanager
async def watched(folder: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[Running, RawServer]]:
    """A router that looks often, and its webhook."""
    monkeypatch.setattr(engine, "ENDPOINT_PERIOD_S", 0.05)
    monkeypatch.setattr(engine, "GROUP_PERIOD_S", 0.05)
    monkeypatch.setattr(app_module, "DEAD_LETTER_PERIOD_S", 0.05)
    retry = {"backoff_s": [0.1, 0.1], "nack_delay_s": 0.1, "longest_s": 0.1}
    async with raw_server() as webhook:
        settings: dict[str, Any] = {"notifications": {"webhook_url": webhook.url("/hook"), "batch_s": 0.05}}
        async with run_router(folder, health=LIMITS, retry=retry, **settings) as router:
            yield router, webhook


def sent(webhook: RawServer, code: str) -> list[dict[str, Any]]:
    warnings = [one for call in webhook.requests for one in json.loads(call.body)["warnings"]]
    return [one for one in warnings if one["code"] == code]


async def parts(router: Running) -> set[str]:
    health = (await router.client.get("/monitoring/health")).json
    return {reason["part"] for reason in health["reasons"]}


@pytest.mark.parametrize("script", [always(reply(500)), Gate()], ids=["answers 500", "hangs"])
async def test_an_endpoint_that_is_down_is_told_by_health_warnings_and_webhook_until_it_is_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: Script
) -> None:
    async with raw_server(script) as server, watched(tmp_path, monkeypatch) as (router, webhook):
        endpoint = server.url("/orders")
        await router.send(mediationTarget=endpoint, id="m1")

        async def told() -> bool:
            return bool(sent(webhook, "ENDPOINT_DOWN"))

        await until(told)
        assert "endpoint" in await parts(router)
        assert (await router.client.get("/health")).json["level"] == "WARNING"
        for path in ("/health", "/health/live", "/health/ready", "/health/startup"):
            assert (await router.client.get(path)).status == 200
        [breaker] = (await router.client.get("/monitoring/circuit-breakers")).json
        assert breaker["state"] == "CLOSED"
        server.script = always(reply(200))
        if isinstance(script, Gate):
            script.opened.set()

        async def back() -> bool:
            return bool(sent(webhook, "ENDPOINT_RECOVERED"))

        await until(back)
        await router.until_settled()
        assert "endpoint" not in await parts(router)
        [down], [recovered] = sent(webhook, "ENDPOINT_DOWN"), sent(webhook, "ENDPOINT_RECOVERED")
        assert (down["severity"], down["source"]) == ("ERROR", endpoint)
        assert (recovered["severity"], recovered["source"]) == ("WARN", endpoint)


async def test_a_blocked_group_is_told_by_health_and_webhook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with (
        raw_server(always(reply(200, b'{"ack": false, "delaySeconds": 1}'))) as server,
        watched(tmp_path, monkeypatch) as (router, webhook),
    ):
        await router.send(mediationTarget=server.url("/orders"), id="m1", messageGroupId="order-1")

        async def told() -> bool:
            return bool(sent(webhook, "GROUP_BLOCKED"))

        await until(told)
        [reason] = (await router.client.get("/monitoring/health")).json["reasons"]
        assert reason["part"] == "group"
        assert "order-1 of pool DEFAULT-POOL" in reason["text"]
        assert "behind message m1 (HTTP 200 with ack=false)" in reason["text"]
        assert reason["text"].endswith("flowcatalyst explain m1")
        [warning] = sent(webhook, "GROUP_BLOCKED")
        assert "order-1 waits for message m1 (HTTP 200 with ack=false)" in warning["message"]
        assert warning["message"].endswith("flowcatalyst explain m1")
        server.script = always(reply(200))
        await router.until_settled()

        async def over() -> bool:
            return not await parts(router)

        await until(over)


async def test_new_dead_letters_are_told_until_they_are_old_or_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with raw_server(always(reply(404))) as server, watched(tmp_path, monkeypatch) as (router, webhook):
        await router.send(mediationTarget=server.url("/orders"), id="m1")

        async def told() -> bool:
            return bool(sent(webhook, "DEAD_LETTERS"))

        await until(told)
        assert "dead letters" in await parts(router)
        await router.client.delete("/monitoring/dead-letters")

        async def gone() -> bool:
            return "dead letters" not in await parts(router)

        await until(gone)
        await router.send(mediationTarget=server.url("/orders"), id="m2")

        async def told_again() -> bool:
            return len(sent(webhook, "DEAD_LETTERS")) == 2

        await until(told_again)
        router.app.dead_letter_outages.limit_s = 0.01
        await until(gone)  # it is still there, but not new
        assert await router.app.dead_letters.count() == 1


async def test_dead_letters_of_before_a_restart_are_new_until_their_time_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with raw_server(always(reply(404))) as server, watched(tmp_path, monkeypatch) as (router, _):
        await router.send(mediationTarget=server.url("/orders"), id="m1")
        await router.until_dead(1)
    async with watched(tmp_path, monkeypatch) as (router, _):

        async def told() -> bool:
            return await parts(router) == {"dead letters"}

        await until(told)
