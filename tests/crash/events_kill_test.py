"""Real platforms on one store, killed at random under load: every event that was accepted reaches every subscription,
in order, and each webhook is signed.

`EVENTS_KILL_ROUNDS=20` plays so many deaths in each test.
"""

import os
import random
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Final

import pytest

from tests.crash.events_scene import Receiver, Scene
from tests.servers.postgres import PostgresServer, postgres_server
from tests.support.http_servers import raw_server

ROUNDS: Final = int(os.environ.get("EVENTS_KILL_ROUNDS", "5"))

_schemas = count(1)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostgresServer]:
    with postgres_server(tmp_path_factory.mktemp("postgres")) as running:
        yield running


@asynccontextmanager
async def scene_of(folder: Path, database_url: str | None, seed: int) -> AsyncIterator[Scene]:
    receiver = Receiver(random.Random(seed))
    async with raw_server(receiver) as web:
        scene = Scene(folder, database_url, receiver, web, seed)
        try:
            yield scene
        finally:
            await scene.close()


async def kill_again_and_again(scene: Scene, platforms: int) -> None:
    for _ in range(platforms):
        await scene.start_one()
    await scene.subscribe()
    await scene.until_all_know()
    await scene.kill_meanwhile(ROUNDS)
    await scene.end()


async def test_kill_9_of_platforms_on_one_postgres_loses_no_event_and_keeps_every_order(
    server: PostgresServer, tmp_path: Path
) -> None:
    async with scene_of(tmp_path, f"{server.url}?schema=events_{next(_schemas)}", seed=1) as scene:
        await kill_again_and_again(scene, platforms=3)


async def test_kill_9_of_a_platform_with_its_own_file_loses_no_event_and_keeps_every_order(tmp_path: Path) -> None:
    async with scene_of(tmp_path, None, seed=2) as scene:
        await kill_again_and_again(scene, platforms=1)
