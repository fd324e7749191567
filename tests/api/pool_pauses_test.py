"""Pools are paused and resumed where they are not: on a standby, and after they were taken out of the configuration."""

from pathlib import Path

import pytest
from pydantic import SecretStr

from flowcatalyst.app import router as router_module
from flowcatalyst.control.pool_settings import PoolSettings
from flowcatalyst.control.router_config import RouterConfig
from flowcatalyst.control.settings import StandbySettings
from flowcatalyst.control.standby import Standby
from flowcatalyst.control.standby_lock import Holder
from flowcatalyst.core.clock import Clock
from flowcatalyst.core.message import DEFAULT_POOL
from flowcatalyst.core.supervisor import Supervisor
from flowcatalyst.core.warnings import WarningBook
from flowcatalyst.router.fence import Fence
from flowcatalyst.router.limits import PoolLimits
from tests.api.running import Running, on_idle_router, run_router, until
from tests.support.http_servers import Gate, raw_server

PAUSE, RESUME = "/monitoring/pools/SMALL/pause", "/monitoring/pools/SMALL/resume"
BOTH = [PoolSettings(code=code, concurrency=1) for code in (DEFAULT_POOL, "SMALL")]
STANDBY = StandbySettings(redis_url=SecretStr("redis://127.0.0.1"), ttl_s=60.0, refresh_s=0.02)


class LockOfAnother:
    """Somebody else has it, until it is free."""

    def __init__(self) -> None:
        self.is_free = False
        self._identity = ""

    def standby(
        self,
        settings: StandbySettings,
        clock: Clock,
        identity: str,
        warnings: WarningBook,
        fence: Fence,
        supervisor: Supervisor,
    ) -> Standby:
        """One that waits for it."""
        self._identity = identity
        return Standby(settings, clock, identity, warnings, fence, self, supervisor)

    async def acquire(self) -> Holder:
        return Holder(self._identity, 2) if self.is_free else Holder("another", 1)

    async def refresh(self) -> Holder | None:
        return Holder(self._identity, 2)

    async def release(self) -> None:
        """Nobody waits for it."""

    async def close(self) -> None:
        """It is not open."""


async def test_a_pool_that_a_standby_is_told_to_pause_is_paused_when_it_is_the_primary(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = LockOfAnother()
    monkeypatch.setattr(router_module, "Standby", lock.standby)
    async with run_router(tmp_path, pools=BOTH, standby=STANDBY) as router:
        answer = await router.client.post(PAUSE)
        assert (answer.status, answer.media_type, answer.json) == (200, "application/json", None)
        [pause] = (await router.client.get("/monitoring/pauses")).json
        assert (pause["kind"], pause["name"], pause["by"]) == ("POOL", "SMALL", "anonymous")
        lock.is_free = True

        async def is_at_work() -> bool:
            return router.app.at_work

        await until(is_at_work)
        assert router.app.router.pools["SMALL"].paused
        assert not router.app.router.pools[DEFAULT_POOL].paused
        assert (await router.client.post(RESUME)).json["pausedBy"] is None


async def test_a_pool_that_a_standby_paused_can_be_resumed_there(tmp_path: Path) -> None:
    async with run_router(tmp_path, pools=BOTH, enabled=False) as router:
        await router.client.post(PAUSE)
        answer = await router.client.post(RESUME)
        assert (answer.status, answer.json) == (200, None)
        assert (await router.client.get("/monitoring/pauses")).json == []
        (await router.client.post(RESUME)).assert_problem(404, "no pool 'SMALL'; this router has no pools now")


async def test_a_paused_pool_that_is_no_longer_configured_can_be_resumed(tmp_path: Path) -> None:
    async with run_router(tmp_path, pools=BOTH) as before:
        assert (await before.client.post(PAUSE)).json["code"] == "SMALL"
    async with run_router(tmp_path, pools=BOTH[:1]) as after:
        (await after.client.post(PAUSE)).assert_problem(404, "no pool 'SMALL'")  # by then it may be a slip of the pen
        answer = await after.client.post(RESUME)
        assert (answer.status, answer.json) == (200, None)
        assert (await after.client.get("/monitoring/pauses")).json == []
    async with run_router(tmp_path, pools=BOTH) as again:
        assert not again.app.router.pools["SMALL"].paused


async def test_a_paused_pool_that_only_ends_what_it_has_can_be_resumed(tmp_path: Path) -> None:
    gate = Gate()
    async with raw_server(gate) as server, run_router(tmp_path, pools=BOTH) as router:
        await router.send(id="m-1", mediationTarget=server.url(), poolCode="SMALL")
        await server.until(lambda server: len(server.requests) == 1)
        await router.client.post(PAUSE)
        await router.app.apply(RouterConfig({DEFAULT_POOL: PoolLimits(1)}, router.app.config.queues))
        resumed = (await router.client.post(RESUME)).json
        assert (resumed["code"], resumed["pausedBy"], resumed["inFlight"]) == ("SMALL", None, 1)
        gate.opened.set()
        await router.until_settled()


@on_idle_router
async def test_a_pool_that_was_never_there_is_neither_paused_nor_resumed(idle_router: Running) -> None:
    for act in ("pause", "resume"):
        answer = await idle_router.client.post(f"/monitoring/pools/NOPE/{act}")
        answer.assert_problem(404, "there is no pool 'NOPE'; the pools are: ", DEFAULT_POOL)
    assert (await idle_router.client.get("/monitoring/pauses")).json == []
