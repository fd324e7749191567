"""Two queues of different kinds, on real servers, feed the same groups of one router, and heads fail again and again.

A group is one group, whichever queues it comes from: one attempt at a time, each queue's messages in their order, and
what failed is passed by nobody. `MIXED_QUEUES_SEEDS=20` plays so many seeds with each pair.
"""

import os
import random
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest

from flowcatalyst.core.clock import SystemClock
from flowcatalyst.core.message import DEFAULT_GROUP, DEFAULT_POOL, MessagePointer, Result, encode_pointer
from flowcatalyst.queues.contract import BrokerQueue, Outgoing
from flowcatalyst.queues.embedded.queue import EmbeddedQueue, EmbeddedStore
from flowcatalyst.sandbox.order_judge import SeededId
from flowcatalyst.simulation.history import Event, Facts
from flowcatalyst.simulation.history import Kind as EventKind
from tests.crash.scene import PATIENT_MS
from tests.support.brokers import KINDS, Place, Places, places
from tests.support.router_process import Waits, router_process
from tests.support.witness import Witness, messages_left

GROUPS, PER_GROUP = 10, 10  # of each queue, besides those without a group
FAILING: Final = 0.1  # of the messages
FAULTS: Final = ("500", "429", "not_acked")
MOST_FAULTS: Final = 4  # of one message
LEASE_S: Final = 30.0  # no lease is lost here, however busy the machine is: that would be another cause of an attempt
EMBEDDED: Final = "embedded"
PAIRS: Final = ((EMBEDDED, "nats"), ("elasticmq-fifo", "nats"), (EMBEDDED, "activemq"))
SEEDS: Final = range(1, int(os.environ.get("MIXED_QUEUES_SEEDS", "1")) + 1)
KIND_BY_NAME: Final = {kind.name: kind for kind in KINDS}


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Places]:
    with places(tmp_path_factory.mktemp("brokers")) as found:
        yield found


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("pair", PAIRS, ids="+".join)
async def test_a_group_that_two_kinds_of_queue_feed_is_one_group_and_what_fails_in_it_is_passed_by_nobody(
    brokers: Places, tmp_path: Path, pair: tuple[str, str], seed: int
) -> None:
    luck, witness = random.Random(seed), Witness(seed=seed)
    witness.answer_after_s = luck.choice((0.0, 0.005, 0.03))
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(witness.running())
        sides = [Side(name, brokers, tmp_path / "data") for name in pair]
        router = await stack.enter_async_context(router_process(tmp_path, _settings(luck, sides)))
        witness.router_started()
        for side in sides:
            await side.client.open()
            stack.push_async_callback(side.client.close)
        plan = [(side, _messages(side, witness.url)) for side in sides]
        names = [name for _, messages in plan for name in messages]
        witness.script = {name: _faults(luck) for name in names if luck.random() < FAILING}
        await _publish_in_turns(luck, witness, plan)
        await witness.until_acked(len(names))
        code, rest = await router.terminate()
        assert (code, "Nothing was lost" in rest) == (0, True), rest
        await witness.router_stopped()
    left = [name for side in sides for name in await side.left()]
    violations = [*await witness.violations(tmp_path / "data", left), *_passed_a_failed_one(list(witness.history))]
    assert violations == [], f"{len(violations)} violations, the first:\n" + "\n".join(violations[:20])
    assert left == []
    assert not any(witness.script.values())  # every planned fault was played


class Side:
    """One of the two queues."""

    def __init__(self, name: str, brokers: Places, data_dir: Path) -> None:
        self.name = name
        self.place: Place | None = None
        self.client: BrokerQueue
        if name == EMBEDDED:
            self._file = data_dir / "queue.db"
            self.client = EmbeddedQueue(EmbeddedStore(self._file, SystemClock()), "default")
        else:
            self.place = replace(brokers.new(KIND_BY_NAME[name]), visibility_s=LEASE_S)
            self.client = self.place.client()
        # Who publishes to JetStream need not name a group. Our own intake writes the default one down.
        self.group_of_the_rest = None if name == "nats" else DEFAULT_GROUP

    def toml(self, connections: int) -> str:
        if self.place is None:
            return ""
        return (
            f'[[queues]]\nname = "{self.name}"\nuri = "{self.place.uri}"\n'
            f"connections = {connections}\nvisibility_s = {LEASE_S}\n"
        )

    async def left(self) -> list[str]:
        return messages_left(self._file) if self.place is None else await self.place.left()


def _settings(luck: random.Random, sides: Sequence[Side]) -> Waits:
    concurrency, capacity = luck.choice((3, 8, 20)), luck.choice((20, 50, 400))
    pool = f'[[pools]]\ncode = "{DEFAULT_POOL}"\nconcurrency = {concurrency}\ncapacity = {capacity}\n'
    return Waits(
        timeout_ms=PATIENT_MS,
        nack_delay_s=luck.choice((0.3, 1.0, 2.0)),
        follower_s=luck.choice((0.1, 1.0, 10.0)),
        more=f"{pool}[sqs]\nwait_time_s = 2\n" + "".join(side.toml(luck.choice((1, 2))) for side in sides),
    )


def _messages(side: Side, url: str) -> dict[str, Outgoing]:
    """All of a queue by their ids, in the order in which they are published."""
    found = {}
    for position in range(1, PER_GROUP + 1):
        for number in range(GROUPS + 1):
            message_id = str(SeededId(side.name, f"g{number}", position))
            pointer = MessagePointer(id=message_id, mediation_target=url)
            group = f"g{number}" if number < GROUPS else side.group_of_the_rest
            found[message_id] = Outgoing(encode_pointer(pointer).decode(), group)
    return found


def _faults(luck: random.Random) -> list[str]:
    """Often one after the other of the same, so that quick retries are used up."""
    kind = luck.choice((*FAULTS, ""))
    return [kind or luck.choice(FAULTS) for _ in range(luck.randint(1, MOST_FAULTS))]


async def _publish_in_turns(
    luck: random.Random, witness: Witness, plan: Sequence[tuple[Side, dict[str, Outgoing]]]
) -> None:
    """Not much faster than they are delivered: some of a group come while others wait for a head that failed."""
    waiting = {side: list(messages.items()) for side, messages in plan}
    published = 0
    while waiting:
        side = luck.choice(list(waiting))
        size = luck.choice((1, 3, GROUPS, 2 * GROUPS))
        now, waiting[side] = waiting[side][:size], waiting[side][size:]
        if not waiting[side]:
            del waiting[side]
        for name, message in now:
            facts = Facts(message.group or DEFAULT_GROUP, target=witness.url, queue=side.name)
            witness.history.add(EventKind.PUBLISHED, name, value=facts)
        await side.client.publish([message for _, message in now])
        published += len(now)
        wanted = published - luck.choice((0, GROUPS, 6 * GROUPS))
        await witness.until_arrived(min(wanted, witness.arrivals + len(now)))


def _passed_a_failed_one(events: Sequence[Event]) -> Iterator[str]:
    """Whoever of the group started between a failed attempt and the success of that message, of either queue."""
    groups = {event.message: event.value.group for event in events if event.kind is EventKind.PUBLISHED}
    failed: dict[str, str] = {}
    for event in events:
        group = groups.get(event.message, "")
        if event.kind is EventKind.ATTEMPT and failed.get(group, event.message) != event.message:
            yield f"at {event.at:.3f} s, {event.message}: started although {failed[group]} of its group had failed"
        elif event.kind is EventKind.ANSWER and event.value.result is not Result.SUCCESS:
            failed[group] = event.message
        elif event.kind is EventKind.ANSWER and failed.get(group) == event.message:
            del failed[group]
