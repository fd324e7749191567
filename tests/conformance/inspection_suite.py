"""What queues have to tell of what waits in them, where the storage is ours."""

from flowcatalyst.core.message import MessagePointer, Settled, encode_pointer, parse_pointer
from flowcatalyst.queues.contract import Outgoing
from flowcatalyst.queues.inspection import InspectableQueue, Lock
from tests.conformance.bench import Bench, take


def message(name: str, group: str | None = "g", pool: str | None = None) -> Outgoing:
    pointer = MessagePointer(id=name, mediation_target="http://receiver.test/", pool_code=pool)
    return Outgoing(encode_pointer(pointer).decode(), group)


class InspectionSuite:
    async def test_a_message_that_nobody_received_is_found_by_its_id_and_by_its_broker_id(self, bench: Bench) -> None:
        queue = await bench.client()
        assert isinstance(queue, InspectableQueue)
        published = await queue.publish([message("m 1"), message('m"2', pool="P"), message("m3", None)])
        for name, ahead, group in (("m 1", 0, "g"), ('m"2', 1, "g"), ("m3", 0, None)):
            found = await queue.find(name)
            assert found is not None
            assert (found.ahead, found.group.group, found.group.lock) == (ahead, group, Lock.NONE)
            again = await queue.find(found.broker_id)
            assert again is not None
            assert again.broker_id == found.broker_id
        assert [one.broker_id for one in published][1] == found_id(await queue.find('m"2'))
        assert await queue.find("m") is None
        assert await queue.find("nul\0") is None

    async def test_a_message_of_another_queue_is_not_found(self, bench: Bench) -> None:
        queue = await bench.client()
        assert isinstance(queue, InspectableQueue)
        assert await queue.find("m1") is None

    async def test_a_group_tells_what_keeps_it_in_its_queue(self, bench: Bench) -> None:
        queue = await bench.client()
        assert isinstance(queue, InspectableQueue)
        await queue.publish([message("m1"), message("m2"), message("m3", "other")])
        first = (await queue.look_at(["g", "other", "nobody"]))["g"]
        assert (first.messages, first.lock, first.due_in_s, first.queue) == (2, Lock.NONE, None, queue.name)
        heads = await queue.heads(["g", "other", "nobody"])
        assert {name: parse_pointer(head.body).id for name, head in heads.items()} == {"g": "m1", "other": "m3"}
        assert heads["g"].broker_id == first.head_id
        taken = await take(queue, 3)
        leased = await queue.look_at(["g", "other"])
        assert {one.lock for one in leased.values()} == {Lock.LEASED}
        taken[0].failures = 3
        mine = [one for one in taken if one.group == "g"]
        assert await queue.nack(mine[::-1], 60.0) == [Settled.OK, Settled.OK]
        delayed = (await queue.look_at(["g"]))["g"]
        assert (delayed.messages, delayed.lock, delayed.head_id) == (2, Lock.DELAYED, mine[0].broker_id)
        assert delayed.due_in_s is not None
        assert 50 < delayed.due_in_s <= 60

    async def test_only_groups_whose_first_message_failed_are_listed_as_delayed(self, bench: Bench) -> None:
        queue = await bench.client()
        assert isinstance(queue, InspectableQueue)
        await queue.publish([message("m1", "a"), message("m2", "b"), message("m3", "c")])
        taken = {one.group: one for one in await take(queue, 3)}
        taken["a"].failures = taken["b"].failures = 2
        await queue.nack([taken["a"]], 600.0)
        await queue.nack([taken["b"]], 60.0)
        await queue.nack([taken["c"]], 60.0)
        assert [(one.group, one.head_failures) for one in await queue.delayed_groups(10)] == [("b", 2), ("a", 2)]
        assert [one.group for one in await queue.delayed_groups(1)] == ["b"]


def found_id(found: object) -> object:
    return getattr(found, "broker_id", None)
