"""Waiting until somebody says so, or until a time."""

import asyncio

import pytest

from flowcatalyst.core.waiters import Waiters

pytestmark = pytest.mark.virtual_time


async def test_all_who_wait_are_woken_in_the_order_they_came() -> None:
    waiters, woken = Waiters(), list[int]()

    async def wait(number: int) -> None:
        assert await waiters.wait()
        woken.append(number)

    tasks = [asyncio.ensure_future(wait(number)) for number in range(3)]
    await asyncio.sleep(0)
    waiters.wake()
    waiters.wake()  # nobody is woken twice
    await asyncio.gather(*tasks)
    assert woken == [0, 1, 2]
    assert repr(waiters) == "<Waiters 0>"


async def test_a_call_before_the_wait_does_not_end_it() -> None:
    waiters = Waiters()
    waiters.wake()
    assert not await waiters.wait(asyncio.get_running_loop().time() + 5)


async def test_whoever_is_cancelled_waits_no_longer() -> None:
    waiters = Waiters()
    task = asyncio.ensure_future(waiters.wait(asyncio.get_running_loop().time() + 60))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert repr(waiters) == "<Waiters 0>"
    waiters.wake()
