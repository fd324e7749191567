"""JobWatch: what somebody should know about jobs: how many wait, which groups are blocked, whether some were parked."""

from typing import Final

import structlog

from flowcatalyst.core.clock import Clock
from flowcatalyst.core.errors import QueueUnavailableError, StorageError
from flowcatalyst.core.message import Severity
from flowcatalyst.core.warnings import WarningBook, WarningCode
from flowcatalyst.dispatch.job_counts import MAX_PARKED_POOLS, OTHER_POOLS, JobCounts
from flowcatalyst.dispatch.store.contract import Figures, Filter, GroupState, JobStore
from flowcatalyst.router.outages import minutes

MAX_TOLD_GROUPS: Final = 20  # that have a warning each; the next ones have one when these are over
LOOKED_AT: Final = 100  # groups, those blocked for longest first
DETAIL_CHARS: Final = 200

log = structlog.get_logger("flowcatalyst.jobs")


class JobWatch:
    """Looks now and then, and remembers what it told. The process that leads tells of groups; of a job that was parked
    tells the one whose attempt was the last."""

    def __init__(
        self, store: JobStore, counts: JobCounts, clock: Clock, warnings: WarningBook, blocked_s: float
    ) -> None:
        self.figures: Figures | None = None  # as of the latest look
        self.blocked: list[GroupState] = []  # for longer than `blocked_s`, the longest first
        self.held: list[GroupState] = []  # by people, as of the latest look, as far as they are among the first
        self.blocked_s = blocked_s
        self._store = store
        self._counts = counts
        self._clock = clock
        self._warnings = warnings
        self._told_groups: set[str] = set()
        self._told_pools: set[str] = set()
        self._knows_parked = False  # those that were parked before this process led

    async def figures_now(self) -> Figures | None:
        """The latest there are if the store does not answer."""
        try:
            self.figures = await self._store.figures()
        except (QueueUnavailableError, StorageError) as error:
            log.warning("figures_failed", action="figures_failed", error=str(error))
        return self.figures

    async def look(self) -> None:
        self.figures = await self._store.figures()
        leads = await self._store.lead()
        await self._look_at_groups(leads)
        await self._look_at_parked(leads)

    async def _look_at_groups(self, leads: bool) -> None:
        page = await self._store.groups(blocked=True, limit=LOOKED_AT)
        since = self._clock.wall() - self.blocked_s
        self.blocked = [one for one in page.items if one.blocked_since is not None and one.blocked_since <= since]
        self.held = [one for one in page.items if one.held_since is not None]
        now_blocked = {one.group for one in self.blocked}
        for group in self._told_groups - now_blocked:
            if page.cursor is None or (await self._store.group(group)).blocked_since is None:
                self._told_groups.discard(group)
                text = f"group {group} of dispatch jobs is not blocked any more"
                self._warnings.end(WarningCode.JOB_GROUP_BLOCKED, text, _source(group))
        for one in self.blocked if leads else ():
            if one.group not in self._told_groups and len(self._told_groups) < MAX_TOLD_GROUPS:
                self._told_groups.add(one.group)
                self._tell_blocked(one)

    def _tell_blocked(self, group: GroupState) -> None:
        text = f"group {group.group} of dispatch jobs has been blocked for more than {minutes(self.blocked_s)}"
        if (head := group.head) is not None:
            text += f": it waits for job {head.job.id} ({head.last_error[:DETAIL_CHARS]}); retry, change or cancel it"
        log.warning("job_group_blocked", action="job_group_blocked", group=group.group, text=text)
        self._warnings.add(WarningCode.JOB_GROUP_BLOCKED, Severity.ERROR, text, _source(group.group))

    async def _look_at_parked(self, leads: bool) -> None:
        if leads and not self._knows_parked:
            found = await self._store.page(Filter(parked=True), LOOKED_AT)
            self._counts.newly_parked |= {state.job.pool for state in found.items}
            self._knows_parked = True
        new = self._counts.newly_parked
        for pool in sorted(new):
            known = pool in self._told_pools or len(self._told_pools) < MAX_PARKED_POOLS
            name = pool if known else OTHER_POOLS
            if await self._any_parked(name):  # else its verdict is not written yet: the next look tells of it
                new.discard(pool)
                self._told_pools.add(name)
                self._warnings.add(WarningCode.JOB_PARKED, Severity.ERROR, _parked(name), _source_of_pool(name))
        for pool in list(self._told_pools):
            if not await self._any_parked(pool):
                self._told_pools.discard(pool)
                text = f"no dispatch job of {_named(pool)} waits for a person any more"
                self._warnings.end(WarningCode.JOB_PARKED, text, _source_of_pool(pool))

    async def _any_parked(self, pool: str) -> bool:
        return await self._store.count(Filter(parked=True, pool=None if pool == OTHER_POOLS else pool), 1) > 0


def _parked(pool: str) -> str:
    return (
        f"dispatch jobs of {_named(pool)} failed for the last time and wait for a person: "
        "GET /api/dispatch-jobs?parked=true lists them; retry, change or cancel them"
    )


def _named(pool: str) -> str:
    return "other pools" if pool == OTHER_POOLS else f"pool {pool}"


def _source(group: str) -> str:
    return f"job group {group}"


def _source_of_pool(pool: str) -> str:
    return f"jobs of {_named(pool)}"
