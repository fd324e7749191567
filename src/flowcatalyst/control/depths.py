"""How many messages each queue holds, asked once for all who want to know: a broker may take long to count them."""

import asyncio
from dataclasses import dataclass
from typing import Final
from weakref import WeakKeyDictionary

from flowcatalyst.core.clock import Clock
from flowcatalyst.core.errors import FlowCatalystError
from flowcatalyst.core.tasks import Tasks
from flowcatalyst.queues.contract import Depth, Queue

KEEP_S: Final = 1.0
ANSWER_WITHIN_S: Final = 2.0


@dataclass(slots=True, frozen=True)
class Reading:
    """What a queue said."""

    depth: Depth | None  # None: it did not tell, or its broker never does
    last_error: str = ""  # why it cannot be asked; empty if it can


@dataclass(slots=True)
class _Question:
    asked_at: float
    asking: "asyncio.Task[None] | None" = None
    reading: Reading = Reading(None)


class Depths:
    """Asks each queue at most once a second and once at a time, however many pages are open."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._tasks = Tasks()
        self._questions: WeakKeyDictionary[Queue, _Question] = WeakKeyDictionary()

    async def of(self, queue: Queue) -> Reading:
        """At most a second old. One that does not answer in time holds up nobody else."""
        now = self._clock.monotonic()
        question = self._questions.get(queue)
        if question is None or (_is_over(question) and now - question.asked_at >= KEEP_S):
            question = self._questions[queue] = _Question(now)
            question.asking = self._tasks.spawn(_ask(queue, question), f"ask depth of {queue.name}")
        if not _is_over(question):
            assert question.asking is not None
            await asyncio.wait([question.asking], timeout=ANSWER_WITHIN_S)
        return question.reading if _is_over(question) else Reading(None, f"no answer within {ANSWER_WITHIN_S:g} s")

    async def close(self) -> None:
        """End questions that are still open: the queues are about to close."""
        await self._tasks.cancel()


def _is_over(question: _Question) -> bool:
    return question.asking is not None and question.asking.done()


async def _ask(queue: Queue, question: _Question) -> None:
    try:
        question.reading = Reading(await queue.depth())
    except FlowCatalystError as error:
        question.reading = Reading(None, str(error))
