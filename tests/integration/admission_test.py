"""Which messages a pool takes, and that no free slot stays idle while there is work it could start."""

import asyncio

import pytest

from flowcatalyst.core.message import DEFAULT_POOL
from flowcatalyst.core.warnings import WarningCode, WarningFilter
from flowcatalyst.http.contract import Content
from flowcatalyst.http.interpret import interpret
from flowcatalyst.queues.contract import Outgoing
from flowcatalyst.router import policy
from flowcatalyst.router.breaker import BreakerState
from flowcatalyst.router.limits import PoolLimits, Success
from flowcatalyst.router.policy import DEFAULT_DELAYS
from tests.support.hosts import USUAL_TIMEOUT_S, QueueKind, World
from tests.support.rig import ERROR_500, UNREACHABLE, Rig, outgoing, outgoings
from tests.support.traffic import HEALTHY, SILENT, any_kind, names, spread

pytestmark = pytest.mark.virtual_time


@pytest.mark.parametrize(("kind", "within_s"), [("embedded", 1.0), ("ordered", 2.0), ("unordered", 2.0)])
async def test_a_pool_with_a_free_slot_and_startable_work_in_its_queue_starts_it_soon(
    kind: QueueKind, within_s: float
) -> None:
    """A burst that is larger than the capacity of its pool, while another pool of the queue gets 15 a second."""
    world = World(latency_s=0.5, A=PoolLimits(concurrency=10), B=PoolLimits(concurrency=10))
    world.queue(kind)
    await world.publish(kind, *spread("warm-a", 1, "A"), *spread("warm-b", 1, "B"))
    async with world.running():
        await world.until_empty()
        published: dict[str, float] = {}

        async def trickle() -> None:
            for n in range(600):
                published[f"b{n}"] = world.clock.monotonic()
                await world.publish(kind, outgoing(f"b{n}", f"b{n}", pool="B", target=HEALTHY))
                await asyncio.sleep(1 / 15)

        await world.publish(kind, *spread("a", 200, "A"))
        trickling = asyncio.ensure_future(trickle())
        assert await world.seconds_until_answered(names("a", 200)) < 200 * 0.5 / 9 + 1.0  # a tenth stays free
        await trickling
        await world.until_empty()
        waits = [world.starts_of(name)[0] - at for name, at in published.items()]
        assert max(waits) <= within_s
        assert len(world.hosts.starts) == 2 + 200 + 600


async def test_who_asks_for_room_at_the_moment_a_permit_is_due_does_not_take_the_alarm_away() -> None:
    rig = Rig(ordered=False, default=PoolLimits(concurrency=2, rate_per_minute=2, capacity=4))
    await rig.publish(*(outgoing(f"m{n}", f"g{n}") for n in range(8)))
    async with rig:
        await rig.until_started(2)
        await asyncio.sleep(10.0)
        rig.consumer.stop()
        # A poll ends at the very moment at which the alarm is due, before it rings.
        now, rig.pool._now = rig.pool._now, lambda: 60.0
        rig.pool.asked_capacity()
        rig.pool._now = now
        async with asyncio.timeout(120):
            await rig.until_started(3)
        assert rig.endpoint.starts[2][0] == pytest.approx(60.0, abs=0.01)


@any_kind
async def test_what_cannot_be_read_waits_for_no_pool_and_holds_up_no_group_of_another(kind: QueueKind) -> None:
    pools = {DEFAULT_POOL: PoolLimits(concurrency=1, capacity=2), "FREE": PoolLimits(concurrency=2)}
    world = World(0.1, DEFAULT_DELAYS, **pools)
    world.queue(kind)
    world.hosts.hanging.add(SILENT)
    await world.publish(kind, *spread("stuck", 10, target=SILENT))
    async with world.running():
        await asyncio.sleep(5)
        no_message = Outgoing("{not json", "g")
        await world.publish(kind, no_message, outgoing("free", "g", pool="FREE", target=HEALTHY))
        assert await world.seconds_until_answered({"free"}) < 2.0


async def test_a_group_does_not_wait_for_a_message_that_was_lost_with_its_connection_during_its_attempt() -> None:
    rig = Rig(ordered=False, latency_s=1.0)
    rig.endpoint.answers("m1", interpret(429, "300", b"", 0.0))
    await rig.publish(outgoing("m1"))
    async with rig:
        await rig.until_started(1)
        rig.settler.still_ours = lambda delivery: delivery.pointer.id != "m1" or delivery.receive_count > 1
        await asyncio.sleep(5)
        await rig.publish(outgoing("m2"))
        async with asyncio.timeout(10):
            await rig.until_started(3)
        assert rig.endpoint.started == ["m1", "m1", "m2"]


async def test_groups_that_wait_for_a_message_to_come_back_take_no_place_in_their_pool() -> None:
    """Their queue has them; what another endpoint could take goes on, however many they are."""
    world = World(0.0, POOL=PoolLimits(concurrency=5, capacity=10, parked_limit=10))
    world.queue("embedded")
    world.queue("ordered")  # another queue could have messages of the same groups
    for n in range(60):
        world.hosts.refuse(f"busy{n}", interpret(429, "3600", b"", 0.0))
    await world.publish("embedded", *spread("busy", 60, "POOL", SILENT))
    async with world.running():
        await world.seconds_until_answered(names("busy", 60), 20.0)
        await world.publish("embedded", *spread("fine", 20, "POOL"))
        assert await world.seconds_until_answered(names("fine", 20)) < 2.0
        assert set(world.started("busy")) == names("busy", 60)


@any_kind
@pytest.mark.parametrize(("slots", "hanging"), [(20, 1), (20, 2), (20, 4), (3, 1)])
async def test_paths_that_hang_do_not_stop_a_healthy_one_of_their_host_that_nobody_knows_yet(
    kind: QueueKind, slots: int, hanging: int
) -> None:
    world = World(POOL=PoolLimits(concurrency=slots))
    world.queue(kind)
    for n in range(hanging):
        world.hosts.hanging.add(f"http://host.test/hangs{n}")
        await world.publish(kind, *spread(f"hangs{n}-", 200, "POOL", f"http://host.test/hangs{n}"))
    async with world.running():
        await asyncio.sleep(5)
        await world.publish(kind, *spread("fine", 100, "POOL", "http://host.test/fine"))
        assert await world.seconds_until_answered(names("fine", 100)) < 100 * 0.1 + 5.0


@any_kind
async def test_a_hot_group_does_not_keep_a_slot_idle(kind: QueueKind) -> None:
    world = World(POOL=PoolLimits(concurrency=2))
    world.queue(kind)
    hot = [outgoing(f"hot{n}", "hot", pool="POOL", target=HEALTHY) for n in range(500)]
    await world.publish(kind, *hot, *spread("other", 20, "POOL"))
    async with world.running():
        assert await world.seconds_until_answered(names("other", 20)) < 20 * 0.1 + 5.0
        assert len(world.started("hot")) < 100
        await world.until_empty()
    assert world.started("hot") == [f"hot{n}" for n in range(500)]


@any_kind
async def test_failing_groups_do_not_starve_healthy_ones_of_their_pool(kind: QueueKind) -> None:
    world = World(POOL=PoolLimits(concurrency=2))
    world.queue(kind)
    for n in range(700):
        world.hosts.refuse(f"fails{n}", ERROR_500)
    await world.publish(kind, *spread("fails", 700, "POOL"))
    async with world.running():
        await asyncio.sleep(100)
        await world.publish(kind, *spread("fine", 20, "POOL"))
        # At worst each failing group is due when they come, once.
        assert await world.seconds_until_answered(names("fine", 20)) < 720 * 0.1 / 2 + 2.0


@any_kind
async def test_a_hanging_endpoint_leaves_slots_to_the_others(kind: QueueKind) -> None:
    world = World(POOL=PoolLimits(concurrency=20))
    world.queue(kind)
    world.hosts.hanging.add(SILENT)
    await world.publish(kind, *spread("hangs", 100, "POOL", SILENT))
    async with world.running():
        await asyncio.sleep(9)
        assert len(world.hosts.deadlines) == 10  # half of the slots, since nobody knows that it answers
        await world.publish(kind, *spread("fine", 20, "POOL"))
        assert await world.seconds_until_answered(names("fine", 20)) < 2.0
        await asyncio.sleep(USUAL_TIMEOUT_S)
        now = world.clock.monotonic()
        assert sum(at + deadline_s > now for at, deadline_s in world.hosts.deadlines) <= 1  # it timed out twice
        await world.publish(kind, *spread("more", 20, "POOL"))
        assert await world.seconds_until_answered(names("more", 20)) < 2.0


@any_kind
async def test_a_proven_endpoint_that_falls_silent_leaves_slots_to_the_others(kind: QueueKind) -> None:
    world = World(POOL=PoolLimits(concurrency=20))
    world.queue(kind)
    await world.publish(kind, *spread("before", 30, "POOL", SILENT), *spread("fine", 1, "POOL"))
    async with world.running():
        await world.until_empty()
        world.hosts.hanging.add(SILENT)
        await world.publish(kind, *spread("hangs", 100, "POOL", SILENT))
        await asyncio.sleep(5)
        assert len(world.hosts.deadlines) == 18  # all but a tenth
        await world.publish(kind, *spread("others", 20, "POOL"))
        assert await world.seconds_until_answered(names("others", 20)) < 20 * 0.1 / 2 + 1.0


@any_kind
async def test_what_waits_for_the_share_of_a_silent_endpoint_does_not_keep_others_out_when_it_fills_the_pool(
    kind: QueueKind,
) -> None:
    world = World(POOL=PoolLimits(concurrency=20, capacity=50))
    world.queue(kind)
    world.hosts.hanging.add(SILENT)
    await world.publish(kind, *spread("fine", 1, "POOL"), *spread("hangs", 60, "POOL", SILENT))
    async with world.running():
        await asyncio.sleep(5)
        for n in range(20):
            await world.publish(kind, *spread(f"more{n}-", 10, "POOL", SILENT), *spread(f"other{n}-", 1, "POOL"))
            assert await world.seconds_until_answered(names(f"other{n}-", 1)) < 1.0
            await asyncio.sleep(1)


@pytest.mark.parametrize(("kind", "within_s"), [("embedded", 2.0), ("ordered", 3.0), ("unordered", 3.0)])
async def test_a_long_line_for_one_endpoint_does_not_hide_what_is_for_another(kind: QueueKind, within_s: float) -> None:
    """Nobody but the router knows where a message goes: it looks twice as far each time."""
    world = World(latency_s=20.0, POOL=PoolLimits(concurrency=10, capacity=20))
    world.queue(kind)
    await world.publish(kind, *spread("warm", 1, "POOL"), *spread("slow", 1000, "POOL", SILENT))
    async with world.running():
        await asyncio.sleep(10.0)  # the slow one has all slots but one
        before = len(world.started("slow"))
        await world.publish(kind, *spread("quick", 1, "POOL"))
        await asyncio.sleep(within_s)
        assert world.started("quick") == ["quick0"]
        assert before < 50
        assert world.engine.router.pools["POOL"].size > 900  # it is behind all others


@any_kind
async def test_a_recovered_endpoint_does_not_wait_for_a_probe_that_hangs(kind: QueueKind) -> None:
    world = World(POOL=PoolLimits(concurrency=10))
    world.queue(kind)
    for n in range(20):
        world.hosts.answers(f"m{n}", UNREACHABLE)
    await world.publish(kind, *spread("m", 20, "POOL", SILENT))
    async with world.running():
        while len(world.engine.breakers) == 0 or (world.engine.breakers.get(SILENT).state is not BreakerState.OPEN):
            await asyncio.sleep(0.05)
        world.hosts.hanging.add(SILENT)
        await asyncio.sleep(60)
        probes = list(world.hosts.deadlines)
        assert probes
        assert max(deadline_s for _, deadline_s in probes) <= 40.0
        world.hosts.hanging.clear()
        assert await world.seconds_until_answered(names("m", 20)) < 60
        await world.until_empty()
    assert world.dead_letters.letters == []


@any_kind
async def test_groups_of_an_open_breaker_wait_in_memory_and_are_not_nacked(kind: QueueKind) -> None:
    world = World(latency_s=0.0, POOL=PoolLimits(concurrency=10))
    world.queue(kind)
    for n in range(20):
        world.hosts.answers(f"m{n}", UNREACHABLE, UNREACHABLE)
    await world.publish(kind, *spread("m", 20, "POOL", SILENT))
    async with world.running():
        await world.until_empty()
        assert world.queues[kind].nacked == []
        assert len(world.hosts.starts) == 60


@any_kind
async def test_retry_after_1_means_one_second_also_where_the_group_has_another_message(kind: QueueKind) -> None:
    world = World(latency_s=0.0, POOL=PoolLimits(concurrency=5))
    world.queue(kind)
    world.hosts.answers("m1", *[interpret(429, "1", b"", 0.0)] * 3)
    await world.publish(kind, *(outgoing(f"m{n}", pool="POOL") for n in (1, 2, 3)))
    async with world.running():
        await world.until_empty()
    assert world.started() == ["m1", "m1", "m1", "m1", "m2", "m3"]
    assert world.starts_of("m1") == pytest.approx([0.0, 1.0, 2.0, 3.0], abs=0.2)
    assert world.starts_of("m3")[0] == pytest.approx(3.0, abs=0.3)
    assert {delay_s for _, delay_s in world.queues[kind].nacked} <= {1.0}


@any_kind
async def test_statuses_of_the_pool_setting_are_retried_in_order_instead_of_becoming_dead_letters(
    kind: QueueKind,
) -> None:
    lenient = PoolLimits(concurrency=5, retry_statuses=frozenset({404}))
    world = World(latency_s=0.0, LENIENT=lenient, STRICT=PoolLimits(concurrency=5))
    world.queue(kind)
    not_found = interpret(404, None, b"", 0.0)
    world.hosts.answers("l1", *[not_found] * 4)
    world.hosts.answers("s1", *[not_found] * 4)
    await world.publish(
        kind,
        *(outgoing(f"l{n}", "l", pool="LENIENT") for n in (1, 2)),
        *(outgoing(f"s{n}", "s", pool="STRICT") for n in (1, 2)),
    )
    async with world.running():
        await world.until_empty()
    assert world.started("l") == ["l1"] * 5 + ["l2"]
    assert world.started("s") == ["s1", "s2"]
    assert world.dead_letters.letters == [("s1", "HTTP 404")]
    told = world.warnings.recent(WarningFilter(code=WarningCode.CONFIGURATION))
    assert [one.count for one in told] == [1]  # of the pool that does not expect it


@any_kind
async def test_a_2xx_is_a_success_unless_the_pool_takes_only_200_which_is_told_once(kind: QueueKind) -> None:
    strict = PoolLimits(concurrency=5, success=Success.ONLY_200)
    world = World(latency_s=0.0, USUAL=PoolLimits(concurrency=5), STRICT=strict)
    world.queue(kind)
    no_content = interpret(204, None, b"", 0.0)
    world.hosts.answers("u1", no_content)
    world.hosts.answers("s1", no_content, no_content)
    await world.publish(
        kind,
        *(outgoing(f"u{n}", "u", pool="USUAL") for n in (1, 2)),
        *(outgoing(f"s{n}", "s", pool="STRICT") for n in (1, 2)),
    )
    async with world.running():
        await world.until_empty()
    assert world.started("u") == ["u1", "u2"]
    assert world.started("s") == ["s1", "s1", "s1", "s2"]
    [warning] = world.warnings.recent()
    assert 'HTTP 204 is retried: only 200 is a success in this pool (success = "200")' in warning.message


@any_kind
async def test_a_success_whose_body_is_not_the_json_it_claims_to_be_is_acked_and_told_once(kind: QueueKind) -> None:
    world = World(latency_s=0.0, USUAL=PoolLimits(concurrency=5))
    world.queue(kind)
    odd = interpret(200, None, b"fine", 0.0, Content("application/json"))
    world.hosts.answers("m1", odd)
    world.hosts.answers("m2", odd)
    await world.publish(kind, *(outgoing(f"m{n}", "g", pool="USUAL") for n in (1, 2)))
    async with world.running():
        await world.until_empty()
    assert world.started("m") == ["m1", "m2"]
    assert world.dead_letters.letters == []
    [warning] = world.warnings.recent()
    assert "its body is declared as JSON but is not: counted as a success" in warning.message
    assert warning.count == 1


async def test_with_its_parked_limit_reached_a_pool_stops_an_unordered_queue_with_a_warning_and_goes_on_later() -> None:
    stuck = PoolLimits(concurrency=1, capacity=5, parked_limit=10)
    rig = Rig(ordered=False, latency_s=200.0, max_batch=5, STUCK=stuck, FREE=PoolLimits(concurrency=2))
    await rig.publish(*(outgoing(f"m{n}", pool="STUCK") for n in range(40)), outgoing("free", "f", pool="FREE"))
    async with rig:
        await asyncio.sleep(100)
        assert rig.router.pools["STUCK"].size == 15
        polls = rig.queue.polls
        await asyncio.sleep(95)
        assert rig.queue.polls == polls
        [warning] = rig.warnings.recent()
        assert warning.code is WarningCode.QUEUE_FULL
        assert "pool STUCK is full, with 15 messages" in warning.message
        rig.endpoint.latency_s = 0.1
        async with asyncio.timeout(300):
            await rig.until_empty()
        assert [name for name in rig.endpoint.started if name != "free"] == [f"m{n}" for n in range(40)]
        assert rig.queue.nacked == []


async def test_until_its_parked_limit_is_reached_a_stuck_pool_lets_the_others_of_its_queue_pass() -> None:
    stuck = PoolLimits(concurrency=1, capacity=5, parked_limit=1000)
    rig = Rig(ordered=False, latency_s=10_000.0, max_batch=5, STUCK=stuck, FREE=PoolLimits(concurrency=20))
    messages = [outgoing(f"s{n}", f"s{n}", pool="STUCK") for n in range(400)]
    await rig.publish(*messages, *(outgoing(f"f{n}", f"f{n}", pool="FREE") for n in range(5)))
    async with rig:
        await rig.until_started(6)
        assert rig.clock.monotonic() < 60.0
        assert {name for name in rig.endpoint.started if name[0] == "f"} == {f"f{n}" for n in range(5)}
        assert rig.router.pools["STUCK"].parked == 395
        assert rig.warnings.recent() == []


async def test_an_attempt_without_a_verdict_is_not_repeated_without_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("a bug of ours")

    rig = Rig()
    monkeypatch.setattr(policy, "decide", broken)
    await rig.publish(*outgoings(["m1", "m2"]), outgoing("other", "other"))
    async with rig:
        await asyncio.sleep(29)
        assert sorted(rig.endpoint.started) == ["m1", "other"]
        assert "CRITICAL" in {warning.severity for warning in rig.warnings.recent()}
        assert rig.queue.acked == []
        monkeypatch.undo()
        await rig.until_empty()
        assert [name for name in rig.endpoint.started if name != "other"] == ["m1", "m1", "m2"]
