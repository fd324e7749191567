from datetime import UTC, datetime
from pathlib import Path

from flowcatalyst.control.pause_store import PauseStore
from flowcatalyst.control.standby import StandbyState
from flowcatalyst.router.pauses import Pause, PauseKind, Pauses
from flowcatalyst.router.skips import Skips
from tests.api.resting import resting_standby
from tests.api.running import Running, on_idle_router, run_router

PATH = "/monitoring/standby-status"


@on_idle_router
async def test_a_router_without_a_lock_is_always_primary(idle_router: Running) -> None:
    identity = idle_router.app.identity
    assert (await idle_router.client.get(PATH)).json == {
        "enabled": False,
        "state": "PRIMARY",
        "identity": identity,
        "holder": identity,
        "since": None,
        "fencingNumber": None,
        "secondsSinceContact": None,
        "lastError": "",
    }


async def test_a_standby_tells_who_is_at_work(router: Running) -> None:
    standby = resting_standby(router)
    standby._holder, standby.since = "other-router", 1_700_000_000.0
    standby.last_contact_at = router.app.clock.monotonic() - 3
    found = (await router.client.get(PATH)).json
    assert 3 <= found.pop("secondsSinceContact") < 30
    assert datetime.fromisoformat(found.pop("since")) == datetime.fromtimestamp(1_700_000_000, UTC)
    assert found == {
        "enabled": True,
        "state": "STANDBY",
        "identity": router.app.identity,
        "holder": "other-router",
        "fencingNumber": None,
        "lastError": "",
    }


async def test_a_primary_shows_its_fencing_number(router: Running) -> None:
    standby = resting_standby(router)
    standby.state, standby.fencing_number = StandbyState.PRIMARY, 42
    found = (await router.client.get(PATH)).json
    assert (found["state"], found["fencingNumber"]) == ("PRIMARY", 42)


async def test_a_lock_that_was_never_reached_is_told_with_the_reason(router: Running) -> None:
    resting_standby(router).last_error = "Redis refuses the connection"
    found = (await router.client.get(PATH)).json
    assert found["lastError"] == "Redis refuses the connection"
    assert (found["holder"], found["secondsSinceContact"]) == (None, None)


async def test_a_primary_session_begins_with_what_another_process_was_told_meanwhile(tmp_path: Path) -> None:
    """A standby reads the file that it shares when it takes over, not only when it starts."""
    async with run_router(tmp_path, enabled=False) as standby:
        app, pauses = standby.app, Pauses()
        other = PauseStore(tmp_path / "pauses.db", pauses, Skips())
        await other.open()
        await other.put(PauseKind.POOL, "DEFAULT-POOL", Pause("ann", 1.0))
        await other.put_skip("b-1", "skipped by ann")
        await other.close()
        async with app._at_work_now():
            assert app.router.pools["DEFAULT-POOL"].paused
            assert app.engine.skips.find("b-1") == "skipped by ann"
