"""Real processes at work on one store of jobs, killed at random under load: nothing is lost, groups stay in order.

`JOBS_KILL_ROUNDS=20` plays so many deaths in each test of kills.
"""

import asyncio
import os
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

import pytest

from tests.crash.jobs_scene import CONCURRENCY, JobsScene, jobs_scene, way_to
from tests.servers.postgres import PostgresServer, postgres_server
from tests.support.router_process import RouterProcess

ROUNDS: Final = int(os.environ.get("JOBS_KILL_ROUNDS", "3"))
RESTART_EVERY: Final = 2  # rounds


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostgresServer]:
    with postgres_server(tmp_path_factory.mktemp("postgres")) as running:
        yield running


class Crowd:
    """Processes, each of which can be ended and replaced."""

    def __init__(self, scene: JobsScene, stack: AsyncExitStack) -> None:
        self._scene = scene
        self._stack = stack
        self.alive: dict[str, RouterProcess] = {}

    async def add(self) -> None:
        name, router = await self._stack.enter_async_context(self._scene.process())
        self.alive[name] = router

    async def kill_one(self) -> None:
        name = self._scene.luck.choice(sorted(self.alive))
        await self._scene.kill(name, self.alive.pop(name))

    async def stop(self) -> None:
        ends = await asyncio.gather(*(router.terminate() for router in self.alive.values()))
        assert [code for code, _ in ends] == [0] * len(ends), ends


async def kill_again_and_again(scene: JobsScene, processes: int, *, restarts: bool) -> None:
    async with AsyncExitStack() as stack:
        crowd = Crowd(scene, stack)
        for _ in range(processes):
            await crowd.add()
        for number in range(ROUNDS):
            await scene.make_jobs()
            await scene.until_some_arrived()
            await crowd.kill_one()
            if restarts and number % RESTART_EVERY == 0:
                await scene.restart_database(list(crowd.alive))
            await crowd.add()
        await scene.until_all_is_delivered()
        await crowd.stop()
    await scene.assert_every_promise_was_kept()


@pytest.mark.parametrize("processes", [1, 3])
async def test_kill_9_of_processes_on_one_postgres_loses_no_job_and_keeps_every_group_in_order(
    server: PostgresServer, tmp_path: Path, processes: int
) -> None:
    async with jobs_scene(tmp_path, server, seed=processes) as scene:
        await kill_again_and_again(scene, processes, restarts=True)
        assert scene.witness.most_at_once <= CONCURRENCY


@pytest.mark.parametrize("processes", [1, 3])
async def test_kill_9_of_processes_on_one_file_loses_no_job_and_keeps_every_group_in_order(
    tmp_path: Path, processes: int
) -> None:
    """Limits are not divided there: each process has its own."""
    async with jobs_scene(tmp_path, None, seed=processes) as scene:
        await kill_again_and_again(scene, processes, restarts=False)
        assert scene.witness.most_at_once <= processes * CONCURRENCY


async def test_a_process_that_sleeps_for_longer_than_its_session_costs_no_job_and_no_order(
    server: PostgresServer, tmp_path: Path
) -> None:
    async with jobs_scene(tmp_path, server, seed=1) as scene, scene.process() as (_, second):
        async with scene.process() as (name, first):
            await scene.make_jobs()
            await scene.until_some_arrived()
            making = asyncio.ensure_future(scene.make_jobs())
            await scene.sleep_through_its_lapse(name, first)
            await making
            await scene.make_jobs()
            await scene.until_all_is_delivered()
            ends = await asyncio.gather(first.terminate(), second.terminate())
        assert [code for code, _ in ends] == [0, 0], ends
        assert scene.witness.most_at_once <= CONCURRENCY
        await scene.assert_every_promise_was_kept()


async def test_a_process_that_is_cut_off_from_the_database_costs_no_job_and_no_order(
    server: PostgresServer, tmp_path: Path
) -> None:
    async with jobs_scene(tmp_path, server, seed=1) as scene, way_to(server) as proxy, scene.process() as (_, second):
        assert proxy is not None
        async with scene.process(proxy) as (name, first):
            await scene.make_jobs()
            await scene.until_some_arrived()
            making = asyncio.ensure_future(scene.make_jobs())
            await scene.cut_off(name, first, proxy)
            await making
            await scene.make_jobs()
            await scene.until_all_is_delivered()
            ends = await asyncio.gather(first.terminate(), second.terminate())
        assert [code for code, _ in ends] == [0, 0], ends
        assert scene.witness.most_at_once <= CONCURRENCY
        await scene.assert_every_promise_was_kept()


async def test_processes_together_never_have_more_in_flight_than_a_pool_may_while_they_come_and_go(
    server: PostgresServer, tmp_path: Path
) -> None:
    async with jobs_scene(tmp_path, server, seed=2, fault_rate=0.0) as scene, AsyncExitStack() as stack:
        scene.witness.answer_after_s = 0.05
        crowd = Crowd(scene, stack)
        for change in (crowd.add, crowd.add, crowd.add, crowd.kill_one, crowd.add):
            await change()
            await scene.make_jobs()
            await scene.make_jobs()
            await scene.until_some_arrived()
        await scene.until_all_is_delivered()
        await crowd.stop()
        assert 1 < scene.witness.most_at_once <= CONCURRENCY
        await scene.assert_every_promise_was_kept()
