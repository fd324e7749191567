"""What a person does is in force, audited and kept; where it cannot be kept the answer says what that means."""

import asyncio
from typing import Any

import pytest

from flowcatalyst.control import acting
from flowcatalyst.core.message import Delivery
from flowcatalyst.router.pauses import PauseKind
from tests.api.running import Running, until
from tests.support.http_servers import always, raw_server, reply


async def set_writable(router: Running, *, writable: bool) -> None:
    pragma = f"PRAGMA query_only = {int(not writable)}"
    await router.app.pause_store.writer.read_in_turn(lambda connection: connection.execute(pragma).fetchall())


def is_paused(router: Running) -> bool:
    return router.app.router.pools["DEFAULT-POOL"].paused


async def audited(router: Running, action: str) -> list[dict[str, Any]]:
    entries = (await router.client.get(f"/monitoring/audit?action={action}")).json
    found: list[dict[str, Any]] = entries["items"] if isinstance(entries, dict) else entries
    return found


async def test_a_skip_that_cannot_be_kept_is_audited_and_answered_with_what_it_means(router: Running) -> None:
    async with raw_server(always(reply(200))) as server:
        await router.client.post("/monitoring/groups/g/hold")
        message = {"mediationTarget": server.url(), "messageGroupId": "g"}
        await router.client.post("/api/messages", [{"id": name, **message} for name in ("m-1", "m-2")])

        async def both() -> bool:
            return len(router.app.tracker) == 2

        await until(both)
        await set_writable(router, writable=False)
        answer = await router.client.post("/monitoring/messages/m-2/skip")
        answer.assert_problem(
            503, "message m-2 becomes a dead letter when its turn comes", "unless this router is restarted before"
        )
        [line] = await audited(router, "message_skip")
        assert line["detail"].startswith("message m-2 becomes a dead letter")
        await set_writable(router, writable=True)
        await router.client.post("/monitoring/groups/g/release")
        [letter] = await router.until_dead(1)
        assert letter["messageId"] == "m-2"


async def test_a_pause_that_cannot_be_kept_is_in_force_and_says_until_when(router: Running) -> None:
    await set_writable(router, writable=False)
    paused = await router.client.post("/monitoring/pools/DEFAULT-POOL/pause")
    paused.assert_problem(503, "pool DEFAULT-POOL is paused until", "this router is restarted")
    assert is_paused(router)
    resumed = await router.client.post("/monitoring/pools/DEFAULT-POOL/resume")
    resumed.assert_problem(503, "pool DEFAULT-POOL goes on", "may be paused again when this router is restarted")
    assert not is_paused(router)
    assert len(await audited(router, "pause")) == len(await audited(router, "resume")) == 1


async def test_a_pause_does_not_wait_for_a_queue_that_a_release_asks_in_vain(
    router: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, answers = asyncio.Event(), asyncio.Event()

    async def hang(delivery: Delivery) -> bool:
        asked.set()
        await answers.wait()
        return False

    monkeypatch.setattr(router.app.engine.queues["default"], "hurry", hang)
    await router.client.post("/monitoring/groups/g/hold")
    releasing = asyncio.create_task(router.client.post("/monitoring/groups/g/release"))
    await asked.wait()
    assert (await router.client.post("/monitoring/pools/DEFAULT-POOL/pause")).status == 200
    answers.set()
    assert (await releasing).json["done"]


async def test_there_is_a_limit_to_what_can_be_stopped(router: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acting, "MOST_PAUSES", 2)
    for group in ("a", "b", "a"):
        assert (await router.client.post(f"/monitoring/groups/{group}/hold")).status == 200
    refused = await router.client.post("/monitoring/groups/c/hold")
    refused.assert_problem(409, "let some of them go on first")
    assert set(router.app.pauses.of_kind(PauseKind.GROUP)) == {"a", "b"}
    assert (await router.client.post("/monitoring/groups/a/release")).json["done"]
    assert (await router.client.post("/monitoring/groups/c/hold")).status == 200
