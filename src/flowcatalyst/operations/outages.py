"""Outages: watchers of what does not get through: endpoints that are down, groups that are blocked, dead letters.

Each tells once when it begins and once when it is over, however long it lasts, and keeps the present state for
`health`. They look every few seconds; the path of a message pays nothing for them.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from operator import attrgetter
from typing import Final

import structlog

from flowcatalyst.clock import Clock
from flowcatalyst.delivery.mediator import origin_of
from flowcatalyst.message import Severity
from flowcatalyst.operations.warnings import WarningBook, WarningCode, WarningFilter
from flowcatalyst.routing.blocked import BlockedGroup, BlockedGroups
from flowcatalyst.routing.breaker import Breakers
from flowcatalyst.routing.pool import Pool
from flowcatalyst.routing.tracker import InFlightTracker

ENDPOINT_PERIOD_S: Final = 10.0
GROUP_PERIOD_S: Final = 30.0
DEAD_LETTER_PERIOD_S: Final = 10.0
TOLD_PER_ORIGIN: Final = 3  # paths may have ids in them: a host that is down would be a thousand warnings
TOLD_AT_MOST: Final = 100
OTHERS: Final = "other hosts"
SLICE: Final = 100  # pools looked at without a pause
MAX_DETAIL_CHARS: Final = 200

log = structlog.get_logger("flowcatalyst.outages")


@dataclass(slots=True, frozen=True)
class OutageLimits:
    """How long something lasts before it is told."""

    endpoint_down_s: float = 60.0
    group_blocked_s: float = 900.0


DEFAULT_OUTAGE_LIMITS: Final = OutageLimits()


@dataclass(slots=True, frozen=True)
class DownEndpoint:
    """An endpoint that does not take messages."""

    since: float  # monotonic
    why: str


class EndpointOutages:
    """An endpoint is down when its attempts have failed for some time without an answer in between, or when attempts
    are under way and none of them was answered. It is back when an attempt was answered and its breaker is closed.
    """

    def __init__(
        self,
        breakers: Breakers,
        pools: Callable[[], Iterable[Pool]],
        clock: Clock,
        warnings: WarningBook,
        limit_s: float,
    ) -> None:
        self.down: dict[str, DownEndpoint] = {}
        self._breakers = breakers
        self._pools = pools
        self._clock = clock
        self._warnings = warnings
        self._limit_s = limit_s
        self._named: Counter[str] = Counter()  # how many endpoints of an origin have a warning of their own
        self._shared: dict[str, str] = {}  # the other endpoints -> the source of the warning that they share
        self._sharing: Counter[str] = Counter()  # how many they are, by that source

    async def look(self) -> None:
        hanging: dict[str, float] = {}
        for number, pool in enumerate(list(self._pools()), 1):
            for endpoint, began in pool.hanging(self._limit_s):
                hanging.setdefault(endpoint, began)
            if number % SLICE == 0:
                await asyncio.sleep(0)
        self._judge(hanging)

    def _judge(self, hanging: dict[str, float]) -> None:
        before, self.down = self.down, {}
        breakers = dict(self._breakers.items())
        for endpoint, breaker in breakers.items():
            failing, known = breaker.failing, before.get(endpoint)
            if failing is not None and (known is not None or failing.last_at - failing.since >= self._limit_s):
                since = failing.since if known is None else known.since
                self.down[endpoint] = DownEndpoint(since, failing.detail[:MAX_DETAIL_CHARS])
            elif endpoint in hanging:
                since = hanging[endpoint] if known is None else known.since
                self.down[endpoint] = DownEndpoint(since, "its attempts get no answer")
        for endpoint in self.down:
            if endpoint not in before:
                self._tell_down(endpoint)
        for endpoint in [one for one in before if one not in self.down]:
            self._tell_end(endpoint, is_known=endpoint in breakers)

    def _tell_down(self, endpoint: str) -> None:
        origin = origin_of(endpoint)
        if self._named[origin] < TOLD_PER_ORIGIN and self._named.total() < TOLD_AT_MOST:
            self._named[origin] += 1
            self._tell(WarningCode.ENDPOINT_DOWN, f"{endpoint} is down: {self.down[endpoint].why}", endpoint)
            return
        source = origin if len(self._sharing) < TOLD_AT_MOST or origin in self._sharing else OTHERS
        self._shared[endpoint] = source
        self._sharing[source] += 1
        if self._sharing[source] == 1:
            self._tell(WarningCode.ENDPOINT_DOWN, f"more endpoints of {source} are down", source)

    def _tell_end(self, endpoint: str, *, is_known: bool) -> None:
        """It is back; not known: nobody called it for so long that its breaker was forgotten."""
        source = self._shared.pop(endpoint, None)
        if source is None:
            self._named -= Counter([origin_of(endpoint)])
            source, text = endpoint, f"{endpoint} answers again"
        else:
            self._sharing -= Counter([source])
            if source in self._sharing:
                return
            text = f"the other endpoints of {source} answer again"
        self._settle(WarningCode.ENDPOINT_DOWN, source)
        if is_known:
            self._tell(WarningCode.ENDPOINT_RECOVERED, text, source)

    def _tell(self, code: WarningCode, text: str, source: str) -> None:
        down = code is WarningCode.ENDPOINT_DOWN
        action = code.lower()
        log.warning(action, action=action, endpoint=source, text=text)
        # The recovery before is over. Unless it is acknowledged, the next one would only be a repeat, and not be sent.
        self._settle(WarningCode.ENDPOINT_RECOVERED, source)
        self._warnings.add(code, Severity.ERROR if down else Severity.WARN, text, source)

    def _settle(self, code: WarningCode, source: str) -> None:
        self._warnings.acknowledge_all(WarningFilter(code=code, source=source))


class GroupOutages:
    """A group is blocked when it has waited for long for one of its messages that was tried and is not settled."""

    def __init__(
        self,
        groups: BlockedGroups,
        tracker: InFlightTracker,
        pools: Callable[[], list[Pool]],
        clock: Clock,
        warnings: WarningBook,
        limit_s: float,
    ) -> None:
        self.limit_s = limit_s
        self.blocked: list[BlockedGroup] = []  # longest first
        self._groups = groups
        self._tracker = tracker
        self._pools = pools
        self._clock = clock
        self._warnings = warnings
        self._told: set[str] = set()  # codes of pools

    async def look(self) -> None:
        now = self._clock.monotonic()
        failed = self._groups.longer_than(self.limit_s, now, self._tracker.owned)
        self.blocked = sorted(chain(failed, self._hanging(now)), key=attrgetter("since"))
        first = {one.pool: one for one in reversed(self.blocked)}
        for pool in self._told - first.keys():
            self._warnings.acknowledge_all(WarningFilter(code=WarningCode.GROUP_BLOCKED, source=f"pool {pool}"))
        for pool in first.keys() - self._told:
            one = first[pool]
            detail = one.detail[:MAX_DETAIL_CHARS]
            text = (
                f"a group of pool {pool} has been blocked for more than {minutes(self.limit_s)}: {one.group} waits for "
                f"message {one.message_id} ({detail})"
            )
            self._warnings.add(WarningCode.GROUP_BLOCKED, Severity.ERROR, text, f"pool {pool}")
        self._told = set(first)

    def _hanging(self, now: float) -> Iterator[BlockedGroup]:
        """Groups behind an attempt that is under way for so long, although others at its endpoint may be answered."""
        pools = {pool.code: pool for pool in self._pools()}
        for one in self._tracker:
            if not one.tries or one.attempt_at > now - self.limit_s or not one.ordered or not one.blocks_group:
                continue
            if not self._groups.knows(one) and one.pool in pools and pools[one.pool].has(one):
                group, detail = one.group or "", f"attempt {one.tries} has not ended"
                yield BlockedGroup(group, one.pool, one.broker_id, one.pointer.id, one.attempt_at, now, detail)


class DeadLetterOutages:
    """Tells when messages become dead letters, once until there were no new ones for some time."""

    def __init__(self, count_newer: Callable[[float], Awaitable[int]], warnings: WarningBook, limit_s: float) -> None:
        self.limit_s = limit_s
        self.recent = 0  # recorded within that time and still there
        self._count_newer = count_newer
        self._warnings = warnings

    async def look(self) -> None:
        before, self.recent = self.recent, await self._count_newer(self.limit_s)
        if self.recent and not before:
            text = "messages became dead letters: look at them, then replay or remove them"
            self._warnings.add(WarningCode.DEAD_LETTERS, Severity.WARN, text, "dead letters")
        elif before and not self.recent:
            self._warnings.acknowledge_all(WarningFilter(code=WarningCode.DEAD_LETTERS))


def minutes(seconds: float) -> str:
    """A time for people."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} minutes" if seconds < 7200 else f"{seconds / 3600:.0f} hours"
