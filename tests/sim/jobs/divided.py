"""Processes that divide the limits of their pools, as those on one PostgreSQL do: they register, renew, agree on
generations, take each other for dead and lose what they had, by the code that does it there."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Final, TypeVar

from flowcatalyst.core.errors import QueueUnavailableError
from flowcatalyst.queues.division import Member
from flowcatalyst.queues.postgres.owners import RENEW_EVERY_S, OwnerWatch, Session
from flowcatalyst.queues.postgres.store import HURRY_EVERY_S
from flowcatalyst.simulation.jobs.history import Kind
from flowcatalyst.simulation.jobs.world import JobsWorld, Process
from tests.support.divisions import Divisions

T = TypeVar("T")
LONGEST_WAY_S: Final = 0.2  # to the database, or back


class DividedWorld(JobsWorld):
    """What is divided is kept beside the store, in the same database: who cannot reach one cannot reach the other."""

    divided = True

    def __init__(self, *args: object, **options: object) -> None:
        super().__init__(*args, **options)  # type: ignore[arg-type]
        self.divisions = Divisions()
        self._sessions: dict[str, Session] = {}  # by life of a process

    async def _work(self, process: Process) -> None:
        self.history.add(Kind.DIVIDED, process=process.owner, value=self.pools)
        process.tasks.append(self.loop.create_task(self._take_part(process)))

    async def _take_part(self, process: Process) -> None:
        member, watch = process.engine.share, OwnerWatch()
        assert member is not None, "the limits are divided"
        while True:
            pause_s = RENEW_EVERY_S / 5
            try:
                await self._renew(process, member, watch)
                pause_s = HURRY_EVERY_S if member.hurries else RENEW_EVERY_S
            except QueueUnavailableError:
                self.dice.note("a renewal failed")
            await asyncio.sleep(pause_s)

    async def _renew(self, process: Process, member: Member, watch: OwnerWatch) -> None:
        now, database = self.clock.monotonic, self.divisions
        session = self._sessions.get(process.owner)
        if session is None or not session.is_alive(now()):
            self.dice.note("a share ran out", session is not None)
            sent_at = now()
            session = self._sessions[process.owner] = Session(await self._ask(process, database.register), sent_at)
        owner, sent_at = session.owner, now()
        standing = await self._ask(process, partial(database.renew, owner, member.keeps_to(owner)))
        session.ended |= owner not in standing.beats
        session.renewed(sent_at, now())
        if session.is_alive(now()):
            for thing, division in member.saw(owner, session.until, standing, now()).items():
                self.dice.note("limits are divided anew", len(division.newest.members) > 1)
                await self._ask(process, partial(database.divide, thing, standing.divisions[thing], division))
        if session.ended:
            member.lost()
        for dead, beat in watch.dead_among(
            {one: at for one, at in standing.beats.items() if one != owner}, now()
        ).items():
            self.dice.note("a process was taken for dead")
            await self._ask(process, partial(database.forget, dead, beat))

    async def _ask(self, process: Process, statement: Callable[[], T]) -> T:
        """It may be done although its answer is lost."""
        await self._way(process)
        result = statement()
        await self._way(process)
        return result

    async def _way(self, process: Process) -> None:
        await asyncio.sleep(self.dice.rng.uniform(0.0, LONGEST_WAY_S))
        lost = self.dice.hit("a statement got lost", self.faults.answer_is_lost)
        if lost or self.loop.time() < process.file.writer.unreachable_until:
            raise QueueUnavailableError("no way")

    async def _stop(self, process: Process) -> None:
        await super()._stop(process)
        if (session := self._sessions.pop(process.owner, None)) is not None:
            self.divisions.owners.pop(session.owner, None)
