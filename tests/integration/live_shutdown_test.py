"""SIGTERM to a real router process: in the middle of slow work, in the middle of a start, and twice."""

import asyncio
import signal
from pathlib import Path

from tests.crash.scene import PATIENT_MS
from tests.support.config_server import hanging
from tests.support.live import Live, live, messages
from tests.support.router_process import RouterProcess, Waits, starting_process
from tests.support.witness import Witness

SLOW_S = 1.0
SLOTS, GROUPS, PER_GROUP = 8, 30, 3
PATIENT = Waits(timeout_ms=PATIENT_MS)


class SlowWitness(Witness):
    """Takes its time for each answer, until it is told to hurry."""

    hurries = False

    def _choose(self, message_id: str) -> str:
        return "ok" if self.hurries else "hang"

    async def _hang(self, reader: asyncio.StreamReader) -> str:
        try:
            async with asyncio.timeout(SLOW_S):
                return await super()._hang(reader)
        except TimeoutError:
            return "ok"


async def until_under_full_load(scene: Live, router: RouterProcess) -> None:
    """More groups than slots: every slot waits for a slow answer, and one round of answers is over."""
    names = [f"g{number}" for number in range(GROUPS)]
    await scene.publish(messages(scene.witness.url, names, range(1, PER_GROUP + 1), "SLOW"))
    await scene.witness.until_acked(SLOTS)
    await scene.api(router).until("/monitoring/pool-stats", lambda pools: pools[0]["inFlight"] == SLOTS)


async def deliver_the_rest(scene: Live, witness: SlowWitness) -> None:
    witness.hurries = True
    async with scene.router(PATIENT) as router:
        await scene.until_delivered()
        await scene.stop(router)


async def test_sigterm_under_full_load_drains_in_order_and_the_next_start_delivers_the_rest(tmp_path: Path) -> None:
    witness = SlowWitness()
    async with live(tmp_path, witness) as scene:
        scene.config.say({"SLOW": SLOTS}, ["orders"])
        async with scene.router(PATIENT) as router:
            await until_under_full_load(scene, router)
            await scene.stop(router)
        answered = set(witness.acked)
        assert set(scene.left()) == scene.published - answered
        await deliver_the_rest(scene, witness)
        assert set(witness.acked.values()) == {1}  # a clean stop does not even cause a duplicate
        await scene.assert_every_promise_was_kept()


async def test_a_second_sigterm_during_the_drain_ends_at_once_with_130_and_loses_nothing(tmp_path: Path) -> None:
    witness = SlowWitness()
    async with live(tmp_path, witness) as scene:
        scene.config.say({"SLOW": SLOTS}, ["orders"])
        async with scene.router(PATIENT) as router:
            await until_under_full_load(scene, router)
            router.process.send_signal(signal.SIGTERM)
            await router.until_printed("Stopping")
            code, rest = await router.terminate()
            assert (code, "at once" in rest) == (130, True)
            await witness.router_gone()
        await deliver_the_rest(scene, witness)
        await scene.assert_every_promise_was_kept()


async def test_sigterm_while_the_first_sync_hangs_ends_the_process_at_once_and_cleanly(tmp_path: Path) -> None:
    async with live(tmp_path) as scene:
        scene.config.server.script = hanging
        command = ("router", "--config-url", scene.config.url)
        async with starting_process(tmp_path, command=command) as router:
            await scene.config.server.until(lambda server: bool(server.requests))
            code, said = await router.terminate()
            assert code == 0
            assert "Stopped before it had started" in said
            assert router.log.read_text() == ""


async def test_sigterm_while_a_reload_hangs_does_not_wait_for_it(tmp_path: Path) -> None:
    async with live(tmp_path) as scene:
        scene.config.say({}, ["orders"])
        async with scene.router(env={"FLOWCATALYST_SYNC__TIMEOUT_S": "300"}) as router:
            scene.config.server.script = hanging
            reload = asyncio.ensure_future(scene.api(router).status("POST", "/config/reload"))
            await scene.config.server.until(lambda server: len(server.requests) == 2)
            await scene.stop(router)  # within its limit, which is far below 300 s
            await asyncio.wait([reload])
            assert reload.exception() is not None or reload.result() >= 500
