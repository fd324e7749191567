"""`flowcatalyst up` as a process, from an event to a webhook, whose signature others check: the official libraries."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from standardwebhooks import Webhook

from tests.integration.node_signatures_test import asked
from tests.support.http_servers import Call, RawServer, always, raw_server, reply
from tests.support.patience import PATIENCE_S
from tests.support.router_process import Waits, router_process

CALM = Waits(timeout_ms=30_000)
BODY = '{"total":12.50,"name":"Zoë 🛒"}'


async def post(session: aiohttp.ClientSession, path: str, body: Any = None) -> Any:
    async with session.post(path, json=body) as answer:
        assert answer.status in (200, 201), await answer.text()
        return await answer.json()


async def published(session: aiohttp.ClientSession, server: RawServer, number: int) -> Call:
    """Send an event; its webhook."""
    event = f'{{"type": "order.created", "source": "shop", "messageGroup": "g", "data": {BODY}}}'
    headers = {"Content-Type": "application/json"}
    async with session.post("/api/events", data=event.encode(), headers=headers) as answer:
        assert (answer.status, (await answer.json())["jobs"]) == (201, 1)
    async with asyncio.timeout(PATIENCE_S):
        await server.until(lambda server: len(server.requests) >= number)
    return server.requests[number - 1]


def signed_part(headers: Mapping[str, str]) -> dict[str, str]:
    return {name: headers[name] for name in ("webhook-id", "webhook-timestamp", "webhook-signature")}


async def assert_taken(request: Call, *secrets: str) -> None:
    """By both libraries, with each of the secrets."""
    body = request.body.decode()
    signed = signed_part(request.headers)
    case = {"id": signed["webhook-id"], "timestamp": int(signed["webhook-timestamp"]), "body": body}
    cases = [case | {"secret": secret, "signature": signed["webhook-signature"]} for secret in secrets]
    for secret in secrets:
        event = Webhook(secret).verify(request.body, signed)
        assert event["data"] == {"total": 12.5, "name": "Zoë 🛒"}
    assert [one["taken"] for one in await asyncio.to_thread(asked, cases)] == [True] * len(secrets)


@pytest.mark.thorough
async def test_the_official_libraries_take_its_webhooks_also_while_secrets_overlap(tmp_path: Path) -> None:
    async with (
        raw_server(always(reply(200))) as server,
        router_process(tmp_path, CALM) as up,
        aiohttp.ClientSession(up.url) as session,
    ):
        subscription = {"code": "orders", "targetUrl": server.url("/hook"), "mode": "BLOCK_ON_ERROR"}
        wanted = {"eventTypes": [{"eventTypeCode": "order.*"}]}
        first = (await post(session, "/api/subscriptions", subscription | wanted))["secret"]
        await assert_taken(await published(session, server, 1), first)
        second = (await post(session, "/api/subscriptions/orders/rotate-secret", {"overlapSeconds": 3600}))["secret"]
        overlapping = await published(session, server, 2)
        await assert_taken(overlapping, first, second)
        third = (await post(session, "/api/subscriptions/orders/rotate-secret", {"overlapSeconds": 0}))["secret"]
        alone = await published(session, server, 3)
        await assert_taken(alone, third)
        assert (await up.terminate())[0] == 0
    assert len(overlapping.headers["webhook-signature"].split()) == 2
    assert len(alone.headers["webhook-signature"].split()) == 1
