"""Endpoints that are down, groups that are blocked and new dead letters: told once when they begin and once when they
are over, on virtual time with the engine that production runs."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from flowcatalyst.core.message import Delivery, DispatchMode, Outcome, Severity
from flowcatalyst.core.warnings import WarningCode, WarningLog
from flowcatalyst.http.interpret import interpret
from flowcatalyst.router import blocked
from flowcatalyst.router.blocked import RETURN_S
from flowcatalyst.router.breaker import BreakerState
from flowcatalyst.router.limits import PoolLimits
from flowcatalyst.router.outages import TOLD_AT_MOST, TOLD_PER_ORIGIN, DeadLetterOutages
from flowcatalyst.router.pauses import PauseKind
from tests.support.hosts import QueueKind, World
from tests.support.rig import ERROR_500, NOT_YET, UNREACHABLE, outgoing
from tests.support.traffic import HEALTHY, SILENT, any_kind, spread
from tests.support.virtual_loop import VirtualClock, until

pytestmark = pytest.mark.virtual_time

DOWN, RECOVERED, BLOCKED = WarningCode.ENDPOINT_DOWN, WarningCode.ENDPOINT_RECOVERED, WarningCode.GROUP_BLOCKED
GATEWAY_503 = interpret(503, None, b"", 0.0)


class Told:
    """What a webhook would get, in order."""

    def __init__(self, world: World) -> None:
        self.events: list[tuple[WarningCode, str]] = []
        world.warnings.on_new = lambda warning: self.events.append((warning.code, warning.source))

    def of(self, *codes: WarningCode) -> list[tuple[WarningCode, str]]:
        return [event for event in self.events if event[0] in codes]


class Outage:
    """A world with one endpoint that fails as told until it is mended, and traffic for it and for a good one."""

    def __init__(self, kind: QueueKind = "embedded") -> None:
        self.world = World(POOL=PoolLimits(concurrency=20))
        self.world.queue(kind)
        self.told = Told(self.world)
        self.answer: Outcome | None = None
        answer_as_told = self.world.hosts.attempt

        async def attempt(delivery: Delivery, timeout_s: float | None = None) -> Outcome:
            outcome = await answer_as_told(delivery, timeout_s)
            silent = delivery.pointer.mediation_target == SILENT
            return self.answer if self.answer is not None and silent else outcome

        self.world.hosts = _Answers(self.world.hosts, attempt)  # type: ignore[assignment]
        self._kind = kind

    async def send(self, prefix: str, count: int, target: str = SILENT) -> None:
        await self.world.publish(self._kind, *spread(prefix, count, "POOL", target))

    @property
    def down(self) -> list[str]:
        return list(self.world.engine.endpoint_outages.down)


class _Answers:
    def __init__(self, hosts: object, attempt: Callable[..., Awaitable[Outcome]]) -> None:
        self._hosts = hosts
        self.attempt = attempt

    def __getattr__(self, name: str) -> object:
        return getattr(self._hosts, name)


@any_kind
@pytest.mark.parametrize("answer", [UNREACHABLE, GATEWAY_503, ERROR_500], ids=["refused", "503", "500"])
async def test_an_endpoint_that_fails_for_a_minute_is_told_once_and_once_more_when_it_is_back(
    kind: QueueKind, answer: Outcome
) -> None:
    scene = Outage(kind)
    scene.answer = answer
    await scene.send("m", 30)
    async with scene.world.running():
        await asyncio.sleep(50)
        assert scene.told.of(DOWN, RECOVERED) == []
        await asyncio.sleep(150)
        assert scene.down == [SILENT]
        await asyncio.sleep(600)
        assert scene.told.of(DOWN, RECOVERED) == [(DOWN, SILENT)]
        scene.answer = None
        await scene.world.until_empty()
        await asyncio.sleep(15)
        assert scene.told.of(DOWN, RECOVERED) == [(DOWN, SILENT), (RECOVERED, SILENT)]
        assert scene.down == []
        open_ones = [one for one in scene.world.warnings.recent() if one.code is DOWN and not one.acknowledged]
        assert open_ones == []


async def test_an_endpoint_that_hangs_is_told_although_its_breaker_is_closed() -> None:
    scene = Outage()
    scene.world.hosts.hanging.add(SILENT)
    await scene.send("m", 5)
    await scene.send("good", 5, HEALTHY)
    async with scene.world.running():
        await asyncio.sleep(80)
        assert scene.told.of(DOWN, RECOVERED) == [(DOWN, SILENT)]
        assert scene.world.engine.breakers.get(SILENT).state is BreakerState.CLOSED
        await asyncio.sleep(1500)  # they time out, and short probes follow
        assert scene.told.of(DOWN, RECOVERED) == [(DOWN, SILENT)]
        scene.world.hosts.hanging.clear()
        await scene.world.until_empty()
        await asyncio.sleep(15)
        assert scene.told.of(DOWN, RECOVERED) == [(DOWN, SILENT), (RECOVERED, SILENT)]


@any_kind
async def test_an_endpoint_is_told_when_its_outage_is_a_minute_old_without_waiting_for_the_next_attempt(
    kind: QueueKind,
) -> None:
    scene = Outage(kind)
    scene.answer = ERROR_500
    await scene.send("m", 1)
    async with scene.world.running():
        await asyncio.sleep(34)
        attempts = len(scene.world.hosts.starts)
        await asyncio.sleep(40)  # the look after the 60th second
        assert scene.told.of(DOWN) == [(DOWN, SILENT)]
        assert scene.down == [SILENT]
        late = [at for at, _ in scene.world.hosts.starts[attempts:]]
        assert [at for at in late if at >= 60.1] == []


async def test_one_attempt_that_failed_alone_is_no_outage() -> None:
    world = World(POOL=PoolLimits(concurrency=1, max_delivery_attempts=1))
    world.queue("embedded")
    told = Told(world)
    world.hosts.refuse("m", ERROR_500)
    await world.publish("embedded", outgoing("m", "g", pool="POOL"))
    async with world.running():
        await asyncio.sleep(600)
    assert told.of(DOWN) == []


@pytest.mark.parametrize(
    ("status", "text"),
    [
        (302, "it redirects (HTTP 302), and redirects are not followed: give the final address as the target"),
        (101, "HTTP 101"),
    ],
)
async def test_an_endpoint_whose_answer_is_no_error_and_no_success_is_not_called_down(status: int, text: str) -> None:
    scene = Outage()
    scene.answer = interpret(status, None, b"", 0.0)
    await scene.send("m", 1)
    async with scene.world.running():
        await asyncio.sleep(100)
        [warning] = [one for one in scene.world.warnings.recent() if one.code is DOWN]
        assert warning.message == f"{SILENT} does not accept deliveries: {text}"
        scene.answer = None
        await scene.world.until_empty()
        await asyncio.sleep(15)
        [warning] = [one for one in scene.world.warnings.recent() if one.code is RECOVERED]
        assert warning.message == f"{SILENT} accepts deliveries again"


async def test_a_second_outage_is_told_like_the_first() -> None:
    scene = Outage()
    async with scene.world.running():
        for n in range(3):
            scene.answer = UNREACHABLE
            await scene.send(f"m{n}-", 20)
            await asyncio.sleep(200)
            scene.answer = None
            await scene.world.until_empty()
            await asyncio.sleep(15)
    assert scene.told.of(DOWN, RECOVERED) == 3 * [(DOWN, SILENT), (RECOVERED, SILENT)]
    assert [one.count for one in scene.world.warnings.recent() if one.code in (DOWN, RECOVERED)] == [3, 3]


async def test_failures_between_successes_and_a_short_outage_are_not_told() -> None:
    scene = Outage()
    async with scene.world.running():
        for n in range(40):
            scene.answer = ERROR_500 if n % 2 else None
            await scene.send(f"m{n}-", 1)
            await asyncio.sleep(10)
        scene.answer = UNREACHABLE
        await scene.send("short", 20)
        await asyncio.sleep(40)
        scene.answer = None
        await scene.world.until_empty()
        await asyncio.sleep(60)
    assert scene.told.of(DOWN, RECOVERED) == []


async def test_an_endpoint_that_asks_for_patience_or_refuses_messages_is_not_down() -> None:
    for answer in (NOT_YET, interpret(429, "5", b"", 0.0), interpret(404, None, b"", 0.0)):
        scene = Outage()
        scene.answer = answer
        await scene.send("m", 5)
        async with scene.world.running():
            await asyncio.sleep(400)
        assert scene.told.of(DOWN, RECOVERED) == []


async def test_an_endpoint_that_is_known_to_be_slow_is_not_down() -> None:
    world = World(latency_s=200.0, POOL=PoolLimits(concurrency=2))
    world.queue("embedded")
    told = Told(world)
    async with world.running():
        await world.publish("embedded", *spread("first", 1, "POOL"))
        await world.until_empty()
        await asyncio.sleep(60)
        told.events.clear()  # of the first, nobody can know
        await world.publish("embedded", *spread("m", 20, "POOL"))
        await world.until_empty()
    assert told.of(DOWN, RECOVERED) == []


async def test_a_host_with_many_paths_that_is_down_is_a_few_warnings_and_so_are_many_hosts() -> None:
    world = World(POOL=PoolLimits(concurrency=500))
    world.queue("embedded", max_batch=1000)
    told = Told(world)
    for n in range(50):
        world.hosts.refuse(f"a{n}", UNREACHABLE)
    for n in range(300):
        world.hosts.refuse(f"b{n}", UNREACHABLE)
    await world.publish(
        "embedded",
        *(outgoing(f"a{n}", f"a{n}", pool="POOL", target=f"http://one.test/orders/{n}") for n in range(50)),
        *(outgoing(f"b{n}", f"b{n}", pool="POOL", target=f"http://host{n}.test/") for n in range(300)),
    )
    async with world.running():
        await asyncio.sleep(500)
        assert len(world.engine.endpoint_outages.down) == 350
        of_one = [source for code, source in told.of(DOWN) if "one.test" in source]
        assert len(of_one) == TOLD_PER_ORIGIN + 1
        assert of_one[-1] == "http://one.test"
        assert len(told.of(DOWN)) <= 2 * TOLD_AT_MOST + 1
        world.hosts._scripts.clear()
        await asyncio.sleep(700)
        assert world.engine.endpoint_outages.down == {}
        assert {source for _, source in told.of(RECOVERED)} == {source for _, source in told.of(DOWN)}
        assert len(told.of(RECOVERED)) == len(told.of(DOWN))


@any_kind
@pytest.mark.parametrize("answer", [ERROR_500, NOT_YET], ids=["500", "not acked"])
async def test_a_group_that_waits_for_a_message_for_15_minutes_is_told_once_until_it_moves_on(
    kind: QueueKind, answer: Outcome
) -> None:
    world = World(POOL=PoolLimits(concurrency=5, max_delivery_attempts=1000))
    world.queue(kind)
    told = Told(world)
    world.hosts.refuse("stuck", answer)
    await world.publish(
        kind,
        outgoing("stuck", "order-1", pool="POOL"),
        outgoing("behind", "order-1", pool="POOL"),
        *spread("good", 20, "POOL"),
    )
    async with world.running():
        await asyncio.sleep(890)
        assert told.of(BLOCKED) == []
        await asyncio.sleep(60)
        [one] = world.engine.group_outages.blocked
        assert (one.group, one.message_id, one.detail) == ("order-1", "stuck", answer.detail)
        await asyncio.sleep(1200)
        assert told.of(BLOCKED) == [(BLOCKED, "pool POOL")]
        [warning] = [one for one in world.warnings.recent() if one.code is BLOCKED]
        assert warning.severity is Severity.ERROR
        assert "order-1 waits for message stuck" in warning.message
        world.hosts._scripts.clear()
        await world.until_empty()
        await asyncio.sleep(35)
        assert world.engine.group_outages.blocked == []
        assert warning.acknowledged


async def test_a_group_behind_an_attempt_that_hangs_is_told_although_its_endpoint_answers_others() -> None:
    world = World(POOL=PoolLimits(concurrency=20))
    world.queue("embedded")
    told = Told(world)
    stuck, other = "http://shop.test/hook?of=stuck", "http://shop.test/hook?of=other"
    world.hosts.hanging.add(stuck)
    async with world.running():
        await world.publish("embedded", outgoing("poison", "stuck", pool="POOL", target=stuck))
        world.engine.group_outages.limit_s = 600.0
        for n in range(59):
            await asyncio.sleep(10)
            await world.publish("embedded", outgoing(f"fine{n}", "other", pool="POOL", target=other))
        assert (told.of(BLOCKED), world.engine.group_outages.blocked) == ([], [])
        await asyncio.sleep(100)
        assert told.of(BLOCKED) == [(BLOCKED, "pool POOL")]
        [blocked] = world.engine.group_outages.blocked
        assert (blocked.group, blocked.message_id) == ("stuck", "poison")
        assert "attempt 1 has not ended" in blocked.detail
        world.hosts.hanging.clear()
        await asyncio.sleep(300)
        assert world.engine.group_outages.blocked == []


async def test_messages_that_block_nobody_are_not_told() -> None:
    world = World(POOL=PoolLimits(concurrency=5))
    world.queue("embedded")
    told = Told(world)
    world.hosts.refuse("next", ERROR_500)
    world.hosts.refuse("alone", ERROR_500)
    await world.publish(
        "embedded",
        outgoing("next", "g", pool="POOL", mode=DispatchMode.NEXT_ON_ERROR),
        outgoing("alone", "h", pool="POOL", mode=DispatchMode.IMMEDIATE),
    )
    async with world.running():
        await asyncio.sleep(2000)
        assert world.engine.group_outages.blocked == []
    assert told.of(BLOCKED) == []


async def test_a_blocked_message_that_went_elsewhere_is_forgotten() -> None:
    world = World(POOL=PoolLimits(concurrency=5))
    queue = world.queue("embedded")
    world.hosts.refuse("stuck", ERROR_500)
    await world.publish("embedded", outgoing("stuck", "g", pool="POOL"))
    async with world.running():
        await asyncio.sleep(1000)
        assert len(world.engine.group_outages.blocked) == 1

        async def nothing(*_: object) -> list[object]:
            await asyncio.sleep(1)
            return []

        queue.receive = nothing  # type: ignore[method-assign, assignment]
        await asyncio.sleep(300 + RETURN_S + 60)
        assert world.engine.group_outages.blocked == []


async def test_a_blocked_message_of_a_paused_pool_is_not_taken_for_one_that_went_elsewhere() -> None:
    world = World(POOL=PoolLimits(concurrency=5))
    world.queue("embedded")
    told = Told(world)
    world.hosts.refuse("stuck", ERROR_500)
    await world.publish("embedded", outgoing("stuck", "g", pool="POOL"))
    async with world.running():
        engine = world.engine
        await until(lambda: any(one.is_nacked for one in engine.failed.by_message.values()))
        engine.acts.pause(PauseKind.POOL, "POOL", "ann")
        await asyncio.sleep(300 + RETURN_S + 960)
        assert [one.message_id for one in engine.group_outages.blocked] == ["stuck"]
        assert told.of(BLOCKED) == [(BLOCKED, "pool POOL")]
        spent = len(world.started())
        await engine.acts.resume(PauseKind.POOL, "POOL")
        await engine.group_outages.look()  # before its queue had time to show it
        assert [one.message_id for one in engine.group_outages.blocked] == ["stuck"]
        await asyncio.sleep(60)
        assert len(world.started()) > spent
        [warning] = [one for one in world.warnings.recent() if one.code is BLOCKED]
        assert warning.message.endswith("; to see what can be done, run: flowcatalyst explain stuck")


async def test_what_is_remembered_of_blocked_groups_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocked, "MOST_REMEMBERED", 50)
    world = World(POOL=PoolLimits(concurrency=100))
    world.queue("embedded")
    for n in range(60):
        world.hosts.answers(f"m{n}", *[NOT_YET] * 3)
    await world.publish("embedded", *spread("m", 60, "POOL"))
    async with world.running():
        await asyncio.sleep(25)
        assert len(world.engine.failed.by_message) == 50
        await world.until_empty()
        assert len(world.engine.failed.by_message) == 0


async def test_new_dead_letters_are_told_once_until_there_are_none_for_15_minutes() -> None:
    warnings, counts = WarningLog(VirtualClock()), [0, 3, 5, 0, 2]
    told: list[WarningCode] = []
    warnings.on_new = lambda warning: told.append(warning.code)
    asked: list[float] = []

    async def count_newer(seconds: float) -> int:
        asked.append(seconds)
        return counts[len(asked) - 1]

    outages = DeadLetterOutages(count_newer, warnings, 900.0)
    seen = []
    for _ in counts:
        await outages.look()
        seen.append((outages.recent, len(told)))
    assert seen == [(0, 0), (3, 1), (5, 1), (0, 1), (2, 2)]
    assert set(asked) == {900.0}
