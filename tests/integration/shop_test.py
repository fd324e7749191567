"""The order shop of `--demo`: events in, signed webhooks out, verified by the built-in receiver."""

import re
from pathlib import Path

import pytest

from flowcatalyst.control.platform_settings import PlatformSettings
from flowcatalyst.core.message import Delivery
from flowcatalyst.dispatch.stamp import JobStamp
from flowcatalyst.sandbox import shop, webhooks
from flowcatalyst.sandbox.demo import Demo
from tests.api.running import Running, run_router, until

PLATFORM = PlatformSettings(enabled=True)


@pytest.fixture(autouse=True)
def _hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shop, "TICK_S", 0.01)
    monkeypatch.setattr(shop, "FIRST_RETRY_S", 0.05)
    monkeypatch.setattr(webhooks, "FAILS", 0.2)


async def play(router: Running, least: int) -> webhooks.WebhookCounts:
    """The demo, until so many webhooks more were answered."""
    counts = router.app.sandbox.webhooks.counts
    before = counts.taken

    async def enough() -> bool:
        return counts.taken >= before + least

    async with Demo(router.app, router.app.sandbox).running():
        await until(enough)
    return counts


async def test_webhooks_come_signed_and_in_place_although_one_subscriber_fails_now_and_then(tmp_path: Path) -> None:
    async with run_router(tmp_path, platform=PLATFORM) as router:
        counts = await play(router, 200)
        modes = {one["code"]: one["mode"] for one in (await router.client.get("/api/subscriptions")).json["items"]}
        verified = counts.verified
        report = (await router.client.get("/api/test/stats")).json["webhooks"]
        others = {"type": "order.paid", "source": "somebody", "messageGroup": "g"}
        sent = await router.client.post("/api/events", json=others)
    assert sent.json["jobs"] == 0  # what somebody tries out beside the demo is not the demo's
    assert set(modes.values()) == {"BLOCK_ON_ERROR", "NEXT_ON_ERROR", "IMMEDIATE"}
    assert counts.failed > 0
    assert (counts.wrong_signatures, counts.out_of_place) == (0, 0)
    assert verified <= report["verified"] <= counts.verified  # retries go on


async def test_a_demo_that_starts_again_signs_with_new_secrets_and_takes_what_was_left(tmp_path: Path) -> None:
    for _ in range(2):
        async with run_router(tmp_path, platform=PLATFORM) as router:
            counts = await play(router, 60)
        assert (counts.wrong_signatures, counts.out_of_place) == (0, 0)


async def test_the_receiver_tells_of_a_webhook_that_is_out_of_place_or_wrongly_signed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = JobStamp.lines

    def lines(stamp: JobStamp, delivery: Delivery, body: bytes, wall: float) -> str:
        written = real(stamp, delivery, body, wall)
        if delivery.position == 3:  # it says that something was delivered which never was
            return re.sub(r"Prev: \d+", "Prev: 1000", written)
        return real(stamp, delivery, body + b" ", wall) if delivery.position == 2 and delivery.number == 1 else written

    monkeypatch.setattr(JobStamp, "lines", lines)
    async with run_router(tmp_path, platform=PLATFORM) as router:
        counts = router.app.sandbox.webhooks.counts

        async def told() -> bool:
            return counts.wrong_signatures > 0 and counts.out_of_place > 0

        demo = Demo(router.app, router.app.sandbox)
        async with demo.running():
            await until(told)
        assert "wrong signatures: " in demo._line(0)
        assert "order violations: 0" not in demo._line(0)
