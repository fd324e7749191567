"""A random walk: what routers and people may do to a job store, in any order, against the model of its rules.

For stores whose clock a test can set. After each step everything that the store tells has to be what the model says.
"""

import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

import pytest

from flowcatalyst.core.message import Delivery, Settled
from flowcatalyst.dispatch.job import Job, Status
from flowcatalyst.dispatch.store.contract import Action, Cancel, Change, Filter, JobStateError, JobStore, Retry
from tests.conformance.job_bench import BLOCK, IMMEDIATE, NEXT, PARKED, JobBench
from tests.conformance.job_model import JobModel, Lease
from tests.support.demands import SetDemand

GROUPS: Final = ("a", "b", None)
STEPS: Final = 80
NOTHING: Final = SetDemand(none=1)


@dataclass(eq=False)
class Hand:
    """A job in a router's hands, which may have lost it."""

    delivery: Delivery
    store: JobStore
    lease: Lease
    changes: int  # of the job when it was taken

    @property
    def name(self) -> str:
        return self.delivery.pointer.id


class JobWalk:
    def __init__(self, bench: JobBench, seed: int) -> None:
        self._bench = bench
        self._luck = random.Random(seed)
        self._model = JobModel()
        self._stores: list[JobStore] = []
        self._hands: list[Hand] = []
        self._story: list[str] = []

    async def go(self) -> None:
        self._stores = [await self._bench.store() for _ in range(2)]
        steps: dict[Callable[[JobStore], Awaitable[None]], int] = {
            self._create: 8,
            self._receive: 8,
            self._ack: 8,
            self._fail: 8,
            self._nack_untried: 3,
            self._act: 8,
            self._act_on_all: 2,
            self._hold: 2,
            self._release: 2,
            self._let_time_pass: 5,
            self._expire: 1,
            self._crash: 1,
        }
        for _ in range(STEPS):
            (step,) = self._luck.choices(list(steps), list(steps.values()))
            try:
                await step(self._luck.choice(self._stores))
                await self._compare(self._luck.choice(self._stores))
            except AssertionError as error:
                raise AssertionError("\n".join([str(error), *self._story])) from error

    # Steps

    async def _create(self, store: JobStore) -> None:
        now, jobs = self._bench.wall(), list[Job]()
        for _ in range(self._luck.randint(1, 4)):
            group = self._luck.choice(GROUPS)
            mode = IMMEDIATE if group is None else self._luck.choice([IMMEDIATE, NEXT, NEXT, BLOCK, BLOCK, BLOCK])
            jobs.append(
                self._bench.job(
                    f"j{len(self._model.jobs) + len(jobs)}",
                    group,
                    mode,
                    sequence=self._luck.choice([1, 99, 99, 99]),
                    scheduled_for=self._luck.choice([None, None, None, now - 5, now + 15]),
                    expires_at=self._luck.choice([None, None, None, now + 25, now + 200]),
                )
            )
        self._tell("create", [(job.id, job.group, job.mode.value, job.sequence, job.scheduled_for) for job in jobs])
        assert not any(created.repeated for created in await store.create(jobs))
        for job in jobs:
            self._model.create(job, now)

    async def _receive(self, store: JobStore) -> None:
        limit, now = self._luck.choice([1, 2, 3, 100]), self._bench.wall()
        self._model.time_has_passed(now)
        startable = self._model.startable(now)
        deliveries = await store.queue.receive(limit, 0)
        self._tell("receive", limit, [delivery.pointer.id for delivery in deliveries], "of", startable)
        by_lane: dict[tuple[str, str], list[Delivery]] = {}
        for delivery in deliveries:
            by_lane.setdefault(self._model.jobs[delivery.pointer.id].lane, []).append(delivery)
        most = min(limit, sum(map(len, startable.values())))
        assert min(1, most) <= len(deliveries) <= most  # as few as a store likes, if it has not been asked for all
        assert len(deliveries) == most or limit < 100
        for lane, taken in by_lane.items():
            names = [delivery.pointer.id for delivery in taken]
            assert names == startable[lane][: len(names)]
            lease = self._model.lease(lane, names, now + store.queue.capabilities.visibility_s)
            for delivery in taken:
                one = self._model.jobs[delivery.pointer.id]
                assert (delivery.failures, delivery.earlier) == (one.failures, one.attempts)
                assert delivery.pointer.dispatch_mode is one.mode
                self._hands.append(Hand(delivery, store, lease, one.changes))

    async def _ack(self, _: JobStore) -> None:
        for hand in self._some_hands():
            (result,) = await self._bench.succeed(hand.store, [hand.delivery])
            if self._judge(hand, "ack", result):
                self._model.complete(hand.name)

    async def _fail(self, _: JobStore) -> None:
        for hand in self._some_hands():
            counts = self._luck.random() < 0.8
            delay_s = self._luck.choice([0.0, 5.0, 20.0, PARKED]) if counts else 10.0
            unlock = hand.delivery.pointer.dispatch_mode is not BLOCK
            hand.delivery.failures += counts
            hand.delivery.attempt = self._bench.attempt(counts=counts)
            (result,) = await hand.store.queue.nack([hand.delivery], delay_s, unlock=unlock)
            if self._judge(hand, f"fail for {delay_s}", result):
                now = self._bench.wall()
                self._model.nack(hand.name, now, delay_s, tried=True, counts=counts, unlock=unlock)

    async def _nack_untried(self, _: JobStore) -> None:
        for hand in self._some_hands():
            (result,) = await hand.store.queue.nack([hand.delivery], 0)
            if self._judge(hand, "nack", result):
                now = self._bench.wall()
                self._model.nack(hand.name, now, 0, tried=False, counts=False, unlock=False)

    def _some_hands(self) -> list[Hand]:
        chosen = self._luck.sample(self._hands, self._luck.randint(0, min(3, len(self._hands))))
        self._hands = [hand for hand in self._hands if hand not in chosen]
        return chosen

    def _judge(self, hand: Hand, what: str, result: Settled) -> bool:
        """Whether the settlement changed something, by what its store said. Only who lost a job may be refused."""
        one = self._model.jobs[hand.name]
        self._tell(what, hand.name, result.value)
        if hand.lease in self._model.leases:
            assert result is Settled.OK
            return True
        if result is Settled.GONE or one.is_finished:
            return False
        # Its lease ended, and nobody took the job or did anything to it since.
        assert not any(lease.lane == one.lane for lease in self._model.leases)
        assert one.changes == hand.changes
        return True

    async def _act(self, store: JobStore) -> None:
        if not self._model.jobs:
            return
        name, action = self._luck.choice(list(self._model.jobs)), self._any_action()
        now = self._bench.wall()
        can = self._model.can(name, action, now)
        self._tell(type(action).__name__, getattr(action, "mode", None), name, can)
        if not can:
            with pytest.raises(JobStateError):
                await store.act(name, action, "ann")
            return
        await store.act(name, action, "ann")
        self._model.act(name, action, now)

    async def _act_on_all(self, store: JobStore) -> None:
        """Of one group, in one go."""
        group, action, now = self._luck.choice(["a", "b"]), self._any_action(), self._bench.wall()
        acted = await store.act_on_all(Filter(group=group), action, "ann", 1000)
        named = [one.name for one in self._model.jobs.values() if one.job.group == group]
        done = [name for name in named if self._model.can(name, action, now)]
        self._tell("all of", group, type(action).__name__, getattr(action, "mode", None), done)
        assert (acted.done, acted.refused, acted.cursor) == (len(done), len(named) - len(done), None)
        for name in done:
            self._model.act(name, action, now)

    def _any_action(self) -> Action:
        changes: list[Action] = [Change(mode=mode) for mode in (IMMEDIATE, NEXT, BLOCK)]
        actions: list[Action] = [Retry(), Retry(), Cancel(), Change(payload=b"new"), *changes]
        return self._luck.choice(actions)

    async def _hold(self, store: JobStore) -> None:
        group = self._luck.choice(["a", "b"])
        self._tell("hold", group)
        await store.hold(group, "ann")
        self._model.held.setdefault(group, self._bench.wall())

    async def _release(self, store: JobStore) -> None:
        group = self._luck.choice(["a", "b"])
        self._tell("release", group)
        await store.release(group, "ann")
        self._model.held.pop(group, None)

    async def _let_time_pass(self, store: JobStore) -> None:
        seconds = self._luck.choice([1.0, 6.0, 20.0, 70.0])
        self._tell("wait", seconds)
        await self._bench.pass_time(seconds)
        await self._look(store)

    async def _look(self, store: JobStore) -> None:
        """What is over ends when somebody looks, also who cannot take anything."""
        assert await store.queue.receive(1, 0, NOTHING) == []
        self._model.time_has_passed(self._bench.wall())

    async def _expire(self, store: JobStore) -> None:
        """Without a look at what there is to take."""
        await self._bench.pass_time(7.0)
        self._tell("expire")
        assert await store.expire(1000) == self._model.time_has_passed(self._bench.wall())
        await self._look(store)

    async def _crash(self, store: JobStore) -> None:
        self._tell("crash")
        await self._bench.crash(store)
        self._stores.remove(store)
        for hand in self._hands:
            if hand.store is store:
                hand.lease.until = 0.0
        self._hands = [hand for hand in self._hands if hand.store is not store]
        self._stores.append(await self._bench.store())
        await self._look(self._stores[-1])

    # What is to be seen

    async def _compare(self, store: JobStore) -> None:
        model, now = self._model, self._bench.wall()
        states = {state.job.id: state for state in (await store.page(Filter(), 1000)).items}
        assert {name: state.status for name, state in states.items()} == {
            name: model.status(name) for name in model.jobs
        }
        for name, state in states.items():
            one = model.jobs[name]
            seen = (state.attempts, state.failures, state.next_attempt_at, state.job.mode)
            assert seen == (one.attempts, one.failures, one.next_attempt_at, one.mode), name
        figures = await store.figures()
        assert figures == model.figures(now), (figures, model.figures(now))
        for name in ("a", "b"):
            group, jobs = await store.group(name), model.group(name)
            assert (group.jobs, group.head and group.head.job.id) == (len(jobs), jobs[0].name if jobs else None)
            assert (group.blocked_since, group.held_since) == (model.blocked_since(name), model.held.get(name))
            for ahead, one in enumerate(jobs):
                place = await store.place_of(one.name)
                assert place is not None
                assert (place.ahead, place.head and place.head.job.id) == (ahead, jobs[0].name if ahead else None)
        status = self._luck.choice(list(Status))
        listed = {state.job.id for state in (await store.page(Filter(status=status), 1000)).items}
        assert listed == {name for name in model.jobs if model.status(name) is status}
        await self._bench.audit(store)

    def _tell(self, *what: object) -> None:
        self._story.append(" ".join(map(str, what)))


class JobWalkSuite:
    @pytest.mark.parametrize("seed", range(12))
    async def test_a_store_shows_what_the_rules_say_whatever_happens(self, bench: JobBench, seed: int) -> None:
        await JobWalk(bench, seed).go()
