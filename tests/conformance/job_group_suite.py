"""The part of the suite of job stores about groups: lists, holds and figures."""

from flowcatalyst.core.message import Delivery
from flowcatalyst.dispatch.job import Status
from flowcatalyst.dispatch.store.contract import GROUP_SIZES, Action, Cancel, Change, GroupState, JobStore, Retry
from tests.conformance.job_bench import BLOCK, IMMEDIATE, NEXT, PARKED, JobBench, names, take


async def listed(store: JobStore, *, blocked: bool = False, limit: int = 100) -> list[str]:
    found: list[GroupState] = []
    cursor = None
    while True:
        page = await store.groups(blocked=blocked, limit=limit, cursor=cursor)
        assert len(page.items) <= limit
        found += page.items
        if page.cursor is None:
            return [group.group for group in found]
        cursor = page.cursor


class JobGroupSuite:
    async def test_a_group_tells_its_jobs_and_its_first_one(self, bench: JobBench) -> None:
        store = await bench.store()
        await bench.create(store, "a1", "a2", mode=BLOCK)
        await bench.create(store, "a0", mode=NEXT, sequence=1)
        await bench.create(store, "a9")  # ordered with nothing
        await bench.create(store, "a8", mode=BLOCK, scheduled_for=bench.wall() + 1000)
        group = await store.group("a")
        assert group.head is not None
        assert (group.group, group.jobs, group.head.job.id) == ("a", 3, "a0")
        assert (group.blocked_since, group.held_since, group.held_by) == (None, None, "")

    async def test_a_group_without_jobs_in_order_is_none(self, bench: JobBench) -> None:
        store = await bench.store()
        await bench.create(store, "a1", mode=BLOCK)
        await bench.create(store, "b1")
        await bench.finish(store)
        for name in ("a", "b", "nobody", 'odd " name'):
            assert await store.group(name) == GroupState(name, 0, None)
        assert await listed(store) == []

    async def test_a_group_is_blocked_from_the_first_failure_of_its_first_job_on(self, bench: JobBench) -> None:
        store = await bench.store()
        await bench.create(store, "a1", "a2", mode=BLOCK)
        assert (await store.group("a")).blocked_since is None
        await bench.fail_first(store, "a1", bench.delay_s)
        group = await store.group("a")
        assert group.head is not None
        assert (group.jobs, group.head.job.id, group.head.status) == (2, "a1", Status.ERROR)
        since = group.blocked_since
        assert since is not None
        await bench.pass_time(bench.delay_s)
        await bench.fail_first(store, "a1", PARKED)
        assert (await store.group("a")).blocked_since == since
        await store.act("a1", Retry(), "ann")
        assert (await store.group("a")).blocked_since is None

    async def test_what_unblocks_a_group_is_seen_at_once(self, bench: JobBench) -> None:
        store = await bench.store()
        actions: dict[str, Action] = {"a": Cancel(), "b": Change(mode=NEXT), "c": Change(mode=IMMEDIATE), "d": Retry()}
        for group in actions:
            await bench.create(store, f"{group}1", f"{group}2", mode=BLOCK)
            await bench.fail_first(store, f"{group}1", PARKED)
            await store.hold(group, "ann")
            await store.release(group, "ann")
            assert await take(store) == []
        assert sorted(await listed(store, blocked=True)) == ["a", "b", "c", "d"]
        assert (await store.figures()).blocked == 4
        for group, action in actions.items():
            await store.act(f"{group}1", action, "ann")
        assert await listed(store, blocked=True) == []
        assert (await store.figures()).blocked == 0

    async def test_a_job_that_passes_what_blocks_its_group_unblocks_it_for_its_own_time(self, bench: JobBench) -> None:
        store = await bench.store()
        await bench.create(store, "a1", "a2", mode=BLOCK)
        await bench.fail_first(store, "a1", PARKED)
        await bench.create(store, "a0", mode=BLOCK, sequence=1)
        assert (await store.group("a")).blocked_since is None
        assert await bench.finish(store) == ["a0"]
        assert (await store.group("a")).blocked_since is not None

    async def test_a_job_that_lets_the_next_one_start_blocks_no_group(self, bench: JobBench) -> None:
        store = await bench.store()
        await bench.create(store, "a1", "a2", mode=NEXT)
        await bench.fail_first(store, "a1", PARKED)
        group = await store.group("a")
        assert group.head is not None
        assert (group.jobs, group.head.job.id, group.blocked_since) == (1, "a2", None)

    async def test_groups_are_listed_the_longest_blocked_or_held_first_and_others_by_name(
        self, bench: JobBench
    ) -> None:
        store = await bench.store()
        for name in ("f", "b", "c", "a", "e", "d"):
            await bench.create(store, f"{name}1", f"{name}2", mode=BLOCK)
        held = {delivery.pointer.id: delivery for delivery in await take(store)}
        await store.queue.nack([held[f"{name}2"] for name in "abcdef"], 0)
        await bench.fail(store, [held["d1"]], PARKED)
        await bench.pass_time(bench.delay_s)
        await store.hold("g", "ann")  # nothing was made for it yet
        await bench.pass_time(bench.delay_s)
        await bench.fail(store, [held["b1"]], 1000)
        await bench.pass_time(bench.delay_s)
        await store.hold("d", "ann")  # blocked for longer
        for limit in (1, 2, 3, 100):
            assert await listed(store, limit=limit) == ["d", "g", "b", "a", "c", "e", "f"]
            assert await listed(store, limit=limit, blocked=True) == ["d", "g", "b"]

    # Holding

    async def test_nothing_of_a_held_group_starts_until_it_is_released(self, bench: JobBench) -> None:
        store = await bench.store()
        await bench.create(store, "a1", "a2", mode=BLOCK)
        await bench.create(store, "b1", mode=BLOCK)
        group = await store.hold("a", "ann")
        assert (group.jobs, group.held_by, group.held_since is not None) == (2, "ann", True)
        await bench.create(store, "a3", mode=NEXT)
        await bench.create(store, "a0", mode=BLOCK, sequence=1)
        assert await bench.finish(store) == ["b1"]
        group = await store.release("a", "bob")
        assert (group.jobs, group.held_by, group.held_since) == (4, "", None)
        assert await bench.finish(store) == ["a0", "a1", "a2", "a3"]

    async def test_a_group_is_held_before_its_first_job_and_after_its_last_and_across_processes(
        self, bench: JobBench
    ) -> None:
        store = await bench.store()
        await bench.create(store, "a1", mode=BLOCK)
        (delivery,) = await take(store)
        assert (await store.hold("a", "ann")).jobs == 1
        await bench.succeed(store, [delivery])
        await bench.shut(store)
        store = await bench.store()
        await bench.create(store, "a2", mode=BLOCK)
        assert await take(store) == []
        assert (await store.group("a")).held_by == "ann"
        await store.release("a", "ann")
        assert await bench.finish(store) == ["a2"]
        assert await listed(store) == []

    async def test_what_a_router_has_in_hand_of_a_held_group_ends_as_usual(self, bench: JobBench) -> None:
        store = await bench.store()
        await bench.create(store, "a1", "a2", "a3", mode=BLOCK)
        first, second = await take(store, 2)
        await store.hold("a", "ann")
        assert await bench.succeed(store, [first]) == await store.queue.ack([first])
        await store.queue.nack([second], 0)
        assert await take(store) == []
        assert (await store.find("a1")).status is Status.COMPLETED
        await store.release("a", "ann")
        assert await bench.finish(store) == ["a2", "a3"]

    async def test_a_held_group_is_not_freed_by_a_crash_or_a_failure(self, bench: JobBench) -> None:
        store, other = await bench.store(), await bench.store()
        await bench.create(store, "a1", "a2", mode=BLOCK)
        await bench.create(store, "b1", "b2", mode=NEXT)
        held = {delivery.pointer.id: delivery for delivery in await take(store)}
        await other.hold("a", "ann")
        await other.hold("b", "ann")
        await store.queue.nack([held["b2"]], 0)
        await bench.fail(store, [held["b1"]], 0)
        await bench.crash(store)
        await bench.pass_time(bench.delay_s)
        assert await take(other) == []
        await other.act("b1", Retry(), "ann")
        assert await take(other) == []
        await other.release("a", "ann")
        await other.release("b", "ann")
        assert sorted(await bench.finish(other)) == ["a1", "a2", "b1", "b2"]

    async def test_jobs_that_are_ordered_with_nothing_are_not_held(self, bench: JobBench) -> None:
        store = await bench.store()
        await store.hold("a", "ann")
        await bench.create(store, "a1")
        assert await bench.finish(store) == ["a1"]

    async def test_holding_twice_and_releasing_twice_is_as_once(self, bench: JobBench) -> None:
        store = await bench.store()
        await bench.create(store, "a1", mode=BLOCK)
        first = await store.hold("a", "ann")
        await bench.pass_time(bench.delay_s)
        assert await store.hold("a", "bob") == first
        released = await store.release("a", "ann")
        assert await store.release("a", "ann") == released
        assert await store.release("nobody", "ann") == GroupState("nobody", 0, None)
        assert names(await take(store)) == ["a1"]

    async def test_a_queue_of_jobs_cannot_be_told_to_hurry(self, bench: JobBench) -> None:
        """A hold, the wait of a job for a person and its backoff end by an act on the job or its group, and so only."""
        store = await bench.store()
        assert not store.queue.capabilities.hurries
        await bench.create(store, "a1", "a2", mode=BLOCK)
        await bench.fail_first(store, "a1", PARKED)
        await bench.create(store, "b1", "b2", mode=BLOCK)
        await bench.fail_first(store, "b1", 1000)
        await bench.create(store, "c1", mode=BLOCK)
        await store.hold("c", "ann")
        for group in "abc":
            assert not await store.queue.hurry(Delivery("", None, "", group))
        assert await take(store) == []
        assert [(await store.find(name)).status for name in ("a1", "b1")] == [Status.ERROR, Status.ERROR]
        assert (await store.group("c")).held_by == "ann"

    # Figures

    async def test_figures_tell_what_a_store_holds(self, bench: JobBench) -> None:
        store = await bench.store()
        empty = await store.figures()
        assert (empty.waiting, empty.scheduled, empty.parked, empty.groups, empty.blocked) == (0, 0, 0, 0, 0)
        assert (dict(empty.jobs_in_groups), empty.oldest_waiting_at) == (dict.fromkeys(GROUP_SIZES, 0), None)
        began = bench.wall()
        await bench.create(store, "a1", "a2", mode=BLOCK, created_at=began)
        await bench.create(store, "b1", mode=NEXT, created_at=began + 1)
        await bench.create(store, "c1", created_at=began + 2)
        await bench.create(store, "c2", scheduled_for=began + bench.delay_s)
        await bench.create(store, *(f"d{n:02}" for n in range(12)), mode=NEXT, created_at=began + 3)
        await bench.fail_first(store, "a1", PARKED)
        figures = await store.figures()
        assert (figures.waiting, figures.scheduled, figures.parked) == (15, 1, 1)
        assert (figures.groups, figures.blocked) == (3, 1)
        assert {bound: figures.jobs_in_groups[bound] for bound in (1, 10, 100)} == {1: 1, 10: 2, 100: 3}
        assert figures.oldest_waiting_at == began + 1
        await bench.pass_time(bench.delay_s)
        assert ((await store.figures()).waiting, (await store.figures()).scheduled) == (16, 0)
        await store.act("a1", Cancel(), "ann")
        await bench.finish(store)
        assert await store.figures() == empty
