"""The seeded loop itself: virtual time, order by seed, callbacks in turn, no threads, and a death without clean-up."""

import asyncio
import threading

import pytest

from flowcatalyst.simulation.loop import DeadlockError, SeededLoop, ThreadsForbiddenError, run_seeded


def test_time_stands_still_while_anything_is_ready_and_then_jumps_to_the_next_timer() -> None:
    async def main(loop: SeededLoop) -> list[float]:
        times = [loop.time()]
        for _ in range(1000):
            await asyncio.sleep(0)
        times.append(loop.time())
        await asyncio.sleep(3600.0)
        times.append(loop.time())
        return times

    assert run_seeded(1, main) == [0.0, 0.0, 3600.0]


def orders_of_steps(seed: int) -> list[str]:
    async def main(loop: SeededLoop) -> list[str]:
        order: list[str] = []

        async def step(name: str) -> None:
            for _ in range(3):
                order.append(name)
                await asyncio.sleep(0)

        await asyncio.wait([loop.create_task(step(name)) for name in "abcd"])
        return order

    return run_seeded(seed, main)


def test_tasks_take_their_steps_in_an_order_drawn_from_the_seed() -> None:
    assert orders_of_steps(1) == orders_of_steps(1)
    assert len({tuple(orders_of_steps(seed)) for seed in range(20)}) > 15


@pytest.mark.parametrize("seed", range(20))
def test_plain_callbacks_run_in_the_order_they_were_scheduled_in(seed: int) -> None:
    async def main(loop: SeededLoop) -> list[int]:
        ran: list[int] = []
        for n in range(20):
            loop.call_soon(ran.append, n)
            await asyncio.sleep(0)
        await asyncio.sleep(1.0)
        return ran

    assert run_seeded(seed, main) == list(range(20))


def test_threads_are_forbidden() -> None:
    async def main(loop: SeededLoop) -> None:
        with pytest.raises(ThreadsForbiddenError):
            await asyncio.to_thread(threading.get_ident)
        with pytest.raises(ThreadsForbiddenError):
            loop.call_soon_threadsafe(print)

    run_seeded(1, main)


def test_a_deadlock_is_an_error_not_a_hang() -> None:
    async def main(loop: SeededLoop) -> None:
        await loop.create_future()

    with pytest.raises(DeadlockError):
        run_seeded(1, main)


def test_a_life_that_ends_runs_nothing_any_more_not_even_its_clean_up() -> None:
    said: list[str] = []

    async def main(loop: SeededLoop) -> None:
        async def live() -> None:
            loop.call_later(5.0, said.append, "timer")
            loop.call_soon(said.append, "callback")
            try:
                await asyncio.sleep(1.0)
                said.append("step")
            finally:
                if loop.time() < 10.0:
                    said.append("clean-up")

        loop.create_task_in_life(7, live())
        await asyncio.sleep(0.5)
        assert said == ["callback"]
        loop.end_life(7)
        await asyncio.sleep(20.0)

    run_seeded(1, main)
    assert said == ["callback"]


def test_what_dead_tasks_do_while_they_are_closed_has_no_effect() -> None:
    said: list[str] = []

    async def main(loop: SeededLoop) -> None:
        async def live() -> None:
            try:
                await asyncio.sleep(1.0)
            finally:
                loop.call_soon(said.append, "from the grave")

        loop.create_task_in_life(7, live())
        await asyncio.sleep(0.5)
        loop.end_life(7)

    run_seeded(1, main)
    assert said == []
