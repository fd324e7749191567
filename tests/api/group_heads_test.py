"""Acting on the head of a group: the message that was meant, or none."""

from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import quote

import pytest

from flowcatalyst.control.pool_settings import RetrySettings
from flowcatalyst.core.message import MessagePointer, encode_pointer
from flowcatalyst.queues.contract import Outgoing
from tests.api.router_groups_test import GROUPS, act, blocked
from tests.api.running import Running, run_router
from tests.support.http_servers import Gate, raw_server


@pytest.fixture
async def impatient(tmp_path: Path) -> AsyncIterator[Running]:
    """A failure goes to its queue at once, for 30 s."""
    async with run_router(tmp_path, retry=RetrySettings(backoff_s=[])) as running:
        yield running


@pytest.mark.parametrize("what", ["retry-head", "skip-head"])
async def test_a_head_that_is_another_by_now_is_not_acted_on(impatient: Running, what: str) -> None:
    await blocked(impatient, "m-1", "m-2")
    one = (await impatient.client.get(f"{GROUPS}/g")).json
    (await act(impatient, "g", f"{what}?message=m-0")).assert_problem(409, "is 'm-1' by now, not 'm-0'")
    (await act(impatient, "g", f"{what}?message=m-1&pool=POOL-HIGH")).assert_problem(404, "group 'g'")
    meant = f"message={quote(one['head']['brokerId'], safe='')}&pool={one['pool']}"
    assert (await act(impatient, "g", f"{what}?{meant}")).json["done"]


async def test_a_head_that_is_another_by_now_is_not_acted_on_after_a_restart_either(tmp_path: Path) -> None:
    retry = RetrySettings(backoff_s=[])
    async with run_router(tmp_path, retry=retry) as before:
        await blocked(before, "m-1")
    async with run_router(tmp_path, retry=retry) as after:
        (await act(after, "g", "skip-head?message=m-0")).assert_problem(409, "is 'm-1' by now, not 'm-0'")
        (await act(after, "g", "skip-head?pool=POOL-HIGH")).assert_problem(404, "group 'g'")
        assert (await act(after, "g", "skip-head?message=m-1")).json["done"]


async def test_of_two_groups_of_one_name_the_pool_says_which_is_meant(router: Running) -> None:
    gate = Gate()
    async with raw_server(gate) as server:
        for name, pool in (("m-1", "POOL-LOW"), ("m-2", "POOL-HIGH")):
            copy = MessagePointer(name, server.url(), pool_code=pool, message_group_id="g")
            await router.app.queues[{"POOL-LOW": "low", "POOL-HIGH": "high"}[pool]].publish(
                [Outgoing(encode_pointer(copy).decode())]
            )
        await server.until(lambda server: len(server.requests) == 2)
        (await act(router, "g", "skip-head")).assert_problem(409, "POOL-HIGH, POOL-LOW", "?pool=")
        done = (await act(router, "g", "skip-head?pool=POOL-HIGH")).json
        assert done["text"].startswith("an attempt of message m-2 is under way")
        gate.opened.set()


async def test_what_explain_and_the_page_act_on_is_the_message_that_they_show(impatient: Running) -> None:
    await blocked(impatient, "m-1", "m-2")
    head = (await impatient.client.get(f"{GROUPS}/g")).json["head"]
    for name in ("g", "m-2"):
        actions = (await impatient.client.get(f"/monitoring/explain/{name}")).json["actions"]
        found = {one["what"]: (one["path"], "message m-1" in one["text"]) for one in actions}
        assert found["retry-head"] == (f"/monitoring/messages/{head['brokerId']}/retry", True)
        assert found["skip-head"] == (f"/monitoring/messages/{head['brokerId']}/skip", True)
