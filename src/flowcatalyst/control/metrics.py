"""Metrics for Prometheus: read from the plain counters when somebody asks, so the hot path pays nothing.

A router may have ten thousand pools, and anybody may ask. So the text is made at most once a second, whoever asks, and
in slices, between which the router goes on. No label has a value that a message can choose: an endpoint is shown by its
origin, and the breakers, which are bounded, bound the origins.
"""

import asyncio
import platform
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Final

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest

from flowcatalyst import __version__
from flowcatalyst.control.health import Level, assess
from flowcatalyst.control.view import RouterView
from flowcatalyst.core.logs import dropped_lines
from flowcatalyst.core.message import Result
from flowcatalyst.core.targets import origin_of
from flowcatalyst.core.tasks import Tasks
from flowcatalyst.queues.contract import Depth
from flowcatalyst.router.breaker import BreakerState
from flowcatalyst.router.pool import Pool
from flowcatalyst.router.router import MISSING, UNKNOWN
from flowcatalyst.router.stats import DURATION_BUCKETS_S, PoolStats

KEEP_S: Final = 1.0
NO_ORIGIN: Final = "none"
SLICE: Final = 200  # pieces of text made without a pause: about a millisecond

_BREAKER_LEVELS: Final = {BreakerState.CLOSED: 0, BreakerState.HALF_OPEN: 1, BreakerState.OPEN: 2}

_POOL_GAUGES: Final[list[tuple[str, str, Callable[[Pool], float]]]] = [
    ("queued", "Messages that wait in the pool", lambda pool: pool.buffered),
    ("in_flight", "Attempts in flight", lambda pool: pool.in_flight),
    ("groups", "Message groups in the pool", lambda pool: pool.group_count),
    ("held_groups", "Message groups that wait for a retry", lambda pool: pool.held_count),
    ("concurrency", "Most attempts at once", lambda pool: pool.limits.concurrency),
    ("capacity", "Most messages in the pool", lambda pool: pool.limits.effective_capacity),
]

_POOL_COUNTERS: Final[list[tuple[str, str, Callable[[PoolStats], float]]]] = [
    ("delivered", "Messages delivered", lambda stats: stats.delivered),
    ("dead_lettered", "Messages that became dead letters", lambda stats: stats.dead_lettered),
    ("nacked", "Messages nacked to their queue", lambda stats: stats.nacked),
    ("retried", "Attempts followed by another one inside the router", lambda stats: stats.retried),
    ("rate_limit_waits", "Waits for the rate limit", lambda stats: stats.rate_limit_waits),
]


@dataclass(slots=True, frozen=True)
class StoredFigures:
    """What has to be read from files and brokers, before the text is made."""

    dead_letters: int = 0
    depths: dict[str, Depth] = field(default_factory=dict)


class Metrics:
    """The metrics of one router and its process."""

    def __init__(self, app: RouterView) -> None:
        self._app = app
        self._process = CollectorRegistry(auto_describe=False)
        ProcessCollector(registry=self._process)
        self._tasks = Tasks()
        self._rendering: asyncio.Task[None] | None = None
        self._began_at = 0.0
        self._text = b""

    async def render(self) -> bytes:
        """All metrics in Prometheus text format, at most a second old."""
        now = self._app.clock.monotonic()
        if self._rendering is None or (self._rendering.done() and now - self._began_at >= KEEP_S):
            self._began_at = now
            self._rendering = self._tasks.spawn(self._render(), "render metrics")
        await asyncio.shield(self._rendering)  # others may wait for it too
        return self._text

    async def _render(self) -> None:
        app = self._app
        queues = app.queues_to_show()
        readings = await asyncio.gather(*(app.depths.of(queue) for queue in queues.values()))
        depths = {name: one.depth for name, one in zip(queues, readings, strict=True) if one.depth is not None}
        stored = StoredFigures(await app.dead_letters.count(), depths)
        slices: list[bytes] = []
        pieces: list[str] = []
        for piece in lines(app, stored):
            pieces.append(piece)
            if len(pieces) >= SLICE:
                slices.append("".join(pieces).encode())
                pieces = []
                await asyncio.sleep(0)
        self._text = b"".join([*slices, "".join(pieces).encode(), generate_latest(self._process)])


def lines(app: RouterView, stored: StoredFigures) -> Iterator[str]:
    """The text, a few lines at a time. An empty piece only gives others a chance."""
    pools = list(app.router.pools.values())
    yield from _pool_figures(pools)
    yield _head("pool_attempts_total", "counter", "Attempts by result")
    for pool in pools:
        for result in Result:
            labels = {"pool": pool.code, "result": result}
            yield _sample("pool_attempts_total", labels, pool.stats.attempts[result])
    yield from _durations(pools)
    yield _head("default_pool_messages_total", "counter", "Messages routed to the default pool without naming it")
    for reason in (UNKNOWN, MISSING):
        yield _sample("default_pool_messages_total", {"pool_code": reason}, app.router.defaulted[reason])
    yield from _breakers(app)
    yield from _queues(app, stored)
    yield _gauge("tracker_size", "Messages the router owns", len(app.tracker))
    yield _gauge("dead_letters", "Dead letters", stored.dead_letters)
    yield _head("dead_letters_dropped_total", "counter", "Dead letters that were too old (age) or too many (count)")
    for bound, dropped in app.dead_letters.dropped.items():
        yield _sample("dead_letters_dropped_total", {"bound": bound}, dropped)
    yield _gauge("warnings", "Different warnings of the last hours", len(app.warnings.recent()))
    yield _head("log_lines_dropped_total", "counter", "Log lines dropped because they were not read in time")
    yield _sample("log_lines_dropped_total", {}, dropped_lines())
    yield from _state(app)
    yield _head("build_info", "gauge", "Always 1")
    yield _sample("build_info", {"version": __version__, "python": platform.python_version()}, 1)


def _pool_figures(pools: Iterable[Pool]) -> Iterator[str]:
    labels: list[tuple[Pool, str]] = []
    for pool in pools:
        labels.append((pool, _labels({"pool": pool.code})))
        yield ""
    for name, text, value_of in _POOL_GAUGES:
        yield _head(f"pool_{name}", "gauge", text)
        for pool, label in labels:
            yield f"flowcatalyst_pool_{name}{label} {value_of(pool)}\n"
    for name, text, count_of in _POOL_COUNTERS:
        yield _head(f"pool_{name}_total", "counter", text)
        for pool, label in labels:
            yield f"flowcatalyst_pool_{name}_total{label} {count_of(pool.stats)}\n"


def _durations(pools: Iterable[Pool]) -> Iterator[str]:
    name = "flowcatalyst_attempt_duration_seconds"
    yield _head("attempt_duration_seconds", "histogram", "How long attempts took")
    bounds = [*map(str, DURATION_BUCKETS_S), "+Inf"]
    for pool in pools:
        inner = _labels({"pool": pool.code})[1:-1]
        counts = list(accumulate(pool.stats.duration_counts))  # a bucket counts all that took at most so long
        buckets = zip(bounds, counts, strict=True)
        lines = [f'{name}_bucket{{{inner},le="{bound}"}} {count}\n' for bound, count in buckets]
        lines.append(f"{name}_count{{{inner}}} {counts[-1]}\n{name}_sum{{{inner}}} {pool.stats.duration_sum_s}\n")
        yield "".join(lines)


def _breakers(app: RouterView) -> Iterator[str]:
    worst: dict[str, int] = {}
    counts: Counter[BreakerState] = Counter()
    for endpoint, breaker in app.breakers.items():
        counts[breaker.state] += 1
        origin = origin_of(endpoint)
        if origin == endpoint:  # one that cannot be called: it is all there is, and its path may be a secret
            origin = NO_ORIGIN
        worst[origin] = max(worst.get(origin, 0), _BREAKER_LEVELS[breaker.state])
        yield ""
    text = "The worst of an origin's circuit breakers, of which each path has one. 0: closed, 1: half open, 2: open"
    yield _head("circuit_breaker_state", "gauge", text)
    for origin, level in worst.items():
        yield _sample("circuit_breaker_state", {"origin": origin}, level)
    yield _head("circuit_breakers", "gauge", "Circuit breakers by state")
    for state in BreakerState:
        yield _sample("circuit_breakers", {"state": state}, counts[state])


def _queues(app: RouterView, stored: StoredFigures) -> Iterator[str]:
    yield _head("queue_messages", "gauge", "Messages in the queue")
    for name, depth in stored.depths.items():
        for state, count in (("waiting", depth.waiting), ("leased", depth.leased), ("delayed", depth.delayed)):
            yield _sample("queue_messages", {"queue": name, "state": state}, count)
    queues = dict(app.engine.queues)
    yield _head("queue_calls_total", "counter", "Requests to the queue's broker by kind, where some cost money")
    for name, queue in queues.items():
        for call, count in list(queue.calls.items()):
            yield _sample("queue_calls_total", {"queue": name, "call": call}, count)
    text = "Copies of messages the router had, removed from their queue without an attempt"
    yield _head("duplicates_dropped_total", "counter", text)
    for name in queues:
        yield _sample("duplicates_dropped_total", {"queue": name}, app.tracker.dropped[name])


def _state(app: RouterView) -> Iterator[str]:
    """Whether the router works, and whether somebody should look."""
    yield _gauge("primary", "1 if this router is at work, 0 if it is a standby", int(app.at_work))
    yield _gauge("health", "0: healthy, 1: warning, 2: degraded", list(Level).index(assess(app)[0]))
    yield _head("open_warnings", "gauge", "Warnings that are not acknowledged")
    for severity, count in app.warnings.open_by_severity().items():
        yield _sample("open_warnings", {"severity": severity}, count)
    yield _head("config_sync_age_seconds", "gauge", "Since all sources of the configuration answered")
    if app.sync is not None and app.sync.last_success_at is not None:
        yield _sample("config_sync_age_seconds", {}, app.clock.wall() - app.sync.last_success_at)


def _gauge(name: str, text: str, value: float) -> str:
    return _head(name, "gauge", text) + _sample(name, {}, value)


def _head(name: str, kind: str, text: str) -> str:
    return f"# HELP flowcatalyst_{name} {text}\n# TYPE flowcatalyst_{name} {kind}\n"


def _sample(name: str, labels: Mapping[str, str], value: float) -> str:
    return f"flowcatalyst_{name}{_labels(labels)} {value}\n"


def _labels(labels: Mapping[str, str]) -> str:
    """In braces; nothing if there are none."""
    inner = ",".join(f'{name}="{value.translate(_ESCAPED)}"' for name, value in labels.items())
    return f"{{{inner}}}" if inner else ""


_ESCAPED: Final = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
