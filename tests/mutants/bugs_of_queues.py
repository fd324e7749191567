"""Bugs towards the queues: polls, acks, give-backs, and the end of a router."""

from typing import Final

from tests.mutants.mutant import Mutant

QUEUE_BUGS: Final = (
    Mutant(
        "what is given back stays owned until the queue confirms it",
        "queues/settle.py",
        (
            (
                """\
        self._tracker.remove(delivery)
        self._nacks[delay_s, unlock].append(delivery)
""",
                """\
        self._nacks[delay_s, unlock].append(delivery)
""",
            ),
            (
                """\
                self._nack_tries.pop(delivery, None)
""",
                """\
                self._nack_tries.pop(delivery, None)
                self._tracker.remove(delivery)
""",
            ),
        ),
    ),
    Mutant(
        "the ack of a copy is not recognised while it is under way",
        "queues/settle.py",
        (
            (
                """\
        if self._tracker.owned(delivery.broker_id) is not delivery:
            self._unowned[delivery.broker_id] = delivery
""",
                "",
            ),
        ),
    ),
    Mutant(
        "a message is released when its ack is asked for",
        "queues/settle.py",
        (
            (
                """\
        self._acks.append(delivery)
        if self._tracker.owned(delivery.broker_id) is not delivery:
""",
                """\
        self._acks.append(delivery)
        if self._tracker.remove(delivery):
            pass
        elif self._tracker.owned(delivery.broker_id) is not delivery:
""",
            ),
        ),
    ),
    Mutant(
        "an ack that failed is not repeated",
        "queues/settle.py",
        (
            (
                """\
                self._acks.append(delivery)
                continue
""",
                """\
                continue
""",
            ),
        ),
    ),
    Mutant(
        "acks that failed in part are repeated as a whole",
        "queues/settle.py",
        (
            (
                """\
            if result is Settled.FAILED or _was_redelivered(delivery, receipt, result):
""",
                """\
            if Settled.FAILED in results or _was_redelivered(delivery, receipt, result):
""",
            ),
        ),
    ),
    Mutant(
        "failed acks wait for the next message to be settled",
        "queues/settle.py",
        (
            (
                """\
        if self._acks or self._nacks:
            self._work.set()
        else:
""",
                """\
        if not self._acks and not self._nacks:
""",
            ),
        ),
    ),
    Mutant(
        "a lost ack is not remembered",
        "queues/settle.py",
        (
            (
                """\
                self._remember(delivery.broker_id)
""",
                """\
                pass
""",
            ),
        ),
    ),
    Mutant(
        "a batch is routed a moment after it was checked",
        "queues/consumer.py",
        (
            (
                """\
        unreadable = self._route_readable(batch)
""",
                """\
        unreadable = await self._route_readable(batch)
""",
            ),
            (
                """\
    def _route_readable(self, batch: Sequence[Delivery]) -> dict[str, tuple[Delivery, str]]:
""",
                """\
    async def _route_readable(self, batch: Sequence[Delivery]) -> dict[str, tuple[Delivery, str]]:
""",
            ),
            (
                """\
            self._route(readable)
            one_of_each = {delivery.pointer.pool_code: delivery for delivery in readable}.values()
""",
                """\
            await asyncio.sleep(0.05)
            self._route(readable)
            one_of_each = {delivery.pointer.pool_code: delivery for delivery in readable}.values()
""",
            ),
        ),
    ),
    Mutant(
        "a batch is buried and routed in turns",
        "queues/consumer.py",
        (
            (
                """\
        unreadable = self._route_readable(batch)
        for delivery, reason in unreadable.values():
            await self._bury(delivery, reason)

    def _route_readable(self, batch: Sequence[Delivery]) -> dict[str, tuple[Delivery, str]]:
""",
                """\
        await self._route_readable(batch)

    async def _route_readable(self, batch: Sequence[Delivery]) -> dict[str, tuple[Delivery, str]]:
""",
            ),
            (
                """\
                unreadable[delivery.broker_id] = (delivery, str(error))
""",
                """\
                await self._bury(delivery, str(error))
""",
            ),
        ),
        missing="too rare: an unreadable message behind a redelivery of one whose ack ends meanwhile",
    ),
    Mutant(
        "an unreadable message is acked before it is recorded",
        "queues/consumer.py",
        (
            (
                """\
        try:
            await self._dead_letters.record(delivery, reason, None)
        except FlowCatalystError as error:
            text = f"dead letter not recorded: {error}"
            self._warnings.add(WarningCode.PROCESSING, Severity.CRITICAL, text, "consumer")
            self._settler.nack(delivery, DEFAULT_DELAY_S)
        else:
            log.warning("message_unreadable", action="message_unreadable", queue=self._queue.name, reason=reason)
            self._settler.ack(delivery)
""",
                """\
        self._settler.ack(delivery)
        while True:
            try:
                await self._dead_letters.record(delivery, reason, None)
                return
            except FlowCatalystError as error:
                text = f"dead letter not recorded: {error}"
                self._warnings.add(WarningCode.PROCESSING, Severity.CRITICAL, text, "consumer")
""",
            ),
        ),
    ),
    Mutant(
        "an unreadable message is acked and forgotten",
        "queues/consumer.py",
        (
            (
                """\
            await self._dead_letters.record(delivery, reason, None)
""",
                """\
            pass
""",
            ),
        ),
    ),
    Mutant(
        "of what is kept for room the newest is routed first",
        "queues/consumer.py",
        (
            (
                """\
        while kept and self._router.route_kept(kept[0]):
            kept.popleft()
""",
                """\
        while kept and self._router.route_kept(kept[-1]):
            kept.pop()
""",
            ),
        ),
    ),
    Mutant(
        "what is kept for room is routed once and then left alone",
        "queues/consumer.py",
        (
            (
                """\
        if kept:
            self._route_kept_later(code, self._router.pool_of(kept[0]))
        else:
""",
                """\
        if not kept:
""",
            ),
        ),
    ),
    Mutant(
        "a queue is not polled while the pools it fed are full",
        "queues/consumer.py",
        (
            (
                """\
            await self._first_of([pool.room_future() for pool in fed], FULL_POOL_PATIENCE_S)
""",
                """\
            await self._first_of([pool.room_future() for pool in fed], None)
""",
            ),
        ),
    ),
    Mutant(
        "a queue is not polled while a batch of its messages is not done",
        "queues/consumer.py",
        (
            (
                """\
        await self._accept(batch)
""",
                """\
        await self._accept(batch)
        while len(self._router.tracker) >= self._queue.capabilities.max_batch:
            await self._pause(1.0)
            if self._stop_asked.done():
                return
""",
            ),
        ),
    ),
    Mutant(
        "a poll that failed ends the polling",
        "queues/consumer.py",
        (
            (
                """\
            self._is_in_trouble(str(error))
            await self._pause_longer()
            return []
""",
                """\
            self._is_in_trouble(str(error))
            await self._first_of([], None)
            return []
""",
            ),
        ),
    ),
    Mutant(
        "a stop drains the pools before the polling ends",
        "engine.py",
        (
            (
                """\
        await self._stop_consumers()
        await self._drain_pools()
        await self._give_back_the_rest()
""",
                """\
        await self._drain_pools()
        await self._stop_consumers()
        await self._give_back_the_rest()
""",
            ),
        ),
    ),
    Mutant(
        "a stop leaves the watchers running",
        "engine.py",
        (
            (
                """\
        await self._tasks.cancel()
""",
                "",
            ),
        ),
    ),
)
