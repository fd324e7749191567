"""The whole router on the embedded queue over real sockets, against a receiver that fails at random."""

from pathlib import Path

import pytest

from flowcatalyst.app.router import App
from flowcatalyst.control.settings import Settings, load_settings
from flowcatalyst.core.message import DispatchMode, MessagePointer, encode_pointer
from flowcatalyst.queues.contract import Outgoing
from flowcatalyst.sandbox.order_judge import SeededId
from tests.support.faulty_receiver import FAULTS, FaultyReceiver


def impatient_settings(folder: Path) -> Settings:
    """Short waits, so that a test sees many rounds of failure."""
    return load_settings(
        data_dir=folder,
        port=0,
        retry={"backoff_s": [0.02, 0.04], "nack_delay_s": 0.3, "follower_s": 0.1},
        mediator={"http": {"timeout_ms": 250, "version": "HTTP_1_1"}},
    )


def messages(url: str, groups: int, per_group: int, mode: DispatchMode | None = None) -> list[Outgoing]:
    out = []
    for position in range(1, per_group + 1):
        for group in range(groups):
            name = f"g{group}"
            pointer = MessagePointer(
                id=str(SeededId("run", name, position)), mediation_target=f"{url}/{name}", dispatch_mode=mode
            )
            out.append(Outgoing(encode_pointer(pointer).decode(), name))
    return out


@pytest.mark.parametrize("seed", [1, 2])
async def test_a_receiver_that_fails_in_every_way_sees_groups_in_order_and_in_the_end_everything(
    tmp_path: Path, seed: int
) -> None:
    receiver = FaultyReceiver(fault_rate=0.4, seed=seed)
    app = App(impatient_settings(tmp_path))
    async with receiver.running(), app.running():
        await app.queues["default"].publish(messages(receiver.url, groups=15, per_group=12))
        await receiver.until_acked(90)
        receiver.fault_rate = 0.0
        await receiver.until_acked(180)
        assert receiver.judge.order_violations == 0, receiver.judge.last_violations
        assert all(receiver.faults[fault] for fault in FAULTS), receiver.faults
    depth = await _depth_after_restart(tmp_path)
    assert depth == (0, 0, 0)
    assert len(app.tracker) == 0


async def test_a_stop_in_the_middle_of_failures_loses_and_reorders_nothing(tmp_path: Path) -> None:
    receiver = FaultyReceiver(fault_rate=0.4, seed=3)
    async with receiver.running():
        for round_number in range(4):
            app = App(impatient_settings(tmp_path))
            async with app.running():
                if round_number == 0:
                    await app.queues["default"].publish(messages(receiver.url, groups=10, per_group=12))
                await receiver.until_acked(25 * (round_number + 1))
            assert app.stopped_clean
        receiver.fault_rate = 0.0
        app = App(impatient_settings(tmp_path))
        async with app.running():
            await receiver.until_acked(120)
        assert receiver.judge.order_violations == 0, receiver.judge.last_violations


async def _depth_after_restart(folder: Path) -> tuple[int, int, int]:
    app = App(impatient_settings(folder))
    queue = app.queues["default"]
    await queue.open()
    depth = await queue.depth()
    await queue.close()
    assert depth is not None
    return depth.waiting, depth.leased, depth.delayed
