"""`--demo`: steady traffic to the built-in receivers, and one line that tells how it goes."""

import asyncio
import sys
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final

from flowcatalyst.app import App
from flowcatalyst.errors import ConfigurationError, QueueUnavailableError
from flowcatalyst.intake import outgoing_of
from flowcatalyst.message import DEFAULT_POOL, MessagePointer
from flowcatalyst.queues.contract import BrokerQueue, Outgoing
from flowcatalyst.tasks import Tasks
from flowcatalyst.terminal import visible
from flowcatalyst.web.order_judge import SeededId
from flowcatalyst.web.server import Listening

GROUPS: Final = 40
PER_TICK: Final = 20
TICK_S: Final = 0.2
PAUSE_S: Final = 2.0  # while the queue is away
MAX_BACKLOG: Final = 2_000  # the demo waits for its receivers rather than fill the disk
QUIET_LINE_PERIOD_S: Final = 5  # where the line cannot be redrawn
# A group belongs to one receiver, so that its order can be judged there.
RECEIVERS: Final = ("fast",) * 6 + ("slow",) * 3 + ("faulty",)


class Demo:
    """Feeds the default queue and reports what its receivers saw."""

    def __init__(self, app: App, listening: Listening) -> None:
        self._app = app
        self._url = listening.url
        self._run = app.ids.new_id()
        self._positions: Counter[int] = Counter()
        self._published = 0
        self._trouble = ""  # why the queue takes nothing at the moment

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        tasks = Tasks()
        if not self._app.queues:
            raise ConfigurationError("the demo needs a queue to publish to, and the configuration names none")
        tasks.spawn(self._feed(), "demo feed")
        tasks.spawn(self._show(), "demo line")
        try:
            yield
        finally:
            await tasks.cancel()

    async def _feed(self) -> None:
        queue = next(iter(self._app.queues.values()))
        batch: list[Outgoing] = []
        while True:
            if self._published - self._delivered < MAX_BACKLOG:
                batch = batch or [self._next_message() for _ in range(PER_TICK)]
                if await self._was_published(queue, batch):
                    batch = []
            await asyncio.sleep(TICK_S if not self._trouble else PAUSE_S)

    async def _was_published(self, queue: BrokerQueue, batch: Sequence[Outgoing]) -> bool:
        """If not, the same batch has to be published again: its messages have their places in their groups."""
        try:
            await queue.publish(batch)
        except QueueUnavailableError as error:
            self._trouble = visible(str(error))
            return False
        self._trouble = ""
        self._published += len(batch)
        return True

    def _next_message(self) -> Outgoing:
        group = self._app.ids.rng.randrange(GROUPS)
        self._positions[group] += 1
        name = f"demo-{group}"
        pointer = MessagePointer(
            id=str(SeededId(self._run, name, self._positions[group])),
            mediation_target=f"{self._url}/api/test/{RECEIVERS[group % len(RECEIVERS)]}",
            pool_code=DEFAULT_POOL,
            message_group_id=f"{self._run}-{name}",
        )
        return outgoing_of(pointer, pointer.id)

    @property
    def _delivered(self) -> int:
        return sum(pool.stats.delivered for pool in self._app.router.pools.values())

    async def _show(self) -> None:
        redraw = sys.stdout.isatty()
        before = 0
        while True:
            await asyncio.sleep(1 if redraw else QUIET_LINE_PERIOD_S)
            per_second = (self._delivered - before) // (1 if redraw else QUIET_LINE_PERIOD_S)
            before = self._delivered
            print(f"\r\x1b[K{self._line(per_second)}" if redraw else self._line(per_second), end="", flush=True)
            if not redraw:
                print(flush=True)

    def _line(self, per_second: int) -> str:
        pools = self._app.router.pools.values()
        judge = self._app.judge
        return (
            f"delivered {self._delivered:,} ({per_second}/s)   in flight {sum(pool.in_flight for pool in pools)}"
            f"   waiting {sum(pool.buffered for pool in pools)}   groups {sum(pool.group_count for pool in pools)}"
            f"   order violations seen by the receiver: {judge.order_violations}"
            f"{f'   the queue takes nothing: {self._trouble}' if self._trouble else ''}"
        )
