"""What a router does, on one page: nothing that it is made of is counted one by one, but groups that stand still."""

import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime
from operator import attrgetter
from typing import Final

import msgspec

from flowcatalyst.control.group_states import GroupStates
from flowcatalyst.control.health import Level, assess
from flowcatalyst.control.view import RouterView
from flowcatalyst.core.errors import FlowCatalystError
from flowcatalyst.core.message import Result
from flowcatalyst.queues.inspection import StoredGroup
from flowcatalyst.router.pool import Pool
from flowcatalyst.router.stats import LAG_BUCKETS_S, quantile

MOST_POOLS: Final = 100  # that are listed; sums are of all
STORED_EVERY_S: Final = 5.0  # what files have to be asked for
LAG_S: Final = 300.0
OLD_S: Final = 5.0  # counts from longer ago say nothing about now


class ReasonOverview(msgspec.Struct, rename="camel"):
    level: Level
    part: str
    text: str


class PoolOverview(msgspec.Struct, rename="camel"):
    code: str
    slots: int
    in_flight: int
    queued: int
    parked: int
    delivered: int
    paused: bool


class Lag(msgspec.Struct, rename="camel"):
    p50: float
    p95: float


class Overview(msgspec.Struct, rename="camel"):
    """How the router is at a moment. Rates are of the last second or so; null: not known yet.

    `queued` is what the queues hold, null if none of them tells, and at least that if not `queuedExact`. Of the pools
    the 100 busiest are listed.
    """

    at: datetime
    level: Level
    reasons: list[ReasonOverview]
    role: str
    delivered_per_second: float | None
    failed_per_second: float | None
    in_flight: int
    buffered: int
    queued: int | None
    queued_exact: bool
    lag_ms: Lag | None
    warnings: int
    dead_letters: int | None
    blocked_groups: int
    pools: list[PoolOverview]


def role_of(app: RouterView) -> str:
    role = "primary" if app.at_work else "standby" if app.standby is not None else "not at work"
    return role if app.settings.enabled else "disabled"


@dataclass(slots=True, frozen=True)
class _Counts:
    """What each pool had counted at a moment: attempts delivered, and attempts that were no success."""

    at: float
    of_pools: dict[Pool, tuple[int, int]]

    def per_second(self, before: "_Counts") -> tuple[float, float]:
        delivered = failed = 0
        for pool, (now_delivered, now_failed) in self.of_pools.items():
            was_delivered, was_failed = before.of_pools.get(pool, (0, 0))
            delivered += now_delivered - was_delivered
            failed += now_failed - was_failed
        seconds = self.at - before.at
        return round(delivered / seconds, 1), round(failed / seconds, 1)


class OverviewMaker:
    """Makes one after the other, and remembers what rates need."""

    def __init__(self, app: RouterView) -> None:
        self._app = app
        self._before: _Counts | None = None
        self._letters: int | None = None
        self._failed: dict[str, StoredGroup] = {}  # groups in queues whose first message failed
        self._asked_at: float | None = None

    async def make(self) -> Overview:
        app = self._app
        queued, exact = await self._queued()
        await self._ask_files()
        # Nothing suspends from here on: all figures are of one moment.
        pools = app.router.all_pools()
        counts = _Counts(app.clock.monotonic(), {pool: _counted(pool) for pool in pools})
        before, self._before = self._before, counts
        known = before is not None and 0 < counts.at - before.at < OLD_S
        delivered, failed = counts.per_second(before) if before is not None and known else (None, None)
        level, reasons = assess(app)
        views = sorted(map(_pool_view, pools), key=attrgetter("code"))
        if len(views) > MOST_POOLS:
            views = sorted(views, key=lambda pool: -pool.in_flight - pool.queued)[:MOST_POOLS]
        return Overview(
            at=datetime.fromtimestamp(app.clock.wall(), UTC),
            level=level,
            reasons=[ReasonOverview(one.level, one.part, one.text) for one in reasons],
            role=role_of(app),
            delivered_per_second=delivered,
            failed_per_second=failed,
            in_flight=sum(pool.in_flight for pool in pools),
            buffered=sum(pool.buffered for pool in pools),
            queued=queued,
            queued_exact=exact,
            lag_ms=_lag(pools, counts.at),
            warnings=sum(app.warnings.open_by_severity().values()),
            dead_letters=self._letters,
            blocked_groups=GroupStates(app).count_blocked(self._failed),
            pools=views,
        )

    async def _queued(self) -> tuple[int | None, bool]:
        """The sum of what queues hold that tell, and whether all do."""
        app = self._app
        readings = await asyncio.gather(*(app.depths.of(queue) for queue in app.queues_to_show().values()))
        depths = [one.depth for one in readings if one.depth is not None]
        held = sum(depth.waiting + depth.leased + depth.delayed for depth in depths)
        return (held if depths or not readings else None), len(depths) == len(readings)

    async def _ask_files(self) -> None:
        """How many dead letters there are, and which groups failed before this router was started."""
        now = self._app.clock.monotonic()
        if self._asked_at is not None and now - self._asked_at < STORED_EVERY_S:
            return
        self._asked_at = now
        try:
            self._letters = await self._app.dead_letters.count()
        except FlowCatalystError:
            self._letters = None  # the health says what is wrong with the file
        self._failed = await GroupStates(self._app).stored()


def _counted(pool: Pool) -> tuple[int, int]:
    attempts = pool.stats.attempts
    return pool.stats.delivered, attempts.total() - attempts[Result.SUCCESS]


def _lag(pools: list[Pool], now: float) -> Lag | None:
    """Of the last five minutes, as far as queues tell since when a message could be delivered."""
    of_pools = (pool.windows.window(LAG_S, now).stats.lag_counts for pool in pools)
    counts = [sum(column) for column in zip(*of_pools, strict=True)]
    p50, p95 = quantile(LAG_BUCKETS_S, counts, 0.5), quantile(LAG_BUCKETS_S, counts, 0.95)
    return None if p50 is None or p95 is None else Lag(round(p50 * 1000, 1), round(p95 * 1000, 1))


def _pool_view(pool: Pool) -> PoolOverview:
    return PoolOverview(
        code=pool.code,
        slots=pool.limits.concurrency,
        in_flight=pool.in_flight,
        queued=pool.buffered,
        parked=pool.parked,
        delivered=pool.stats.delivered,
        paused=pool.paused,
    )
