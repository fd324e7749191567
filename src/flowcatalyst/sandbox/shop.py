"""The order shop of `--demo`: events of several types, three subscriptions with the three modes, one of which fails now
and then."""

import asyncio
from typing import Final

import msgspec

from flowcatalyst.core.clock import Clock, IdSource
from flowcatalyst.core.errors import QueueUnavailableError
from flowcatalyst.core.message import DispatchMode
from flowcatalyst.dispatch.catalog_entries import SealedSecret, StoredSubscription
from flowcatalyst.dispatch.event import NewEvent
from flowcatalyst.dispatch.platform import Platform
from flowcatalyst.dispatch.store.platform_contract import CodeTakenError, EntryKind
from flowcatalyst.dispatch.subscription import EventTypeBinding
from flowcatalyst.http.signing import new_secret
from flowcatalyst.sandbox.receivers import Sandbox

SOURCE: Final = "demo-shop"
STEPS: Final = ("placed", "paid", "packed", "shipped")  # of an order, each an event
OPEN_ORDERS: Final = 20
TICK_S: Final = 0.25
PAUSE_S: Final = 2.0  # while the store is away
MAX_WAITING: Final = 300  # webhooks: the shop waits for its subscribers rather than fill the disk
RETRIES: Final = 100  # a demo that is left alone parks nothing
FIRST_RETRY_S: Final = 1.0

# Code, mode, what it wants, and whether its receiver fails now and then.
SUBSCRIPTIONS: Final = (
    ("demo-billing", DispatchMode.BLOCK_ON_ERROR, "order.*", True),
    ("demo-warehouse", DispatchMode.NEXT_ON_ERROR, "order.*", False),
    ("demo-analytics", DispatchMode.IMMEDIATE, "order.**", False),
)


class Shop:
    """Orders that go through their steps, each of which is an event."""

    def __init__(self, platform: Platform, sandbox: Sandbox, ids: IdSource, clock: Clock) -> None:
        self.events = 0
        self.jobs = 0
        self.last_error = ""
        self._platform = platform
        self._sandbox = sandbox
        self._ids = ids
        self._clock = clock
        self._run = ids.new_id()
        self._orders = [(number, 0) for number in range(OPEN_ORDERS)]  # with the step that comes next
        self._opened = OPEN_ORDERS

    async def run(self) -> None:
        """Until it is cancelled."""
        await self._subscribe()
        batch: list[NewEvent] = []
        while True:
            waiting = self.jobs - self._sandbox.webhooks.counts.taken
            batch = batch or ([self._next()] if waiting < MAX_WAITING else [])
            try:
                accepted = await self._platform.intake.accept([self._platform.intake.event_of(one) for one in batch])
            except QueueUnavailableError as error:  # the same events are sent again: each has its own key
                self.last_error = str(error)
                await asyncio.sleep(PAUSE_S)
                continue
            self.last_error, batch = "", []
            self.events += len(accepted)
            self.jobs += sum(one.kept.jobs for one in accepted)
            await asyncio.sleep(TICK_S)

    def _next(self) -> NewEvent:
        """One order, drawn by lot, goes one step further."""
        place = self._ids.rng.randrange(OPEN_ORDERS)
        order, step = self._orders[place]
        if step + 1 < len(STEPS):
            self._orders[place] = (order, step + 1)
        else:
            self._orders[place] = (self._opened, 0)
            self._opened += 1
        name = f"{self._run}-{order}"
        return NewEvent(
            type=f"order.{STEPS[step]}",
            source=SOURCE,
            subject=f"order:{name}",
            message_group=f"order:{name}",
            deduplication_id=f"{name}-{STEPS[step]}",
            data=msgspec.Raw(f'{{"order": {order}, "total": {order % 90 + 10}}}'.encode()),
        )

    async def _subscribe(self) -> None:
        """Secrets are shown once: who starts again needs new ones."""
        receiver = self._sandbox.webhooks
        receiver.run = self._run
        for code, mode, pattern, faulty in SUBSCRIPTIONS:
            secret = new_secret()
            sealed = SealedSecret(sealed=self._platform.sealer.seal(secret, code), created_at=self._clock.wall())
            wanted = StoredSubscription(
                code=code,
                name=f"Demo: {mode}",
                target_url=f"{self._sandbox.url}/api/test/webhook",
                event_types=(EventTypeBinding(pattern),),
                filters=({"exact": {"source": SOURCE}},),  # what others try out beside it is theirs
                mode=mode,
                max_retries=RETRIES,
                retry_delays_seconds=(FIRST_RETRY_S, 2 * FIRST_RETRY_S, 5 * FIRST_RETRY_S),
                data_only=mode is DispatchMode.IMMEDIATE,
                secrets=(sealed,),
            )
            receiver.secrets[code] = secret
            receiver.faulty |= {code} if faulty else set()
            await self._save(wanted)

    async def _save(self, wanted: StoredSubscription) -> None:
        catalog = self._platform.catalog
        while True:
            try:
                try:
                    await catalog.add(EntryKind.SUBSCRIPTION, wanted.code, wanted)
                except CodeTakenError:
                    await catalog.change_subscription(wanted.code, lambda _: wanted)
            except QueueUnavailableError as error:
                self.last_error = str(error)
                await asyncio.sleep(PAUSE_S)
            else:
                return
