"""The kinds of simulated queue behave like what they stand for."""

import random

import pytest

from flowcatalyst.core.errors import QueueUnavailableError
from flowcatalyst.core.message import Delivery, Settled
from flowcatalyst.simulation.history import History, Kind
from flowcatalyst.simulation.loop import SeededLoop, VirtualClock, run_seeded
from flowcatalyst.simulation.queue import Dice, QueueFaults
from flowcatalyst.simulation.queue_kinds import KINDS, ConnectionQueue, make_queue
from tests.sim.letters import Group, letter


def connection_queue(loop: SeededLoop, *groups: str, seed: int = 1) -> ConnectionQueue:
    """With one message for each of these groups: m0, m1, ..."""
    queue = make_queue(
        "connection", "q", VirtualClock(), History(loop.time), QueueFaults(), Dice(random.Random(seed)), max_batch=10
    )
    assert isinstance(queue, ConnectionQueue)
    for number, group in enumerate(groups):
        one = letter(f"m{number}", Group(group))
        queue.append(one.name, one.outgoing, one.facts)
    return queue


def names(queue: ConnectionQueue, batch: list[Delivery]) -> list[str]:
    return [queue.name_of(delivery) for delivery in batch]


def test_what_came_over_a_connection_that_is_gone_is_not_held_and_is_shown_again_in_order() -> None:
    async def main(loop: SeededLoop) -> None:
        queue = connection_queue(loop, "a", "a", "b")
        before = await queue.receive(10, 0.0)
        assert all(map(queue.still_ours, before))
        queue.cut(2.0)
        assert not any(map(queue.still_ours, before))
        with pytest.raises(QueueUnavailableError):
            await queue.ack(before)
        with pytest.raises(QueueUnavailableError):
            await queue.receive(10, 0.0)
        while not (again := await _receive(queue)):
            pass
        assert 2.0 <= loop.time() < 2.5
        assert names(queue, again) == ["m0", "m1", "m2"]
        assert await queue.ack(before) == [Settled.GONE] * 3
        assert await queue.ack(again) == [Settled.OK] * 3

    run_seeded(1, main)


async def _receive(queue: ConnectionQueue) -> list[Delivery]:
    try:
        return await queue.receive(10, 1.0)
    except QueueUnavailableError:
        return []


@pytest.mark.parametrize("seed", range(8))
def test_another_router_takes_whole_groups_and_what_it_leaves_comes_back_in_order(seed: int) -> None:
    async def main(loop: SeededLoop) -> None:
        queue = connection_queue(loop, *"aaaa", seed=seed)
        await queue.receive(10, 0.0)
        queue.cut(0.5, taken=1.0)
        seen: list[str] = []
        while loop.time() < 60.0:
            batch = await _receive(queue)
            if batch:
                seen += names(queue, batch)
                await queue.ack(batch)
        taken = [event.message for event in queue._history if event.kind is Kind.TAKEN]
        assert taken + seen == ["m0", "m1", "m2", "m3"]
        assert not len(queue)

    run_seeded(1, main)


def test_the_own_connection_is_shown_the_followers_of_a_message_that_was_nacked() -> None:
    async def main(loop: SeededLoop) -> None:
        queue = connection_queue(loop, "a", "a")
        first = await queue.receive(1, 0.0)
        await queue.nack(first, 5.0)
        assert names(queue, await queue.receive(1, 0.0)) == ["m1"]
        assert names(queue, await queue.receive(1, 10.0)) == ["m0"]

    run_seeded(1, main)


def test_a_router_that_left_leaves_its_messages_behind() -> None:
    async def main(loop: SeededLoop) -> None:
        queue = connection_queue(loop, "a", "b")
        await queue.receive(10, 0.0)
        queue.router_left()
        assert names(queue, await queue.receive(10, 0.0)) == ["m0", "m1"]

    run_seeded(1, main)


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_promises_what_the_real_one_does(kind: str) -> None:
    async def main(loop: SeededLoop) -> None:
        queue = make_queue(kind, "q", VirtualClock(), History(loop.time), QueueFaults(), Dice(random.Random(1)))
        can = queue.capabilities
        assert can.ordered_redelivery == (kind in ("embedded", "fifo"))
        assert can.locks_groups == (kind != "unordered")
        assert can.extends == (kind != "connection")

    run_seeded(1, main)


def test_a_step_of_the_wall_clock_leaves_what_lasts_alone() -> None:
    async def main(loop: SeededLoop) -> None:
        clock = VirtualClock()
        wall, monotonic = clock.wall(), clock.monotonic()
        clock.step_wall(-3600.0)
        assert (clock.wall() - wall, clock.monotonic() - monotonic) == (-3600.0, 0.0)

    run_seeded(1, main)
