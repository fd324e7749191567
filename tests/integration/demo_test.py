"""`--demo` on a queue that is away now and then."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from flowcatalyst.core.errors import QueueUnavailableError
from flowcatalyst.queues.contract import Outgoing, Published
from flowcatalyst.queues.embedded.queue import EmbeddedQueue
from flowcatalyst.sandbox import demo, receivers
from flowcatalyst.sandbox.demo import Demo
from flowcatalyst.sandbox.order_judge import ReceiverCounts
from tests.api.running import run_router, until


class OftenAway:
    """Publishes every third time; before that, once without and once with part of the messages."""

    def __init__(self, queue: EmbeddedQueue) -> None:
        self._publish = queue.publish
        self.calls = 0

    async def publish(self, messages: Sequence[Outgoing]) -> list[Published]:
        self.calls += 1
        if self.calls % 3 == 0:
            return await self._publish(messages)
        if self.calls % 3 == 2:
            await self._publish(messages[: len(messages) // 2])
        raise QueueUnavailableError("the broker is away")


async def test_the_demo_goes_on_in_order_when_its_queue_comes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("TICK_S", "PAUSE_S", "QUIET_LINE_PERIOD_S"):
        monkeypatch.setattr(demo, name, 0.02)
    async with run_router(tmp_path) as router:
        queue = router.app.queues["default"]
        assert isinstance(queue, EmbeddedQueue)
        often_away = OftenAway(queue)
        monkeypatch.setattr(queue, "publish", often_away.publish)

        async def enough() -> bool:
            return often_away.calls > 20 and router.app.sandbox.judge.requests > 60

        async with Demo(router.app, router.app.sandbox).running():
            await until(enough)
        assert router.app.sandbox.judge.order_violations == 0
    assert "the queue accepts nothing: the broker is away" in capsys.readouterr().out


async def test_groups_that_fail_get_no_more_than_they_can_take_and_the_others_go_on_at_full_speed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It looks the same for hours: what one receiver cannot take is given to others, nothing piles up."""
    monkeypatch.setattr(demo, "TICK_S", 0.01)
    monkeypatch.setitem(receivers.RECEIVERS, "faulty", receivers.RECEIVERS["fail"])
    async with run_router(tmp_path) as router:
        traffic = Demo(router.app, router.app.sandbox)

        async def steady() -> bool:
            return (
                router.app.sandbox.judge.by_receiver.get("fast", ReceiverCounts()).requests
                > 20 * demo.MAX_BACKLOG // 10
            )

        async with traffic.running():
            await until(steady)
            faulty = [group for group in range(demo.GROUPS) if demo.RECEIVERS[group % len(demo.RECEIVERS)] == "faulty"]
            assert all(traffic._positions[group] <= demo.MAX_OF_A_GROUP for group in faulty)
            assert traffic._published - traffic._delivered < demo.GROUPS * demo.MAX_OF_A_GROUP
            router.app.sandbox.judge.reset()  # somebody presses the button
            published = traffic._published

            async def goes_on() -> bool:
                return traffic._published > published + 500

            await until(goes_on)
            assert "in the queue" in traffic._line(0)
        assert router.app.sandbox.judge.order_violations == 0
