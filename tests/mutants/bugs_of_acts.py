"""Bugs in what people do by hand: retry, skip, hold, pause, and the end of each."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from flowcatalyst.app.router import App
from flowcatalyst.core.message import Delivery, Reject
from flowcatalyst.dispatch.store.sqlite_queue import SqliteJobQueue
from flowcatalyst.queues.embedded.queue import EmbeddedQueue
from flowcatalyst.queues.memory import MemoryQueue
from flowcatalyst.router.acting import Acts, Done, Found
from flowcatalyst.router.engine import Engine
from flowcatalyst.router.groups import GroupScheduler
from flowcatalyst.router.judge import Judge
from flowcatalyst.router.pauses import HELD_GROUPS, PauseKind, Pauses, is_of_pool
from flowcatalyst.router.pool import Pool
from flowcatalyst.router.pool_state import PoolState
from flowcatalyst.router.router import Router
from flowcatalyst.router.skips import Skips
from tests.mutants.mutant import Bugs, instead_of

BUGS: Final = Bugs()
ACTS: Final = "tests/integration/acting_test.py"
GROUPS: Final = "tests/integration/group_order_test.py::TestSeveralQueuesFeedOneGroup"
DROPPED: Final = "test_messages_of_a_paused_pool_wait_although_it_is_configured_no_more"
AWAY: Final = "test_a_pool_that_was_paused_for_long_still_waits_for_a_head_that_another_queue_has_to_show"
STANDBY: Final = "tests/api/standby_test.py"
ANEW: Final = "test_a_primary_session_begins_with_what_another_process_was_told_meanwhile"
JOB_GROUPS: Final = "tests/api/message_groups_test.py"
LETS_NONE_GO: Final = "test_a_release_of_messages_lets_no_jobs_of_a_group_of_that_name_go[sqlite]"
NameOf = Callable[[str], str]

# Pools


@BUGS.add("a pool that is resumed does not look for what may start")
def _() -> None:
    @instead_of(Pool, "resume")
    def resume(original: Any, self: Any) -> None:
        self.paused = False


@BUGS.add("a pool that is resumed does not wait for what was away for longer than its pause", test=f"{GROUPS}::{AWAY}")
def _() -> None:
    @instead_of(Pool, "resume")
    def resume(original: Any, self: Any) -> None:
        self.paused = False
        self._pump_soon()
        self._tell_capacity()


@BUGS.add("a standby goes by the pauses and skips that it read when it was started", test=f"{STANDBY}::{ANEW}")
def _() -> None:
    @instead_of(App, "_at_work_now")
    def at_work_now(original: Any, self: Any) -> Any:
        async def refresh() -> None:
            """It knows all that it was told itself."""

        self.pause_store.refresh = refresh
        return original(self)


@BUGS.add("a paused pool fills the slots that are free")
def _() -> None:
    @instead_of(Pool, "pause")
    def pause(original: Any, self: Any) -> None:
        """Only those who ask for capacity are told."""


@BUGS.add("a pool is not paused any more when its router starts again")
def _() -> None:
    @instead_of(Pool, "__init__")
    def init(original: Any, self: Any, *args: Any) -> None:
        original(self, *args)
        self.paused = False


@BUGS.add(
    "a paused pool asks for messages",
    test=f"{ACTS}::test_a_paused_pool_starts_and_receives_nothing_and_another_one_goes_on",
)
def _() -> None:
    @instead_of(PoolState, "free_capacity")
    def free_capacity(original: Any, self: Any) -> int:
        return 0 if self.draining else int(self.admission.free_capacity(self.limits))


@BUGS.add("what names a paused pool that is configured no more is delivered by the default pool")
def _() -> None:
    @instead_of(Pauses, "gate_of")
    def gate_of(original: Any, self: Any, delivery: Delivery, endpoint_of: NameOf, origin_of: NameOf) -> str | None:
        gate: str | None = original(self, delivery, endpoint_of, origin_of)
        return None if gate is not None and is_of_pool(gate) else gate


@BUGS.add("messages for a paused pool that is configured no more are asked for", test=f"{ACTS}::{DROPPED}")
def _() -> None:
    @instead_of(Router, "__init__")
    def init(original: Any, self: Any, *args: Any) -> None:
        original(self, *args[:3])


@BUGS.add("a release of a group of messages hurries the jobs of that name", test=f"{JOB_GROUPS}::{LETS_NONE_GO}")
def _() -> None:
    @instead_of(SqliteJobQueue, "__init__")
    def init(original: Any, self: Any, *args: Any, **options: Any) -> None:
        original(self, *args, **options)
        self.capabilities = replace(self.capabilities, hurries=True)

    @instead_of(SqliteJobQueue, "hurry")
    async def hurry(original: Any, self: Any, delivery: Delivery) -> bool:
        return await EmbeddedQueue.hurry(self, delivery)


# Endpoints and groups


@BUGS.add("all pauses are forgotten by the next router")
def _() -> None:
    @instead_of(Engine, "__init__")
    def init(original: Any, self: Any, *args: Any, pauses: Pauses | None = None, **options: Any) -> None:
        original(self, *args, **options)


@BUGS.add("a paused endpoint gets what had failed there before")
def _() -> None:
    @instead_of(Pauses, "gate_of")
    def gate_of(original: Any, self: Any, delivery: Delivery, endpoint_of: NameOf, origin_of: NameOf) -> str | None:
        gate: str | None = original(self, delivery, endpoint_of, origin_of)
        return None if delivery.failures and gate != HELD_GROUPS else gate


@BUGS.add("a paused origin stops nothing but its root")
def _() -> None:
    @instead_of(Pauses, "gate_of")
    def gate_of(original: Any, self: Any, delivery: Delivery, endpoint_of: NameOf, origin_of: NameOf) -> str | None:
        gate: str | None = original(self, delivery, endpoint_of, endpoint_of)
        return gate


@BUGS.add("who resumes one endpoint resumes all of them")
def _() -> None:
    @instead_of(Pauses, "remove")
    def remove(original: Any, self: Any, kind: PauseKind, name: str) -> bool:
        was_paused: bool = original(self, kind, name)
        if kind is PauseKind.ENDPOINT:
            self.endpoints.clear()
        return was_paused


@BUGS.add("an endpoint that is resumed opens for as many groups as there are slots")
def _() -> None:
    @instead_of(Pool, "resume_gate")
    def resume_gate(original: Any, self: Any, gate: str) -> None:
        self._scheduler.open(gate, self.limits.concurrency)
        self._pump_soon()


@BUGS.add("a hold counts only for what comes after it")
def _() -> None:
    held: set[str] = set()

    @instead_of(Pool, "submit")
    def submit(original: Any, self: Any, delivery: Delivery) -> bool:
        if delivery.group in self._tools.pauses.groups:
            held.add(delivery.broker_id)
        accepted: bool = original(self, delivery)
        return accepted

    @instead_of(Pauses, "gate_of")
    def gate_of(original: Any, self: Any, delivery: Delivery, endpoint_of: NameOf, origin_of: NameOf) -> str | None:
        gate: str | None = original(self, delivery, endpoint_of, origin_of)
        return None if gate == HELD_GROUPS and delivery.broker_id not in held else gate


@BUGS.add("a held group is looked at only while an endpoint is paused")
def _() -> None:
    @instead_of(Pauses, "add")
    def add(original: Any, self: Any, *args: Any) -> Any:
        pause = original(self, *args)
        self.gates_closed = bool(self.endpoints)
        return pause


@BUGS.add("a held group holds back also what has no order")
def _() -> None:
    @instead_of(Pauses, "gate_of")
    def gate_of(original: Any, self: Any, delivery: Delivery, endpoint_of: NameOf, origin_of: NameOf) -> str | None:
        gate: str | None = original(self, delivery, endpoint_of, origin_of)
        return HELD_GROUPS if delivery.group in self.groups else gate


@BUGS.add("one held group holds back all others")
def _() -> None:
    @instead_of(Pauses, "gate_of")
    def gate_of(original: Any, self: Any, delivery: Delivery, endpoint_of: NameOf, origin_of: NameOf) -> str | None:
        gate: str | None = original(self, delivery, endpoint_of, origin_of)
        return HELD_GROUPS if self.groups and delivery.ordered else gate


@BUGS.add("a group that is released ends its backoff too")
def _() -> None:
    @instead_of(Acts, "resume")
    async def resume(original: Any, self: Any, kind: PauseKind, name: str) -> bool:
        was_paused: bool = await original(self, kind, name)
        for pool in self._pools() if kind is PauseKind.GROUP else ():
            for delivery in list(pool.group(name) or ())[:1]:
                pool.hurry(delivery)
        return was_paused


@BUGS.add("a group that is released stays at its gate")
def _() -> None:
    @instead_of(Acts, "resume")
    async def resume(original: Any, self: Any, kind: PauseKind, name: str) -> bool:
        if kind is PauseKind.GROUP:
            return bool(self._pauses.remove(kind, name))
        return bool(await original(self, kind, name))


@BUGS.add("a group that is released starts its next message beside an attempt")
def _() -> None:
    @instead_of(Acts, "resume")
    async def resume(original: Any, self: Any, kind: PauseKind, name: str) -> bool:
        for pool in self._pools() if kind is PauseKind.GROUP else ():
            group = pool.group(name)
            if group and group.busy is not None and not group.is_ready:
                busy, group.busy = group.busy, None
                pool._scheduler._make_ready(group)
                group.busy = busy
                pool._pump_soon()
        return bool(await original(self, kind, name))


@BUGS.add(
    "a group that waits for a nacked message may be let go",
    test="tests/unit/group_waits_test.py::TestReturn::test_a_group_that_waits_for_a_nacked_message_cannot_be_let_go",
)
def _() -> None:
    @instead_of(GroupScheduler, "let_go")
    def let_go(original: Any, self: Any, delivery: Delivery) -> bool:
        group = self._group_of(delivery)
        if group is not None and group.is_awaiting:
            self._end_hold(group)
            group.away = None
        return bool(original(self, delivery))


# Messages


@BUGS.add("a skip does not end the backoff of its message")
def _() -> None:
    @instead_of(Pool, "hurry")
    def hurry(original: Any, self: Any, delivery: Delivery) -> bool:
        return False if delivery.skip else bool(original(self, delivery))


@BUGS.add("a skipped message is acked and no dead letter")
def _() -> None:
    @instead_of(Judge, "skip")
    async def skip(original: Any, self: Any, delivery: Delivery) -> Reject:
        return Reject(delivery.skip)


@BUGS.add("a skip is taken for all of a group")
def _() -> None:
    @instead_of(Acts, "skip")
    async def skip(original: Any, self: Any, found: Found, by: str) -> Done:
        done: Done = await original(self, found, by)
        if isinstance(found, Delivery) and found.skip and found.ordered:
            for pool in self._pools():
                for delivery in pool.group(found.group) or ():
                    delivery.skip = found.skip
        return done


@BUGS.add("a skip is forgotten when its message comes again")
def _() -> None:
    @instead_of(Skips, "restore")
    def restore(original: Any, self: Any, delivery: Delivery) -> None:
        """What was given up in its queue is like any other."""


@BUGS.add("a message that is skipped during its attempt is tried again if that fails")
def _() -> None:
    @instead_of(Judge, "judge")
    def judge(original: Any, self: Any, delivery: Delivery, *args: Any) -> Any:
        delivery.skip = ""
        return original(self, delivery, *args)


@BUGS.add("a message that was delivered and waits for its ack can be skipped")
def _() -> None:
    @instead_of(Acts, "skip")
    async def skip(original: Any, self: Any, found: Found, by: str) -> Done:
        done: Done = await original(self, found, by)
        return Done(True, done.text)


@BUGS.add("a queue that is told to hurry shows what is behind its message first")
def _() -> None:
    @instead_of(MemoryQueue, "hurry")
    async def hurry(original: Any, self: Any, delivery: Delivery) -> bool:
        lane = [one for one in self._stored.values() if one.message.group == delivery.group and one.nacked]
        if len(lane) < 2 or self._lanes_by_pool is not None or not delivery.group:
            return bool(await original(self, delivery))
        for behind in lane[1:]:
            behind.lane, behind.visible_at = f"alone-{behind.number}", 0.0
        self._changed.set()
        return True
