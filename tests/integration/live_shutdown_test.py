"""Signals to a real router process: in the middle of slow work, in the middle of a start, and twice."""

import asyncio
import os
import pty
import signal
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from tests.crash.scene import PATIENT_MS
from tests.support.config_server import hanging
from tests.support.live import Live, live, messages
from tests.support.patience import PATIENCE_S
from tests.support.router_process import RouterProcess, Waits, router_process, starting_process
from tests.support.witness import Witness

SLOW_S = 1.0
SLOTS, GROUPS, PER_GROUP = 8, 30, 3
PATIENT = Waits(timeout_ms=PATIENT_MS)


class SlowWitness(Witness):
    """Takes its time for each answer, until it is told to hurry."""

    hurries = False
    slow_s = SLOW_S

    def _choose(self, message_id: str) -> str:
        return "ok" if self.hurries else "hang"

    async def _hang(self, reader: asyncio.StreamReader) -> str:
        try:
            async with asyncio.timeout(self.slow_s):
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


async def test_another_sigterm_a_second_later_ends_at_once_with_130_and_loses_nothing(tmp_path: Path) -> None:
    witness = SlowWitness()
    async with live(tmp_path, witness) as scene:
        scene.config.say({"SLOW": SLOTS}, ["orders"])
        async with scene.router(PATIENT) as router:
            await until_under_full_load(scene, router)
            witness.slow_s = 20.0
            router.process.send_signal(signal.SIGTERM)
            await router.until_printed("Stopping")
            ending = asyncio.ensure_future(router.until_ended())
            while not ending.done():
                with suppress(ProcessLookupError):
                    router.process.send_signal(signal.SIGTERM)  # in vain until a second is over
                await asyncio.wait([ending], timeout=0.2)
            code, rest = await ending
            assert (code, "at once" in rest) == (130, True)
            await witness.router_gone()
        await deliver_the_rest(scene, witness)
        await scene.assert_every_promise_was_kept()


@pytest.mark.parametrize("first", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_that_comes_twice_within_a_second_is_one_signal(tmp_path: Path, first: signal.Signals) -> None:
    """`timeout` sends it to the process, and then to its group, which the process is in."""
    witness = SlowWitness()
    async with live(tmp_path, witness) as scene:
        scene.config.say({"SLOW": SLOTS}, ["orders"])
        async with scene.router(PATIENT) as router:
            await until_under_full_load(scene, router)
            router.process.send_signal(first)
            router.process.send_signal(signal.SIGTERM)
            await router.until_printed("Stopping")
            code, rest = await router.until_ended()
            assert (code, "Nothing was lost" in rest) == (0, True), (code, rest)
        await deliver_the_rest(scene, witness)
        assert set(witness.acked.values()) == {1}
        await scene.assert_every_promise_was_kept()


async def test_sighup_fetches_the_configuration_and_ends_nothing(tmp_path: Path) -> None:
    async with live(tmp_path) as scene:
        scene.config.say({"OLD": 1}, ["orders"])
        async with scene.router() as router:
            scene.config.say({"OLD": 1, "NEW": 2}, ["orders"])
            router.process.send_signal(signal.SIGHUP)
            await scene.api(router).until(
                "/monitoring/pool-stats", lambda pools: "NEW" in [one["code"] for one in pools]
            )
            await scene.stop(router)


async def test_sighup_without_a_config_url_is_ignored_and_said_so(tmp_path: Path) -> None:
    async with router_process(tmp_path) as router:
        router.process.send_signal(signal.SIGHUP)
        async with asyncio.timeout(PATIENCE_S):
            while "hangup_ignored" not in router.log.read_text():
                await asyncio.sleep(0.05)
        code, rest = await router.terminate()
        assert (code, "Nothing was lost" in rest) == (0, True)


async def test_a_router_whose_terminal_is_closed_drains(tmp_path: Path) -> None:
    ours, terminal = pty.openpty()
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "flowcatalyst", "up", "--port", "0", "--data-dir", tmp_path / "data"),
        stdin=terminal,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    os.close(terminal)
    try:
        assert process.stdout is not None
        assert b"is routing" in await process.stdout.readline()
        process.send_signal(signal.SIGHUP)  # the kernel sends one, and a shell sends another
        process.send_signal(signal.SIGHUP)
        rest, _ = await process.communicate()
        assert (process.returncode, b"Nothing was lost" in rest) == (0, True)
    finally:
        os.close(ours)
        if process.returncode is None:
            process.kill()


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
