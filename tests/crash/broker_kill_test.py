"""The real process on real brokers, killed in the middle of random failures: nothing is lost, groups stay in order."""

import asyncio
import random
from collections.abc import Iterator

import pytest

from flowcatalyst.app.router import App
from flowcatalyst.control.settings import load_settings
from tests.crash.scene import PATIENT_MS
from tests.integration.chaos_test import messages
from tests.support.brokers import Kind, Place, Places, all_kinds, places
from tests.support.router_process import Waits, router_process
from tests.support.witness import Witness

LIVES = 3
GROUPS, PER_GROUP = 8, 12
ALL = GROUPS * PER_GROUP


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Places]:
    with places(tmp_path_factory.mktemp("brokers")) as found:
        yield found


@all_kinds
async def test_kill_9_amid_random_failures_loses_nothing_and_keeps_every_group_in_order(
    brokers: Places, kind: Kind
) -> None:
    place, luck = brokers.new(kind), random.Random(kind.name)
    witness = Witness(fault_rate=0.3, seed=1)
    async with witness.running():
        outgoing = messages(witness.url, GROUPS, PER_GROUP)
        witness.published(outgoing)
        await place.publish(outgoing)
        waits = Waits(more=place.toml)
        for _ in range(LIVES):
            async with router_process(place.folder, waits) as router:
                witness.router_started()
                await witness.until_arrived(witness.arrivals + luck.randint(10, ALL // LIVES))
                await router.kill()
                await witness.router_gone()
        await _deliver_the_rest(place, witness)
        left = await place.left()
        violations = await witness.violations(place.folder / "data", left, place.rules)
        assert violations == [], "\n".join(violations)
        assert left == []


async def _deliver_the_rest(place: Place, witness: Witness) -> None:
    """One more life, with an endpoint that works, until everything was delivered and nothing comes any more."""
    witness.fault_rate = 0.0
    app = App(
        load_settings(
            data_dir=place.folder / "data",
            retry={"backoff_s": [0.02, 0.04], "nack_delay_s": 0.3, "follower_s": 0.1},
            mediator={"http": {"timeout_ms": PATIENT_MS, "version": "HTTP_1_1"}},
            **place.settings,
        )
    )
    witness.router_started()
    async with app.running():
        await witness.until_acked(ALL)
        arrivals = -1
        while arrivals != witness.arrivals or len(app.tracker):
            arrivals = witness.arrivals
            await asyncio.sleep(place.quiet_s)  # whatever a killed router had is shown again by then
    assert app.stopped_clean
    await witness.router_stopped()
