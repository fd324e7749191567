"""`--demo` on a queue that is away now and then."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from flowcatalyst.cli import demo
from flowcatalyst.cli.demo import Demo
from flowcatalyst.errors import QueueUnavailableError
from flowcatalyst.queues.contract import Outgoing, Published
from flowcatalyst.queues.embedded import EmbeddedQueue
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
            return often_away.calls > 20 and router.app.judge.requests > 60

        async with Demo(router.app, router.listening).running():
            await until(enough)
        assert router.app.judge.order_violations == 0
    assert "the queue takes nothing: the broker is away" in capsys.readouterr().out
