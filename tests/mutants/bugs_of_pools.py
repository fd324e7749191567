"""Bugs in slots, room, attempts and what follows from them."""

from typing import Final

from tests.mutants.mutant import Mutant

POOL_BUGS: Final = (
    Mutant(
        "a retry does not wait for its backoff",
        "routing/pool.py",
        (
            (
                """\
                self._hold(delivery, after_s, f"retry after {delivery.failures} failed attempts")
""",
                """\
                self._hold(delivery, after_s / 2, f"retry after {delivery.failures} failed attempts")
""",
            ),
        ),
    ),
    Mutant(
        "the room of a pool does not count what is in flight",
        "routing/pool.py",
        (
            (
                """\
        return 0 if self.draining else max(0, self._capacity - len(self._scheduler))
""",
                """\
        return 0 if self.draining else max(0, self._capacity - self._scheduler.buffered)
""",
            ),
        ),
    ),
    Mutant(
        "a pool accepts one message more than its capacity",
        "routing/pool.py",
        (
            (
                """\
        return 0 if self.draining else max(0, self._capacity - len(self._scheduler))
""",
                """\
        return 0 if self.draining else max(0, self._capacity + 1 - len(self._scheduler))
""",
            ),
        ),
    ),
    Mutant(
        "a reload does not change the capacity of a pool",
        "routing/pool.py",
        (
            (
                """\
        self._capacity = limits.effective_capacity
        self._rate.change(limits.rate_per_minute)
""",
                """\
        self._rate.change(limits.rate_per_minute)
""",
            ),
        ),
    ),
    Mutant(
        "a reload stops the timer of the holds and sets none",
        "routing/pool.py",
        (
            (
                """\
        self._rate.change(limits.rate_per_minute)
        self._pump_soon()
""",
                """\
        self._rate.change(limits.rate_per_minute)
        self._disarm()
""",
            ),
        ),
    ),
    Mutant(
        "a slot goes on although its pool shrank",
        "routing/pool.py",
        (
            (
                """\
        while len(self._slots) <= self.limits.concurrency:
""",
                """\
        while True:
""",
            ),
        ),
    ),
    Mutant(
        "a pool fills its slots as if all of them were free",
        "routing/pool.py",
        (
            (
                """\
        wanted = min(self.limits.concurrency - len(self._slots), self._scheduler.ready_count)
""",
                """\
        wanted = min(self.limits.concurrency, self._scheduler.ready_count)
""",
            ),
        ),
    ),
    Mutant(
        "a cancelled slot stays in the pool's count",
        "routing/pool.py",
        (
            (
                """\
        self._slots.pop(slot, None)
""",
                """\
        if not slot.cancelled():
            self._slots.pop(slot, None)
""",
            ),
        ),
    ),
    Mutant(
        "a cancelled attempt stays in flight for ever",
        "routing/pool.py",
        (
            (
                """\
            self._scheduler.finish(delivery)  # nothing starts any more; the tracker still has it
""",
                """\
            pass
""",
            ),
        ),
    ),
    Mutant(
        "a cancelled attempt counts as done and is acked",
        "routing/pool.py",
        (
            (
                """\
            self._scheduler.finish(delivery)  # nothing starts any more; the tracker still has it
""",
                """\
            self._scheduler.finish(delivery)
            delivery.source.ack(delivery)
""",
            ),
        ),
    ),
    Mutant(
        "a message that comes while the last slot ends wakes nobody",
        "routing/pool.py",
        (
            (
                """\
        if self._scheduler.has_ready:
            self._pump_soon()
""",
                "",
            ),
        ),
        missing="two slots have to end at the same moment while their pool shrinks: too rare for random histories; "
        "tests/integration/pool_test.py has a test for it",
    ),
    Mutant(
        "the timer that rang still counts as set",
        "routing/pool.py",
        (
            (
                """\
    def _timer_rang(self) -> None:
        self._timer = None
""",
                """\
    def _timer_rang(self) -> None:
""",
            ),
        ),
    ),
    Mutant(
        "those who wait for room are not told when a message leaves",
        "routing/pool.py",
        (
            (
                """\
        self._tell_room()
        if self.draining or self.retiring:
""",
                """\
        if self.draining or self.retiring:
""",
            ),
        ),
    ),
    Mutant(
        "a drain leaves the timer of the holds running",
        "routing/pool.py",
        (
            (
                """\
        self.draining = True
        self._disarm()
""",
                """\
        self.draining = True
""",
            ),
        ),
    ),
    Mutant(
        "a drain keeps the followers of the last attempt of a group",
        "routing/pool.py",
        (
            (
                """\
        if self.draining or self.retiring:
            self._give_back_waiting()
""",
                """\
        if self.draining and not len(self._scheduler):
            self._drained.set()
""",
            ),
        ),
    ),
    Mutant(
        "a retry does not take a permit",
        "routing/pool.py",
        (
            (
                """\
                self._rate.take(now)
""",
                """\
                if not delivery.tries:
                    self._rate.take(now)
""",
            ),
        ),
    ),
    Mutant(
        "a held message keeps its slot",
        "routing/pool.py",
        (
            (
                """\
            await self._process(delivery)
""",
                """\
            await self._process(delivery)
            while (until := self._scheduler.place_of(delivery)[1]) is not None and not self.draining:
                await asyncio.sleep(max(0.0, until - self._now()))
""",
            ),
        ),
    ),
    Mutant(
        "an open breaker lets the others pass where a failure would",
        "routing/pool.py",
        (
            (
                """\
            self._give_back(delivery, delay_s, FailureScope.GROUP if delivery.ordered else None)
""",
                """\
            self._give_back(delivery, delay_s, FailureScope.GROUP if delivery.blocks_group else None)
""",
            ),
        ),
    ),
    Mutant(
        "an open breaker gives back only the batch of a message",
        "routing/pool.py",
        (
            (
                """\
            self._give_back(delivery, delay_s, FailureScope.GROUP if delivery.ordered else None)
""",
                """\
            self._give_back(delivery, delay_s, self.limits.failure_scope if delivery.ordered else None)
""",
            ),
        ),
        missing="a queue that locks groups shows a second batch of a group only when a lease ran out: too rare",
    ),
    Mutant(
        "the followers of a failed message are neither kept nor given back",
        "routing/pool.py",
        (
            (
                """\
            for follower in self._scheduler.fail(delivery, scope):
                follower.source.nack(follower, self._tools.delays.follower_s)
""",
                """\
            for _ in self._scheduler.fail(delivery, scope):
""",
            ),
        ),
    ),
    Mutant(
        "a failed message lets its followers pass",
        "routing/pool.py",
        (
            (
                """\
                self._give_back(delivery, delay_s, self.limits.failure_scope if delivery.blocks_group else None)
""",
                """\
                self._give_back(delivery, delay_s, None)
""",
            ),
        ),
    ),
    Mutant(
        "what a drain gives back to a queue without order waits there",
        "routing/pool.py",
        (
            (
                """\
        delivery.source.nack(delivery, after_s if ordered else 0.0)
""",
                """\
        delivery.source.nack(delivery, after_s)
""",
            ),
        ),
    ),
    Mutant(
        "a removed pool gives back what its queue cannot keep in order",
        "routing/pool.py",
        (
            (
                """\
        return self.draining or (self.retiring and delivery.source.capabilities.ordered_redelivery)
""",
                """\
        return self.draining or self.retiring
""",
            ),
        ),
    ),
    Mutant(
        "a message whose dead letter could not be recorded is acked all the same",
        "routing/pool.py",
        (
            (
                """\
            return policy.wait_before_next_attempt(
                self._tools.delays.give_back_s, delivery, delivery.source.capabilities
            )
""",
                "",
            ),
        ),
    ),
    Mutant(
        "delivered messages are not counted",
        "routing/pool.py",
        (
            (
                """\
                self.stats.delivered += 1
""",
                "",
            ),
        ),
    ),
    Mutant(
        "a dead letter counts as delivered",
        "routing/pool.py",
        (
            (
                """\
                self.stats.dead_lettered += 1
""",
                """\
                self.stats.delivered += 1
""",
            ),
        ),
    ),
)
