"""`--demo`: what it says and where it keeps it, and how it goes on when its queue is away now and then."""

import asyncio
import os
import re
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from flowcatalyst.cli import run
from flowcatalyst.core.errors import QueueUnavailableError
from flowcatalyst.queues.contract import Outgoing, Published
from flowcatalyst.queues.embedded.queue import EmbeddedQueue
from flowcatalyst.sandbox import demo, receivers
from flowcatalyst.sandbox.demo import Demo
from flowcatalyst.sandbox.order_judge import ReceiverCounts
from tests.api.running import run_router, until
from tests.servers import free_port
from tests.support.patience import PATIENCE_S


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


async def test_it_keeps_all_it_has_in_a_folder_of_its_own_and_tells_what_became_of_its_webhooks(tmp_path: Path) -> None:
    port, line = free_port(), ""
    demo = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "flowcatalyst", "up", "--demo", "--port", str(port)),
        cwd=tmp_path,
        env={name: value for name, value in os.environ.items() if not name.startswith("FLOWCATALYST_")},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    assert demo.stdout is not None
    try:
        async with asyncio.timeout(PATIENCE_S):
            while not re.search(r"webhooks verified [1-9]", line):
                line = (await demo.stdout.readline()).decode()
                assert line, "it ended"
            demo.send_signal(signal.SIGTERM)
            _, errors = await demo.communicate()
    finally:
        if demo.returncode is None:
            demo.kill()
            await demo.communicate()
    assert (demo.returncode, errors) == (0, b"")
    assert re.search(r"delivered [1-9].* in the queue [\d,]+   order violations: 0 ", line), line
    assert "wrong signatures" not in line
    folder = tmp_path / "data" / f"demo-{port}"
    there = await asyncio.to_thread(lambda: {path for path in tmp_path.rglob("*") if path.is_file()})
    assert {path.parent for path in there} == {folder}
    assert {"queue.db", "jobs.db", "flowcatalyst.log"} <= {path.name for path in there}


def test_on_the_usual_port_its_folder_has_no_number_and_one_that_was_named_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[Path] = []
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(run, "_run", lambda settings, **_: started.append(settings.data_dir))
    run.up(demo=True)
    run.up(demo=True, port=8081)
    run.up(demo=True, port=8081, data_dir=Path("mine"))
    assert started == [Path("data/demo"), Path("data/demo-8081"), Path("mine")]
    assert list(tmp_path.iterdir()) == []
