"""The embedded queue: what it brings for which pool, and who comes first."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from flowcatalyst.core.message import DEFAULT_POOL, UNREADABLE, pool_code_of
from flowcatalyst.queues.contract import Outgoing
from flowcatalyst.queues.embedded.queue import EmbeddedQueue
from tests.support.clocks import SetClock
from tests.support.demands import SetDemand
from tests.support.embedded import bodies, opened, take

LONG_S = 30.0  # never waited for: a test that does has failed


@pytest.fixture
def clock() -> SetClock:
    return SetClock()


@pytest.fixture
async def queue(tmp_path: Path, clock: SetClock) -> AsyncIterator[EmbeddedQueue]:
    async with opened(tmp_path / "queue.db", clock) as queue:
        yield queue


def for_pool(pool: str, *names: str) -> list[Outgoing]:
    """Messages whose group is the first character of their name."""
    return [Outgoing(f'{{"id": "{name}", "poolCode": "{pool}"}}', name[0]) for name in names]


async def names(queue: EmbeddedQueue, demand: SetDemand, limit: int = 256) -> list[str]:
    return [body.split('"')[3] for body in bodies(await queue.receive(limit, 0, demand))]


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ('{"poolCode": "A"}', "A"),
        ('{"id": 7, "poolCode": "A", "unknown": [1, {}]}', "A"),
        ('{"poolCode": " A "}', " A "),
        ('{"id": "x", "mediationTarget": "http://t/", "poolCode": "  "}', DEFAULT_POOL),
        ('{"id": "x", "mediationTarget": "http://t/", "poolCode": ""}', DEFAULT_POOL),
        ('{"id": "x", "mediationTarget": "http://t/", "poolCode": null}', DEFAULT_POOL),
        ('{"id": "x", "mediationTarget": "http://t/"}', DEFAULT_POOL),
        ('{"id": "x", "mediationTarget": "nowhere"}', UNREADABLE),
        ('{"poolCode": 7}', UNREADABLE),
        ('{"id": "x"}', UNREADABLE),
        ('["poolCode"]', UNREADABLE),
        ("", UNREADABLE),
        ("not JSON", UNREADABLE),
        ("[" * 100_000, UNREADABLE),
    ],
)
def test_a_message_that_names_no_pool_is_for_the_default_one_if_it_is_a_message(body: str, code: str) -> None:
    assert pool_code_of(body) == pool_code_of(body.encode()) == code


async def test_a_pool_gets_what_it_has_room_for_and_a_full_one_nothing(queue: EmbeddedQueue) -> None:
    await queue.publish([*for_pool("FULL", "a1", "b1"), *for_pool("A", "c1", "c2", "d1"), *for_pool("B", "e1", "f1")])
    assert await names(queue, SetDemand(FULL=0, A=2, B=9)) == ["c1", "c2", "e1", "f1"]
    assert await names(queue, SetDemand(FULL=1, A=0, B=9)) == ["a1"]


async def test_codes_that_no_pool_has_share_the_room_of_the_default_pool(queue: EmbeddedQueue) -> None:
    await queue.publish([*for_pool("X", "a1", "b1"), *for_pool("Y", "c1", "d1"), *for_pool(DEFAULT_POOL, "e1", "f1")])
    assert await names(queue, SetDemand(A=9)) == []
    assert len(await names(queue, SetDemand(others=2, A=9))) == 2
    assert len(await names(queue, SetDemand(others=2, **{DEFAULT_POOL: 2}))) == 2
    assert len(await names(queue, SetDemand(others=9))) == 2


async def test_the_default_pool_may_be_one_of_the_pools(queue: EmbeddedQueue) -> None:
    await queue.publish([*for_pool(DEFAULT_POOL, "a1"), Outgoing("no pointer", "b")])
    assert len(await queue.receive(9, 0, SetDemand(others=0, **{DEFAULT_POOL: 0}))) == 0
    assert len(await queue.receive(9, 0, SetDemand(others=2, **{DEFAULT_POOL: 2}))) == 2


async def test_without_a_demand_everything_comes(queue: EmbeddedQueue) -> None:
    await queue.publish([*for_pool("A", "a1"), *for_pool("B", "b1"), Outgoing("no pointer")])
    assert len(await take(queue)) == 3


async def test_a_group_that_names_two_pools_stays_in_order(queue: EmbeddedQueue) -> None:
    await queue.publish([*for_pool("A", "g1", "g2"), *for_pool("B", "g3"), *for_pool("A", "g4")])
    demand = SetDemand(A=9, B=9)
    first = await queue.receive(9, 0, demand)
    assert [delivery.body for delivery in first] == [message.body for message in for_pool("A", "g1", "g2")]
    assert await names(queue, demand) == []
    await queue.ack(first)
    assert await names(queue, SetDemand(A=9, B=0)) == []
    second = await queue.receive(9, 0, demand)
    await queue.ack(second)
    assert [delivery.body for delivery in second] == [message.body for message in for_pool("B", "g3")]
    assert await names(queue, demand) == ["g4"]


async def test_a_hot_group_fills_the_room_of_its_pool_only_while_nobody_else_is_ready(queue: EmbeddedQueue) -> None:
    await queue.publish(for_pool("A", *(f"a{n}" for n in range(100)), *(f"b{n}" for n in range(100))))
    got = await names(queue, SetDemand(A=60))
    assert got == [*(f"a{n}" for n in range(40)), *(f"b{n}" for n in range(20))]


async def test_many_pools_share_a_batch_evenly_and_none_is_left_out_for_long(queue: EmbeddedQueue) -> None:
    pools = [f"P{n}" for n in range(100)]
    for pool in pools:
        await queue.publish([Outgoing(f'{{"id": "{pool}", "poolCode": "{pool}"}}') for _ in range(3)])
    demand = SetDemand(**dict.fromkeys(pools, 2))
    assert len(set(await names(queue, demand, 20))) == 20
    rest = [*await names(queue, demand), *await names(queue, demand), *await names(queue, demand)]
    assert len(set(rest)) == 100


async def test_one_look_serves_many_pools_and_many_codes_that_no_pool_has(queue: EmbeddedQueue) -> None:
    codes = [f"X{n}" for n in range(80)] + [f"P{n}" for n in range(80)]
    await queue.publish([Outgoing(f'{{"id": "{code}", "poolCode": "{code}"}}') for code in codes])
    got = await names(queue, SetDemand(others=500, **dict.fromkeys(codes[80:], 5)), 512)
    assert (sum(code[0] == "P" for code in got), sum(code[0] == "X" for code in got)) == (63, 64)


async def test_a_pool_with_little_room_leaves_its_part_of_a_batch_to_the_others(queue: EmbeddedQueue) -> None:
    for pool in ("A", "B"):
        await queue.publish([Outgoing(f'{{"id": "{pool}", "poolCode": "{pool}"}}') for _ in range(30)])
    got = await names(queue, SetDemand(A=3, B=100), 20)
    assert (got.count("A"), got.count("B")) == (3, 17)


async def test_thousands_of_codes_that_no_pool_has_hold_up_no_pool_and_all_of_them_come(queue: EmbeddedQueue) -> None:
    strange = [f"order {n:04}" for n in range(2000)]
    await queue.publish([Outgoing(f'{{"id": "{code}", "poolCode": "{code}"}}') for code in strange])
    await queue.publish(for_pool("Z", "z1"))
    assert await names(queue, SetDemand(Z=1)) == ["z1"]
    await queue.publish(for_pool("Z", "x1", "y1"))
    seen: list[str] = []
    while got := await queue.receive(100, 0, SetDemand(others=100, Z=1)):
        seen += [body.split('"')[3] for body in bodies(got)]
        await queue.ack(got)
    assert seen.index("x1") < 100 <= seen.index("y1") - 1 < 200  # one in each batch, as there is room
    assert sorted(seen) == [*strange, "x1", "y1"]


async def test_no_code_that_no_pool_has_waits_for_ever_behind_others_that_are_fed(queue: EmbeddedQueue) -> None:
    def wave(number: int) -> list[Outgoing]:
        return [Outgoing(f'{{"id": "{number}", "poolCode": "a{n:03}"}}') for n in range(600)]

    await queue.publish([*wave(0), *for_pool("zzz", "last")])
    for number in range(1, 20):
        got = await queue.receive(100, 0, SetDemand(others=100))
        await queue.ack(got)
        if any("last" in body for body in bodies(got)):
            break
        await queue.publish(wave(number))
    else:
        pytest.fail("it was never brought")


# Who comes first


async def test_groups_that_fail_again_and_again_do_not_come_before_those_that_are_ready_longer(
    queue: EmbeddedQueue, clock: SetClock
) -> None:
    await queue.publish(for_pool("A", "a1", "b1", "c1", "d1"))
    demand = SetDemand(A=2)
    failing = await queue.receive(2, 0, demand)
    await queue.nack(failing, 5)
    clock.now += 5
    await queue.publish(for_pool("A", "e1"))
    seen = [await names(queue, demand, 2), await names(queue, demand, 2), await names(queue, demand, 2)]
    assert seen == [["c1", "d1"], ["e1", "a1"], ["b1"]]


async def test_delays_that_end_make_groups_ready_in_the_order_of_their_end(
    queue: EmbeddedQueue, clock: SetClock
) -> None:
    await queue.publish(for_pool("A", "a1", "b1", "c1"))
    demand = SetDemand(A=9)
    for delivery, delay_s in zip(await queue.receive(9, 0, demand), (30, 10, 20), strict=True):
        await queue.nack([delivery], delay_s)
    clock.now += 30
    assert await names(queue, demand) == ["b1", "c1", "a1"]


async def test_a_group_whose_lease_ended_waits_behind_those_that_were_ready(
    queue: EmbeddedQueue, clock: SetClock
) -> None:
    await queue.publish(for_pool("A", "a1", "b1", "c1"))
    demand = SetDemand(A=1)
    assert await names(queue, demand) == ["a1"]
    clock.now += 60
    assert await names(queue, SetDemand(A=9)) == ["b1", "c1", "a1"]


async def test_a_group_that_goes_on_takes_turns_with_the_others(queue: EmbeddedQueue) -> None:
    await queue.publish(for_pool("A", *(f"a{n}" for n in range(3)), *(f"b{n}" for n in range(3))))
    seen = []
    for _ in range(6):
        [delivery] = await queue.receive(1, 0, SetDemand(A=1))
        seen.append(delivery.group)
        await queue.ack([delivery])
    assert seen == ["a", "b", "a", "b", "a", "b"]


# Demand that changes


async def waiting_for(queue: EmbeddedQueue, demand: SetDemand) -> asyncio.Task[list[str]]:
    async def receive() -> list[str]:
        async with asyncio.timeout(LONG_S / 3):
            return bodies(await queue.receive(9, LONG_S, demand))

    task = asyncio.get_running_loop().create_task(receive())
    while not queue._sleepers:  # no time passes: it only lets others run
        await asyncio.sleep(0)
    return task


async def test_room_that_comes_while_a_receive_waits_is_used_at_once(queue: EmbeddedQueue) -> None:
    queue._poll_interval_s = LONG_S
    await queue.publish(for_pool("A", "a1"))
    demand = SetDemand(A=0)
    receiving = await waiting_for(queue, demand)
    demand.grow(A=1)
    assert await receiving == [for_pool("A", "a1")[0].body]
    assert demand.listeners == []


async def test_a_cancelled_receive_wants_no_more_notices(queue: EmbeddedQueue) -> None:
    demand = SetDemand(A=0)
    receiving = await waiting_for(queue, demand)
    assert len(demand.listeners) == 1
    receiving.cancel()
    await asyncio.gather(receiving, return_exceptions=True)
    assert demand.listeners == []


async def test_room_is_asked_for_again_before_each_look(queue: EmbeddedQueue) -> None:
    demand = SetDemand(A=1)
    receiving = await waiting_for(queue, demand)
    demand.now = SetDemand(A=0).now
    await queue.publish(for_pool("A", "a1"))
    while demand.asked < 2:
        await asyncio.sleep(0)
    assert not receiving.done()
    demand.grow(A=1)
    assert len(await receiving) == 1


async def test_all_messages_of_a_queue_for_one_pool_are_taken_as_that_has_capacity(
    tmp_path: Path, clock: SetClock, queue: EmbeddedQueue
) -> None:
    """Whatever pool they name, or none at all, and whoever published them."""
    raw = EmbeddedQueue(queue.store, queue.name, pool="P")
    await raw.open()
    await queue.publish([*for_pool("OTHER", "a1", "e1"), *for_pool("P", "b1"), Outgoing("<xml/>", "c")])
    await raw.publish([Outgoing("<more/>", "d")])
    assert await raw.receive(10, 0, SetDemand(9, P=0, OTHER=9)) == []
    assert (await raw.waiting_for("P", 100), await raw.waiting_for("OTHER", 100)) == (5, 0)
    taken = await raw.receive(10, 0, SetDemand(P=3, OTHER=0))
    assert len(taken) == 3
    rest = await raw.receive(10, 0, SetDemand(P=9))
    assert sorted(bodies([*taken, *rest]))[0] == "<more/>"
    assert len(rest) == 2
    await raw.close()
