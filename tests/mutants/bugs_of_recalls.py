"""Bugs of recalls: asking back what a router has in hand, and acting on it."""

from collections.abc import Iterable, Sequence
from math import inf
from typing import Any, Final

from flowcatalyst.core import receipts
from flowcatalyst.core.message import Delivery, Told
from flowcatalyst.dispatch import acting
from flowcatalyst.dispatch.store import contract
from flowcatalyst.dispatch.store.job_rows import recalling
from flowcatalyst.dispatch.store.sqlite import SqliteJobQueue
from flowcatalyst.queues.recalls import Lease
from flowcatalyst.router.groups import GroupScheduler
from flowcatalyst.router.pool import Pool
from flowcatalyst.router.recaller import Recaller
from flowcatalyst.router.router import Router
from tests.mutants.mutant import Bugs, Hunter, instead_of, set_everywhere

BUGS: Final = Bugs(Hunter.JOBS)


# The router's side


@BUGS.add("a recall leaves the last job of a group in hand, which passes those that came back")
def _() -> None:
    @instead_of(GroupScheduler, "cut")
    def cut(original: Any, self: Any, delivery: Delivery, leaves: Any) -> list[Delivery]:
        cut_off: list[Delivery] = original(self, delivery, lambda _: False)
        return cut_off

    @instead_of(Router, "recall")
    def recall(original: Any, self: Any, deliveries: Iterable[Delivery], told: Told = None) -> int:
        return int(original(self, list(deliveries)[:-1], told))


@BUGS.add("a job that is recalled counts as failed")
def _() -> None:
    @instead_of(Router, "recall")
    def recall(original: Any, self: Any, deliveries: Iterable[Delivery], told: Told = None) -> int:
        asked = list(deliveries)
        for delivery in asked:
            delivery.failures += 1
        return int(original(self, asked, told))


@BUGS.add("a recall takes back what is in flight too")
def _() -> None:
    @instead_of(Router, "recall")
    def recall(original: Any, self: Any, deliveries: Iterable[Delivery], told: Told = None) -> int:
        asked = list(deliveries)
        nacked = int(original(self, asked, told))
        for delivery in asked:
            if any(pool.has(delivery) for pool in self.all_pools()):
                delivery.source.nack(delivery, 0.0)
        return nacked


@BUGS.add("what is recalled comes back with a delay")
def _() -> None:
    @instead_of(Pool, "release")
    def release(original: Any, self: Any, delivery: Delivery, *, recalled: bool = False, told: Told = None) -> int:
        return int(original(self, delivery, told=told)) if recalled else int(original(self, delivery))


@BUGS.add("a recall is answered before what came back is in the store")
def _() -> None:
    @instead_of(Recaller, "_answer")
    async def answer(original: Any, self: Any, leases: Sequence[Lease]) -> None:
        await self._queue.returned(leases)
        await original(self, leases)


@BUGS.add("a recall is answered and nothing comes back")
def _() -> None:
    @instead_of(Recaller, "_answer")
    async def answer(original: Any, self: Any, leases: Sequence[Lease]) -> None:
        await self._queue.returned(leases)


@BUGS.add("a router hears of no recall")
def _() -> None:
    @instead_of(SqliteJobQueue, "is_recalled")
    def is_recalled(original: Any, self: Any, delivery: Delivery) -> bool:
        return False

    @instead_of(recalling, "recalled")
    def recalled(original: Any, *args: Any, **options: Any) -> list[Lease]:
        return []


@BUGS.add(
    "what was on its way to a router when it was recalled is started",
    test="tests/integration/recall_test.py::test_what_was_on_its_way_to_a_router_when_it_was_recalled_is_not_started",
)
def _() -> None:
    @instead_of(Recaller, "return_late")
    def return_late(original: Any, self: Any, batch: Iterable[Delivery]) -> None:
        """It is routed, and that is all."""


# The store's side


@BUGS.add("what was recalled is not handed out again")
def _() -> None:
    set_everywhere(contract, "RECALL_LOCK_S", inf)

    @instead_of(recalling, "end")
    def end(original: Any, *args: Any, **options: Any) -> None:
        """It goes on being locked."""


@BUGS.add("what was recalled is handed out before it was acted on")
def _() -> None:
    set_everywhere(contract, "RECALL_LOCK_S", 0.0)


@BUGS.add("a hold does not recall what is in hand")
def _() -> None:
    @instead_of(acting, "hold")
    async def hold(original: Any, store: Any, group: str, actor: str) -> Any:
        return await store.hold(group, actor)


# Edits


@BUGS.add("a job that is handed out again after an edit is sent as it was")
def _() -> None:
    set_everywhere(receipts, "was_changed", lambda owned, again: False)


@BUGS.add("a delivery of a job as it was before an edit completes it")
def _() -> None:
    set_everywhere(receipts, "content_mark", lambda delivery: 0)
