"""Outages: watchers of what does not get through: endpoints that are down, groups that are blocked, dead letters.

Each tells once when it begins and once when it is over, however long it lasts, and keeps the present state for
`health`. They look every few seconds; the path of a message pays nothing for them.
"""

import asyncio
import re
import shlex
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from operator import attrgetter
from typing import Final

import structlog

from flowcatalyst.core.clock import Clock
from flowcatalyst.core.message import Severity
from flowcatalyst.core.targets import origin_of
from flowcatalyst.core.warnings import WarningBook, WarningCode, WarningFilter, WarningShelf
from flowcatalyst.http.interpret import REDIRECTED
from flowcatalyst.router.blocked import FailedMessage, FailedMessages
from flowcatalyst.router.breaker import Breakers
from flowcatalyst.router.pool import Pool
from flowcatalyst.router.standstill import Standstill
from flowcatalyst.router.tracker import InFlightTracker

ENDPOINT_PERIOD_S: Final = 10.0
GROUP_PERIOD_S: Final = 30.0
SHORTAGE_PERIOD_S: Final = 5.0  # longer than a delivery waits before it is tried again
DEAD_LETTER_PERIOD_S: Final = 10.0
TOLD_PER_ORIGIN: Final = 3  # paths may have ids in them: a host that is down would be a thousand warnings
TOLD_AT_MOST: Final = 100
OTHERS: Final = "other hosts"
SLICE: Final = 100  # pools looked at without a pause
MAX_DETAIL_CHARS: Final = 200
_NO_ERROR: Final = re.compile(r"HTTP [1-3]\d\d\b")  # the start of what an answer is called that is no error

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
    tried_at: float | None = None  # monotonic; when the latest attempt ended that failed; None: they all hang

    @property
    def answers(self) -> bool:
        """It does, and with no error, but its answer is no success."""
        return _NO_ERROR.match(self.why) is not None

    @property
    def reason(self) -> str:
        redirects = self.answers and self.why.startswith("HTTP 3")
        return f"it redirects ({self.why}), and {REDIRECTED}" if redirects else self.why


class EndpointOutages:
    """An endpoint is down when two attempts or more have failed, the first of them some time ago, and none was answered
    since, or when attempts are under way for that long and none of them was. It is back when an attempt was answered
    and its breaker is closed.
    """

    def __init__(
        self,
        breakers: Breakers,
        pools: Callable[[], Iterable[Pool]],
        clock: Clock,
        warnings: WarningBook,
        limit_s: float,
        standstill: Standstill,
    ) -> None:
        self.down: dict[str, DownEndpoint] = {}
        self._breakers = breakers
        self._pools = pools
        self._clock = clock
        self._warnings = warnings
        self._limit_s = limit_s
        self._standstill = standstill
        self._named: Counter[str] = Counter()  # how many endpoints of an origin have a warning of their own
        self._shared: dict[str, str] = {}  # the other endpoints -> the source of the warning that they share
        self._sharing: Counter[str] = Counter()  # how many they are, by that source

    def close(self) -> None:
        """Nobody looks any more, so nobody would tell when an endpoint is back: another router may deliver to it."""
        for source in {*self.down.keys() - self._shared.keys(), *self._sharing}:
            self._warnings.acknowledge_all(WarningFilter(code=WarningCode.ENDPOINT_DOWN, source=source))
        self.down = {}

    async def look(self) -> None:
        hanging: dict[str, float] = {}
        for number, pool in enumerate(list(self._pools()), 1):
            for endpoint, began in pool.hanging(self._limit_s):
                hanging.setdefault(endpoint, began)
            if number % SLICE == 0:
                await asyncio.sleep(0)
        self._judge(hanging)

    def _judge(self, hanging: dict[str, float]) -> None:
        before, self.down, now = self.down, {}, self._clock.monotonic()
        is_long_awake = self._standstill.awake_s() >= self._limit_s
        breakers = dict(self._breakers.items())
        for endpoint, breaker in breakers.items():
            failing, known = breaker.failing, before.get(endpoint)
            # The next attempt may be minutes away. But one that failed alone may have had bad luck.
            lasts = failing is not None and failing.last_at > failing.since and now - failing.since >= self._limit_s
            if known is None and not is_long_awake:
                continue
            if failing is not None and (known is not None or lasts):
                since = failing.since if known is None else known.since
                self.down[endpoint] = DownEndpoint(since, failing.detail[:MAX_DETAIL_CHARS], failing.last_at)
            elif endpoint in hanging:
                since = hanging[endpoint] if known is None else known.since
                self.down[endpoint] = DownEndpoint(since, "its attempts get no answer")
        for endpoint in self.down:
            if endpoint not in before:
                self._tell_down(endpoint)
        for endpoint in [one for one in before if one not in self.down]:
            self._tell_end(endpoint, before[endpoint], is_known=endpoint in breakers)

    def _tell_down(self, endpoint: str) -> None:
        origin = origin_of(endpoint)
        if self._named[origin] < TOLD_PER_ORIGIN and self._named.total() < TOLD_AT_MOST:
            self._named[origin] += 1
            one = self.down[endpoint]
            what = "does not accept deliveries" if one.answers else "is down"
            self._tell(f"{endpoint} {what}: {one.reason}", endpoint)
            return
        source = origin if len(self._sharing) < TOLD_AT_MOST or origin in self._sharing else OTHERS
        self._shared[endpoint] = source
        self._sharing[source] += 1
        if self._sharing[source] == 1:
            self._tell(f"more endpoints of {source} are down", source)

    def _tell_end(self, endpoint: str, one: DownEndpoint, *, is_known: bool) -> None:
        """It is back; not known: nobody called it for so long that its breaker was forgotten."""
        source = self._shared.pop(endpoint, None)
        if source is None:
            self._named -= Counter([origin_of(endpoint)])
            source, text = endpoint, f"{endpoint} {'accepts deliveries' if one.answers else 'answers'} again"
        else:
            self._sharing -= Counter([source])
            if source in self._sharing:
                return
            text = f"the other endpoints of {source} answer again"
        if not is_known:
            self._warnings.acknowledge_all(WarningFilter(code=WarningCode.ENDPOINT_DOWN, source=source))
            return
        log.warning("endpoint_recovered", action="endpoint_recovered", endpoint=source, text=text)
        self._warnings.end(WarningCode.ENDPOINT_DOWN, text, source)

    def _tell(self, text: str, source: str) -> None:
        log.warning("endpoint_down", action="endpoint_down", endpoint=source, text=text)
        self._warnings.add(WarningCode.ENDPOINT_DOWN, Severity.ERROR, text, source)


class GroupOutages:
    """A group is blocked when it has waited for long for one of its messages that was tried and is not settled."""

    def __init__(
        self,
        groups: FailedMessages,
        tracker: InFlightTracker,
        pools: Callable[[], list[Pool]],
        clock: Clock,
        warnings: WarningBook,
        limit_s: float,
        standstill: Standstill,
    ) -> None:
        self.limit_s = limit_s
        self.blocked: list[FailedMessage] = []  # longest first
        self._groups = groups
        self._tracker = tracker
        self._pools = pools
        self._clock = clock
        self._warnings = warnings
        self._standstill = standstill
        self._told: set[str] = set()  # codes of pools

    def close(self) -> None:
        """Nobody looks any more: another router may have the groups by now."""
        self.blocked = []
        self._tell({})

    async def look(self) -> None:
        now = self._clock.monotonic()
        paused = {pool.code for pool in self._pools() if pool.paused}
        failed = self._groups.longer_than(self.limit_s, now, self._tracker.owned, paused)
        self.blocked = sorted(chain(failed, self._hanging(now)), key=attrgetter("since"))
        if self._standstill.awake_s() < self.limit_s:
            self.blocked = [one for one in self.blocked if one.pool in self._told]
        self._tell({one.pool: one for one in reversed(self.blocked)})

    def _tell(self, first: Mapping[str, FailedMessage]) -> None:
        """These pools have blocked groups, of which each has waited longest."""
        for pool in self._told - first.keys():
            self._warnings.acknowledge_all(WarningFilter(code=WarningCode.GROUP_BLOCKED, source=f"pool {pool}"))
        for pool in first.keys() - self._told:
            one = first[pool]
            detail = one.detail[:MAX_DETAIL_CHARS]
            text = (
                f"a group of pool {pool} has been blocked for more than {minutes(self.limit_s)}: {one.group} waits for "
                f"message {one.message_id} ({detail}); to see what can be done, run: {how_to_explain(one.message_id)}"
            )
            self._warnings.add(WarningCode.GROUP_BLOCKED, Severity.ERROR, text, f"pool {pool}")
        self._told = set(first)

    def _hanging(self, now: float) -> Iterator[FailedMessage]:
        """Groups behind an attempt that is under way for so long, although others at its endpoint may be answered."""
        pools = {pool.code: pool for pool in self._pools()}
        for one in self._tracker:
            if not one.tries or one.attempt_at > now - self.limit_s or not one.ordered or not one.blocks_group:
                continue
            if not self._groups.knows(one) and one.pool in pools and pools[one.pool].has(one):
                group, detail = one.group or "", f"attempt {one.number} has not ended"
                yield FailedMessage(group, one.pool, one.broker_id, one.pointer.id, one.attempt_at, now, detail)


class ShortageOutages:
    """A shortage of this machine is over when no delivery met it between two looks: those that wait for what it lacks
    are tried every second."""

    def __init__(self, warnings: WarningShelf) -> None:
        self._warnings = warnings
        self._met_at = self._newest()  # wall
        self._lasts = bool(warnings.recent(WarningFilter(code=WarningCode.LOCAL_SHORTAGE, acknowledged=False)))

    async def look(self) -> None:
        before, self._met_at = self._met_at, self._newest()
        if self._met_at is not None and self._met_at != before:
            self._lasts = True
        elif self._lasts:
            self._lasts = False
            log.warning("local_shortage_over", action="local_shortage_over")
            text = "deliveries do not have to wait for files, memory or ports of this machine any more"
            self._warnings.end(WarningCode.LOCAL_SHORTAGE, text, "mediator")

    def _newest(self) -> float | None:
        known = self._warnings.recent(WarningFilter(code=WarningCode.LOCAL_SHORTAGE))
        return max((one.last_at for one in known), default=None)


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


def how_to_explain(message_id: str) -> str:
    """A command to paste. Whoever sent the message chose its id."""
    return f"flowcatalyst explain {shlex.quote(message_id)}"


def minutes(seconds: float) -> str:
    """A time for people."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} minutes" if seconds < 7200 else f"{seconds / 3600:.0f} hours"
