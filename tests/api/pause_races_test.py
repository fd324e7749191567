"""What a subscription is said to be, paused or not, is what it is: whoever else says something at the same time."""

import asyncio

import pytest

from flowcatalyst.core.errors import QueueUnavailableError
from flowcatalyst.dispatch.store.contract import JobStateError
from tests.api.subscribing import SUBSCRIPTIONS, Subscribing

ROUNDS = 10


async def test_a_pause_and_a_resume_at_the_same_time_leave_what_is_shown(shop: Subscribing) -> None:
    await shop.subscribe("orders", mode="BLOCK_ON_ERROR")
    names = [str(number) for number in range(ROUNDS)]
    shown = set()
    for number, name in enumerate(names):
        acts = ("pause", "resume") if number % 2 else ("resume", "pause")
        answers = await asyncio.gather(*(shop.act("orders", act) for act in acts))
        assert {answer.status for answer in answers} == {200}
        status = (await shop.client.get(f"{SUBSCRIPTIONS}/orders")).json["status"]
        shown.add(status)
        await shop.send(name, messageGroup="g")
        if status == "PAUSED":
            job = (await shop.unfinished("orders"))[0]
            assert (await shop.client.get(f"/api/dispatch-jobs/{job['id']}")).json["waiting"]["kind"] == "RESUME"
            await shop.act("orders", "resume")
        await shop.until_got("orders", *names[: number + 1])
    assert shown <= {"ACTIVE", "PAUSED"}


async def test_a_pause_that_is_said_once_more_is_carried_out_once_more(
    shop: Subscribing, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A router did not answer the first one, or the database was gone in the middle of it."""
    await shop.subscribe("orders", mode="BLOCK_ON_ERROR")
    store, asked = shop.running.app.jobs, []
    assert store is not None
    real = store.recall

    async def recall(*args: object, **options: object) -> object:
        asked.append(options)
        if len(asked) == 1:
            raise QueueUnavailableError("away")
        if len(asked) == 2:
            raise JobStateError("a router did not answer")
        return await real(*args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(store, "recall", recall)
    statuses = [(await shop.change("orders", status="PAUSED")).status for _ in range(3)]
    assert statuses == [503, 409, 200]
    assert [one["subscription"] for one in asked] == ["orders"] * 3
    await shop.send("1", messageGroup="g")
    await shop.subscribe("others")
    await shop.send("2")
    await shop.until_got("others", "2")
    assert shop.subscriber.names("orders") == []
