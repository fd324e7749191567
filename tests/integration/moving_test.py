"""Messages from queue to queue: nothing is lost and no group loses its order, wherever the move ends."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from itertools import count, groupby

import pytest

from flowcatalyst.core.errors import InvalidMessageError, QueueUnavailableError
from flowcatalyst.core.message import Delivery, MessagePointer, Settled, encode_pointer
from flowcatalyst.queues.contract import Outgoing, Published
from flowcatalyst.queues.memory import DEDUPLICATION_S, MemoryQueue
from flowcatalyst.queues.moving import BATCH, Move
from tests.support.virtual_loop import VirtualClock

pytestmark = pytest.mark.virtual_time

GROUPS = ("a", "b", "c")
MESSAGES = [Outgoing(f"{group}{number}", group) for number in range(4) for group in GROUPS]


class CrashError(BaseException):
    """The process is gone: nothing that it still wanted to do happens."""


class Steps:
    """Counts what is asked of two queues, and crashes at one of these steps."""

    def __init__(self, crash_at: int | None = None) -> None:
        self._numbers = count()
        self._crash_at = crash_at
        self.crashed = False

    def step(self) -> None:
        self.crashed |= next(self._numbers) == self._crash_at
        if self.crashed:
            raise CrashError


class CrashingQueue(MemoryQueue):
    """Its client may crash before and after each call, and while messages are published."""

    steps = Steps()

    async def publish(self, messages: Sequence[Outgoing]) -> list[Published]:
        self.steps.step()
        published: list[Published] = []
        for message in messages:
            published += await super().publish([message])
            self.steps.step()
        return published

    async def ack(self, deliveries: Sequence[Delivery]) -> list[Settled]:
        self.steps.step()
        settled: list[Settled] = []
        for delivery in deliveries:
            settled += await super().ack([delivery])
            self.steps.step()
        return settled

    async def nack(self, deliveries: Sequence[Delivery], delay_s: float, *, unlock: bool = False) -> list[Settled]:
        self.steps.step()
        return await super().nack(deliveries, delay_s, unlock=unlock)


async def bodies(queue: MemoryQueue) -> list[str]:
    """All that it holds, in order; the queue is empty afterwards."""
    found: list[str] = []
    while batch := await queue.receive(1000, 0.0):
        found += [str(delivery.body) for delivery in batch]
        await queue.ack(batch)
    return found


def of_group(found: Sequence[str], group: str) -> list[str]:
    return [body for body in found if body[0] == group]


async def crash_and_move_again(ordered: bool, crash_at: int, pause_s: float) -> tuple[bool, list[str]]:
    """Whether it crashed, and what is in the target at the end of a second run."""
    clock = VirtualClock()
    source = CrashingQueue("source", clock, ordered=ordered)
    target = CrashingQueue("target", clock)
    await source.publish(MESSAGES)
    source.steps = target.steps = steps = Steps(crash_at)
    try:
        await Move(source, target, clock).run()
    except CrashError:
        await asyncio.sleep(pause_s)
    source.steps = target.steps = Steps()
    await source.close()  # its leases have ended
    await Move(source, target, clock).run()
    assert len(source) == 0
    return steps.crashed, await bodies(target)


@pytest.mark.parametrize("ordered", [True, False])
async def test_a_crash_anywhere_neither_loses_nor_doubles_nor_reorders_where_the_target_deduplicates(
    ordered: bool,
) -> None:
    for crash_at in count():
        crashed, found = await crash_and_move_again(ordered, crash_at, pause_s=0.0)
        for group in GROUPS:
            assert of_group(found, group) == [f"{group}{number}" for number in range(4)], crash_at
        if not crashed:
            break
    assert crash_at > 2 * len(MESSAGES)


@pytest.mark.parametrize("ordered", [True, False])
async def test_a_crash_anywhere_may_double_a_message_but_never_behind_a_later_one(ordered: bool) -> None:
    doubled = 0
    for crash_at in count():
        crashed, found = await crash_and_move_again(ordered, crash_at, pause_s=2 * DEDUPLICATION_S)
        doubled += len(found) - len(MESSAGES)
        for group in GROUPS:
            assert [body for body, _ in groupby(of_group(found, group))] == [f"{group}{number}" for number in range(4)]
        if not crashed:
            break
    assert doubled > 0


class Moving:
    """Two queues and one move."""

    def __init__(self, *, ordered: bool = True, visibility_s: float = 60.0) -> None:
        self.clock = VirtualClock()
        self.source = MemoryQueue("source", self.clock, ordered=ordered, visibility_s=visibility_s, max_batch=1000)
        self.target = MemoryQueue("target", self.clock)


@pytest.fixture
def queues() -> Moving:
    return Moving()


async def test_a_message_goes_with_its_body_and_its_group(queues: Moving) -> None:
    await queues.source.publish([Outgoing("alone"), Outgoing("of a group", "g")])
    move = Move(queues.source, queues.target, queues.clock)
    await move.run()
    arrived = await queues.target.receive(10, 0.0)
    assert [(one.body, one.group) for one in arrived] == [("alone", None), ("of a group", "g")]
    assert (move.moved, move.doubles, len(queues.source)) == (2, 0, 0)


async def test_a_group_that_only_the_body_names_is_kept_in_order_too(queues: Moving) -> None:
    pointers = [MessagePointer(f"m{number}", "http://x.test/", message_group_id="g") for number in range(3)]
    await queues.source.publish([Outgoing(encode_pointer(one).decode()) for one in pointers])
    published: list[int] = []

    async def publish(messages: Sequence[Outgoing]) -> list[Published]:
        published.append(len(messages))
        return await MemoryQueue.publish(queues.target, messages)

    queues.target.publish = publish  # type: ignore[method-assign]
    await Move(queues.source, queues.target, queues.clock).run()
    assert published == [1, 1, 1]
    assert {one.group for one in await queues.target.receive(10, 0.0)} == {"g"}


async def test_no_more_than_the_limit_is_moved_and_the_rest_stays_in_order(queues: Moving) -> None:
    await queues.source.publish([Outgoing(f"a{number}", "a") for number in range(BATCH + 44)])
    move = Move(queues.source, queues.target, queues.clock, limit=BATCH + 1)
    await move.run()
    assert (move.moved, len(queues.target)) == (BATCH + 1, BATCH + 1)
    assert await bodies(queues.source) == [f"a{number}" for number in range(BATCH + 1, BATCH + 44)]


async def test_a_stop_ends_it_between_two_messages_and_the_rest_can_be_received_at_once(queues: Moving) -> None:
    await queues.source.publish([Outgoing(f"a{number}", "a") for number in range(10)])
    move = Move(queues.source, queues.target, queues.clock)
    await move.run(on_progress=lambda: move.stop() if move.moved == 3 else None)
    assert await bodies(queues.target) == ["a0", "a1", "a2"]
    assert await bodies(queues.source) == [f"a{number}" for number in range(3, 10)]


async def test_a_target_that_does_not_answer_leaves_everything_in_the_source_in_order(queues: Moving) -> None:
    await queues.source.publish([Outgoing(f"a{number}", "a") for number in range(3)])

    async def publish(messages: Sequence[Outgoing]) -> list[Published]:
        raise QueueUnavailableError("it is down")

    queues.target.publish = publish  # type: ignore[method-assign]
    with pytest.raises(QueueUnavailableError, match="it is down"):
        await Move(queues.source, queues.target, queues.clock).run()
    assert await bodies(queues.source) == ["a0", "a1", "a2"]


async def test_a_message_that_the_target_can_never_take_is_named_and_those_before_it_are_moved(queues: Moving) -> None:
    await queues.source.publish([Outgoing("a", "a"), Outgoing("b", "b"), Outgoing("c", "c")])

    async def publish(messages: Sequence[Outgoing]) -> list[Published]:
        if any(message.body == "b" for message in messages):
            raise InvalidMessageError("it is too large")
        return await MemoryQueue.publish(queues.target, messages)

    queues.target.publish = publish  # type: ignore[method-assign]
    with pytest.raises(InvalidMessageError, match=r"^message source-2 cannot be moved: it is too large$"):
        await Move(queues.source, queues.target, queues.clock).run()
    assert await bodies(queues.target) == ["a"]
    assert await bodies(queues.source) == ["b", "c"]


async def test_an_ack_that_fails_is_repeated_before_the_next_of_its_group_goes(queues: Moving) -> None:
    await queues.source.publish([Outgoing("a0", "a"), Outgoing("a1", "a")])
    held_at_ack: list[int] = []

    async def ack(deliveries: Sequence[Delivery]) -> list[Settled]:
        held_at_ack.append(len(queues.target))
        if len(held_at_ack) < 3:
            return [Settled.FAILED] * len(deliveries)
        return await MemoryQueue.ack(queues.source, deliveries)

    queues.source.ack = ack  # type: ignore[method-assign]
    await Move(queues.source, queues.target, queues.clock).run()
    assert held_at_ack == [1, 1, 1, 2]
    assert await bodies(queues.target) == ["a0", "a1"]


async def test_leases_outlive_a_slow_target() -> None:
    queues = Moving(visibility_s=10.0)
    await queues.source.publish([Outgoing(f"a{number}", "a") for number in range(10)])

    async def publish(messages: Sequence[Outgoing]) -> list[Published]:
        await asyncio.sleep(4.0)
        return await MemoryQueue.publish(queues.target, messages)

    queues.target.publish = publish  # type: ignore[method-assign]
    await Move(queues.source, queues.target, queues.clock).run()
    assert await bodies(queues.target) == [f"a{number}" for number in range(10)]


async def test_a_lease_that_was_lost_to_somebody_else_ends_it_before_the_next_message(queues: Moving) -> None:
    await queues.source.publish([Outgoing("a0", "a"), Outgoing("a1", "a")])

    async def publish(messages: Sequence[Outgoing]) -> list[Published]:
        await asyncio.sleep(100.0)  # longer than the leases
        await queues.source.receive(10, 0.0)
        return await MemoryQueue.publish(queues.target, messages)

    queues.target.publish = publish  # type: ignore[method-assign]
    with pytest.raises(QueueUnavailableError, match="1 messages are published, but queue source did not take"):
        await Move(queues.source, queues.target, queues.clock).run()
    assert await bodies(queues.target) == ["a0"]


async def test_what_waits_for_its_next_attempt_is_waited_for(queues: Moving) -> None:
    await queues.source.publish([Outgoing("a0", "a"), Outgoing("a1", "a")])
    first, _ = await queues.source.receive(2, 0.0)
    await queues.source.nack([first], 30.0)
    impatient = Move(queues.source, queues.target, queues.clock, patience_s=5.0)
    await impatient.run()
    assert impatient.moved == 0
    patient = Move(queues.source, queues.target, queues.clock, patience_s=120.0)
    await patient.run()
    assert await bodies(queues.target) == ["a0", "a1"]


async def test_an_obstacle_that_turns_up_ends_it(queues: Moving) -> None:
    await queues.source.publish([Outgoing(f"a{number}", "a") for number in range(2 * BATCH)])
    move = Move(queues.source, queues.target, queues.clock, obstacle=lambda: "a router polls it" if move.moved else "")
    with pytest.raises(QueueUnavailableError, match="a router polls it"):
        await move.run()
    assert move.moved == BATCH
    assert await bodies(queues.source) == [f"a{number}" for number in range(BATCH, 2 * BATCH)]


async def test_bytes_that_are_no_text_are_named(queues: Moving) -> None:
    await queues.source.publish([Outgoing("a", "a")])
    [delivery] = await queues.source.receive(1, 0.0)
    delivery.body = b"\xff\xfe"

    async def receive(limit: int, wait_s: float, demand: object = None) -> list[Delivery]:
        return [delivery]

    queues.source.receive = receive  # type: ignore[method-assign]
    with pytest.raises(InvalidMessageError, match="message source-1 cannot be moved: its body is not text"):
        await Move(queues.source, queues.target, queues.clock).run()


async def test_a_queue_that_cannot_count_is_done_after_one_look_in_vain(queues: Moving) -> None:
    async def depth() -> None:
        return None

    queues.source.depth = depth  # type: ignore[method-assign,assignment]
    queues.source.capabilities = replace(queues.source.capabilities, extends=False)
    await queues.source.publish([Outgoing("a", "a")])
    await Move(queues.source, queues.target, queues.clock, patience_s=1000.0).run()
    assert queues.clock.monotonic() < 10.0
    assert await bodies(queues.target) == ["a"]
