"""The real process, stopped by SIGSTOP for longer than its leases, and woken up again."""

import asyncio
from pathlib import Path

import aiohttp

from flowcatalyst.core.message import MessagePointer, encode_pointer
from flowcatalyst.queues.contract import Outgoing
from tests.crash.scene import ALL, PATIENT_MS, Scene, scene
from tests.support.router_process import RouterProcess, Waits

VISIBILITY_S = 1.0
PAUSE_S = 1.5
NOTICED_WITHIN_S = 20.0
GROUPS, PER_GROUP = 6, 5
SHORT_LEASES = Waits(visibility_s=VISIBILITY_S)
PATIENT = Waits(visibility_s=VISIBILITY_S, timeout_ms=PATIENT_MS)


async def test_a_router_that_slept_through_its_leases_goes_on_in_order_and_loses_nothing(tmp_path: Path) -> None:
    async with scene(tmp_path, fault_rate=0.2) as play:
        async with play.router(SHORT_LEASES) as router:
            await play.publish()
            await play.witness.until_acked(ALL // 3)
            await router.pause()
            await asyncio.sleep(PAUSE_S)
            router.resume()
            await play.witness.until_acked(ALL * 2 // 3)
            await play.stop(router)
        await play.deliver_the_rest()
        await play.assert_every_promise_was_kept()


# In the tests below the first message of each group is in flight when the router falls asleep, the others wait behind
# it. Another router takes all of them over. Only what was in flight may reach the endpoint twice.


async def test_a_router_that_wakes_up_to_an_answer_does_not_start_what_another_one_took_over(tmp_path: Path) -> None:
    async with scene(tmp_path) as play:
        async with play.router(PATIENT) as sleeper:
            await first_messages_hang(play)
            await falls_asleep(play, sleeper)
            play.witness.end_hanging("ok")
            await another_takes_over(play, sleeper)
        await play.assert_every_promise_was_kept()


async def test_a_router_that_wakes_up_to_a_failure_does_not_repeat_what_another_one_took_over(tmp_path: Path) -> None:
    async with scene(tmp_path) as play:
        waits = Waits(visibility_s=VISIBILITY_S, timeout_ms=PATIENT_MS, backoff_s=(0.02, 0.02))
        async with play.router(waits) as sleeper:
            await first_messages_hang(play)
            await falls_asleep(play, sleeper)
            play.witness.end_hanging("500")
            await another_takes_over(play, sleeper)
        await play.assert_every_promise_was_kept()


async def test_a_router_that_wakes_up_after_its_deadline_does_not_repeat_what_another_one_took_over(
    tmp_path: Path,
) -> None:
    async with scene(tmp_path) as play:
        waits = Waits(visibility_s=VISIBILITY_S, timeout_ms=800, backoff_s=(0.02, 0.02))
        async with play.router(waits) as sleeper:
            await first_messages_hang(play)
            await falls_asleep(play, sleeper)
            await another_takes_over(play, sleeper)
        await play.assert_every_promise_was_kept()


async def test_an_attempt_that_fails_after_its_lease_was_lost_is_not_repeated(tmp_path: Path) -> None:
    async with scene(tmp_path) as play:
        waits = Waits(visibility_s=VISIBILITY_S, timeout_ms=PATIENT_MS, backoff_s=(0.0, 0.0))
        async with play.router(waits) as sleeper:
            await first_messages_hang(play)
            await falls_asleep(play, sleeper)
            await another_takes_over(play, sleeper, then_fail=True)
        await play.assert_every_promise_was_kept()


async def first_messages_hang(play: Scene) -> None:
    play.witness.script = {f"run.g{group}.1": ["hang"] for group in range(GROUPS)}
    await play.publish(GROUPS, PER_GROUP)
    await play.witness.until_arrived(GROUPS)


async def falls_asleep(play: Scene, router: RouterProcess) -> None:
    await router.pause()
    await play.witness.router_gone()


async def another_takes_over(play: Scene, sleeper: RouterProcess, then_fail: bool = False) -> None:
    """Another router delivers everything before the sleeper wakes up, then both work side by side and stop.

    With `then_fail` what the sleeper still has in flight fails once it has noticed that its leases are lost.
    """
    play.witness.acked.clear()
    async with play.router(PATIENT) as other:
        await play.witness.until_acked(GROUPS * PER_GROUP)
        sleeper.resume()
        if then_fail:
            await until_in_hands(sleeper, GROUPS)
            play.witness.end_hanging("500")
        await both_work(play)
        ends = await asyncio.gather(sleeper.terminate(), other.terminate())
        assert [code for code, _ in ends] == [0, 0]
    await play.witness.router_stopped()


async def both_work(play: Scene) -> None:
    """New messages of the old groups and of many others are delivered, whoever does it."""
    names = [f"g{number}" for number in range(GROUPS)] + [f"new{number}" for number in range(40)]
    await play.publish_these([late_message(play.witness.url, name) for name in names])
    await play.witness.until_acked(GROUPS * PER_GROUP + len(names))


def late_message(url: str, group: str) -> Outgoing:
    pointer = MessagePointer(id=f"late.{group}.1", mediation_target=f"{url}/{group}")
    return Outgoing(encode_pointer(pointer).decode(), group)


async def until_in_hands(router: RouterProcess, count: int) -> None:
    """Until the router says that it holds so many messages."""
    async with asyncio.timeout(NOTICED_WITHIN_S), aiohttp.ClientSession() as session:
        while True:
            async with session.get(f"{router.url}/monitoring/in-flight-messages") as answer:
                if len(await answer.json()) == count:
                    return
