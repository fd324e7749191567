"""`--demo`: steady traffic to the built-in receivers, and one line that tells how it goes."""

import asyncio
import shutil
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from flowcatalyst.control.view import RouterView
from flowcatalyst.core.errors import ConfigurationError, QueueUnavailableError
from flowcatalyst.core.message import DEFAULT_POOL, MessagePointer
from flowcatalyst.core.tasks import Tasks
from flowcatalyst.core.terminal import visible
from flowcatalyst.queues.contract import Outgoing
from flowcatalyst.queues.intake import outgoing_of
from flowcatalyst.sandbox.order_judge import SeededId
from flowcatalyst.sandbox.receivers import Sandbox
from flowcatalyst.sandbox.shop import Shop

GROUPS: Final = 40
PER_TICK: Final = 20
TICK_S: Final = 0.2
PAUSE_S: Final = 2.0  # while the queue is away
MAX_BACKLOG: Final = 2_000  # the demo waits for its receivers rather than fill the disk
MAX_OF_A_GROUP: Final = 20  # that wait: groups that fail or take long get no more than they can take
QUIET_LINE_PERIOD_S: Final = 5  # where the line cannot be redrawn
# A group belongs to one receiver, so that its order can be judged there.
RECEIVERS: Final = ("fast",) * 6 + ("slow",) * 3 + ("faulty",)


class Demo:
    """Feeds the default queue and reports what its receivers saw."""

    def __init__(self, app: RouterView, sandbox: Sandbox) -> None:
        self._app = app
        self._url = sandbox.url
        self._judge = sandbox.judge
        self._webhooks = sandbox.webhooks
        self._shop = None if app.platform is None else Shop(app.platform, sandbox, app.ids, app.clock)
        self._run = app.ids.new_id()
        self._positions: Counter[int] = Counter()  # of the latest message of each group
        self._settled: Counter[int] = Counter()  # of the latest one that was answered for good
        self._published = 0
        self._last_error = ""  # why the queue takes nothing at the moment
        self._depth = ""  # what the queues hold, as the line shows it

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        tasks = Tasks()
        if not self._app.queues:
            raise ConfigurationError("the demo needs a queue to publish to, and the configuration names none")
        tasks.spawn(self._feed(), "demo feed")
        if self._shop is not None:
            self._app.supervisor.spawn(tasks, "demo shop", self._shop.run)
        tasks.spawn(self._show(), "demo line")
        try:
            yield
        finally:
            await tasks.cancel()

    async def _feed(self) -> None:
        queue = next(iter(self._app.queues.values()))
        batch: list[Outgoing] = []
        while True:
            of_the_queue = self._delivered - self._webhooks.counts.taken
            if not batch and self._published - of_the_queue < MAX_BACKLOG:
                # For groups that have few waiting, in turns drawn by lot.
                takers = {group: MAX_OF_A_GROUP - self._waiting_of(group) for group in range(GROUPS)}
                places = [group for group, left in takers.items() for _ in range(left)]
                chosen = self._app.ids.rng.sample(places, min(PER_TICK, len(places)))
                batch = [self._next_message(group) for group in chosen]
            if batch:
                try:
                    await queue.publish(batch)
                except QueueUnavailableError as error:
                    # The same batch is published again: its messages have their places in their groups.
                    self._last_error = visible(str(error))
                else:
                    self._last_error = ""
                    self._published += len(batch)
                    batch = []
            await asyncio.sleep(TICK_S if not self._last_error else PAUSE_S)

    def _waiting_of(self, group: int) -> int:
        settled = self._judge.settled_in(self._run, f"demo-{group}")
        if settled is not None:  # else nothing came yet, or somebody reset the receivers' counts
            self._settled[group] = settled
        return min(self._positions[group] - self._settled[group], MAX_OF_A_GROUP)

    def _next_message(self, group: int) -> Outgoing:
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
            depths = [(await self._app.depths.of(queue)).depth for queue in self._app.queues.values()]
            known = [one.waiting + one.leased + one.delayed for one in depths if one is not None]
            self._depth = f"{sum(known):,}" if known else "?"
            line = self._line(per_second)
            # A line that wraps could not be drawn over.
            cut = line[: shutil.get_terminal_size().columns - 1]
            print(f"\r\x1b[K{cut}" if redraw else f"{line}\n", end="", flush=True)

    def _line(self, per_second: int) -> str:
        pools, violations = self._app.router.pools.values(), self._judge.order_violations
        return (  # what matters first: a narrow terminal shows no more
            f"delivered {self._delivered:,} ({per_second}/s)   in the queue {self._depth}"
            f"   order violations: {violations + self._webhooks.counts.out_of_place}{self._of_the_shop()}"
            f"   in flight {sum(pool.in_flight for pool in pools)}   groups {sum(pool.group_count for pool in pools)}"
            f"{f'   the queue accepts nothing: {self._last_error}' if self._last_error else ''}"
        )

    def _of_the_shop(self) -> str:
        if self._shop is None:
            return ""
        counts = self._webhooks.counts
        wrong = f"   wrong signatures: {counts.wrong_signatures}" if counts.wrong_signatures else ""
        return f"   events {self._shop.events:,}   webhooks verified {counts.verified:,}{wrong}"
