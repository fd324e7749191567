"""The guide of message groups, as an operator follows it through the API: modes, sequences, and how to get unstuck."""

import pytest

from tests.api.dispatching import GROUPS, JOBS, Dispatching

GROUP = "account:123"
BLOCK, NEXT, IMMEDIATE = "BLOCK_ON_ERROR", "NEXT_ON_ERROR", "IMMEDIATE"


async def test_immediate_the_others_do_not_wait_for_one_that_fails(jobs: Dispatching) -> None:
    jobs.endpoint.fails("2", 500)
    gate = jobs.endpoint.hangs("2")
    for name in ("1", "2", "3"):
        await jobs.create(name, messageGroup=GROUP, mode=IMMEDIATE)
    await jobs.until("1", "COMPLETED")
    await jobs.until("3", "COMPLETED")
    await jobs.until("2", "IN_PROGRESS")
    gate.set()
    await jobs.until("2", "ERROR")


async def test_next_on_error_a_failed_job_is_skipped_and_retried_later(jobs: Dispatching) -> None:
    jobs.endpoint.fails("2", 500)
    for name in ("1", "2", "3"):
        await jobs.create(name, messageGroup=GROUP, mode=NEXT, maxRetries=1, retryDelaysSeconds=[1])
    await jobs.until("3", "COMPLETED")
    whole = await jobs.until("2", "COMPLETED")
    assert jobs.endpoint.started == ["1", "2", "3", "2"]
    assert [one["status"] for one in whole["attempts"]] == [500, 200]


async def test_block_on_error_the_group_waits_and_goes_on_when_a_retry_succeeds(jobs: Dispatching) -> None:
    jobs.endpoint.fails("2", 500)
    for name in ("1", "2", "3"):
        await jobs.create(name, messageGroup=GROUP, mode=BLOCK, maxRetries=1, retryDelaysSeconds=[0.5])
    failed = await jobs.until("2", "ERROR")
    assert failed["job"]["nextAttemptAt"] is not None
    assert failed["waiting"]["kind"] == "RETRY"
    await jobs.until("3", "COMPLETED")
    assert jobs.endpoint.started == ["1", "2", "2", "3"]


async def test_block_on_error_nothing_behind_a_parked_job_starts(jobs: Dispatching) -> None:
    await jobs.blocked("1", "2")
    await jobs.create("other", messageGroup="account:456", mode=BLOCK)
    await jobs.until("other", "COMPLETED")
    assert (await jobs.status("2"), jobs.endpoint.started) == ("PENDING", ["1", "other"])


@pytest.mark.parametrize("way", ["retry", "cancel", "edit", "mode", "retry-head", "skip-head"])
async def test_a_group_that_its_second_job_blocks_goes_on_by_each_way(jobs: Dispatching, way: str) -> None:
    jobs.endpoint.fails("2", 500)
    for name in ("1", "2", "3"):
        await jobs.create(name, messageGroup=GROUP, mode=BLOCK)
    await jobs.until("1", "COMPLETED")
    await jobs.until("2", "ERROR")
    assert await jobs.status("3") == "PENDING"
    match way:
        case "retry" | "cancel":
            answer = await jobs.act("2", way)
        case "edit":
            answer = await jobs.change("2", payload={"name": "edited"})
        case "mode":
            answer = await jobs.change("2", mode=NEXT)
        case _:
            answer = await jobs.client.post(f"{GROUPS}/{GROUP}/{way}")
    assert answer.status == 200, answer.text
    await jobs.until("3", "COMPLETED")
    tried_again = {"retry": ["2"], "retry-head": ["2"], "edit": ["edited"]}.get(way, [])
    assert jobs.endpoint.started == ["1", "2", *tried_again, "3"]
    second = {"cancel": "CANCELLED", "skip-head": "CANCELLED", "mode": "ERROR"}.get(way, "COMPLETED")
    await jobs.until("2", second)


@pytest.mark.parametrize("mode", [NEXT, BLOCK])
async def test_order_shipped_that_came_first_waits_for_order_created(jobs: Dispatching, mode: str) -> None:
    """The example of the guide; a job without a sequence comes after both."""
    group = "order:12345"
    await jobs.client.post(f"{GROUPS}/{group}/hold")
    await jobs.create("order.invoiced", code="order.invoiced", messageGroup=group, mode=mode)
    await jobs.create("order.shipped", code="order.shipped", messageGroup=group, sequence=2, mode=mode)
    await jobs.create("order.created", code="order.created", messageGroup=group, sequence=1, mode=mode)
    await jobs.client.post(f"{GROUPS}/{group}/release")
    last = await jobs.until("order.invoiced", "COMPLETED")
    assert jobs.endpoint.started == ["order.created", "order.shipped", "order.invoiced"]
    assert last["job"]["sequence"] == 99


async def test_a_lower_sequence_goes_first_whatever_came_first(jobs: Dispatching) -> None:
    """order.shipped comes before order.created, and waits for it."""
    gate = jobs.endpoint.hangs("first")
    await jobs.create("first", messageGroup=GROUP, mode=BLOCK, sequence=0)
    await jobs.until("first", "IN_PROGRESS")
    for name, sequence in (("later", None), ("shipped", 2), ("created", 1)):
        more = {} if sequence is None else {"sequence": sequence}
        await jobs.create(name, messageGroup=GROUP, mode=BLOCK, **more)
    gate.set()
    await jobs.until("later", "COMPLETED")
    assert jobs.endpoint.started == ["first", "created", "shipped", "later"]


async def test_each_job_goes_by_its_own_mode_in_one_group(jobs: Dispatching) -> None:
    jobs.endpoint.fails("skips", 500)
    jobs.endpoint.fails("blocks", 500)
    for name, mode in (("skips", NEXT), ("blocks", BLOCK), ("waits", NEXT), ("passes", IMMEDIATE)):
        await jobs.create(name, messageGroup=GROUP, mode=mode)
    await jobs.until("blocks", "ERROR")
    await jobs.until("passes", "COMPLETED")
    assert await jobs.status("waits") == "PENDING"
    assert [one for one in jobs.endpoint.started if one != "passes"] == ["skips", "blocks"]


async def test_the_queries_of_the_guide_work_as_written(jobs: Dispatching) -> None:
    await jobs.blocked("1", "2", group="order:12345")
    await jobs.create("other", messageGroup="order:6", mode=IMMEDIATE)
    await jobs.until("other", "COMPLETED")
    assert await jobs.listed("status=PENDING&mode=BLOCK_ON_ERROR") == ["2"]
    assert await jobs.listed("messageGroup=order:12345") == ["2", "1"]


async def test_the_steps_for_jobs_that_are_stuck(jobs: Dispatching) -> None:
    await jobs.blocked("1", "2", "3")
    stuck = await jobs.whole("3")
    assert stuck["waiting"] == {"kind": "JOB", "jobId": jobs.ids["1"], "until": None}
    assert "failed (HTTP 500) and waits for a person" in stuck["waitsFor"]
    assert (stuck["place"]["ahead"], stuck["place"]["head"]["id"]) == (2, jobs.ids["1"])
    # The job in ERROR, its attempts, the fault mended, and a retry.
    blocking = (await jobs.client.get(f"{JOBS}/{stuck['waiting']['jobId']}")).json
    assert blocking["job"]["status"] == "ERROR"
    assert [(one["status"], one["error"]) for one in blocking["attempts"]] == [(500, "HTTP_ERROR")]
    await jobs.act("1", "retry")
    await jobs.until("3", "COMPLETED")
    history = (await jobs.whole("1"))["history"]
    assert [(one["actor"], one["action"]) for one in history] == [("anonymous", "retry")]


async def test_the_steps_for_jobs_out_of_order(jobs: Dispatching) -> None:
    """They were made with a mode that lets the next ones pass: it is seen, and put right for those that wait."""
    jobs.endpoint.fails("2", 500)
    for name in ("1", "2", "3"):
        await jobs.create(name, messageGroup=GROUP, mode=NEXT, sequence=int(name))
    await jobs.until("3", "COMPLETED")
    await jobs.act("2", "retry")
    await jobs.until("2", "COMPLETED")
    assert jobs.endpoint.started == ["1", "2", "3", "2"]
    # Group and sequence are as they should be, the mode is not.
    (shown,) = (await jobs.client.get(f"{JOBS}?messageGroup={GROUP}&limit=1")).json["items"]
    assert (shown["messageGroup"], shown["sequence"], shown["mode"]) == (GROUP, 3, NEXT)
    gate = jobs.endpoint.hangs("4")
    jobs.endpoint.fails("5", 500)
    for name in ("4", "5", "6"):
        await jobs.create(name, messageGroup=GROUP, mode=NEXT, sequence=int(name))
    await jobs.until("4", "IN_PROGRESS")
    assert (await jobs.change("5", mode=BLOCK)).json["mode"] == BLOCK
    gate.set()
    await jobs.until("5", "ERROR")
    assert await jobs.status("6") == "PENDING"
    await jobs.act("5", "retry")
    await jobs.until("6", "COMPLETED")
    assert jobs.endpoint.started[4:] == ["4", "5", "5", "6"]


async def test_a_group_that_was_blocked_is_blocked_after_an_edit_that_does_not_help(jobs: Dispatching) -> None:
    await jobs.blocked("1", "2")
    jobs.endpoint.fails("edited", 400)
    await jobs.change("1", payload={"name": "edited"})
    whole = await jobs.until("1", "ERROR")
    assert [one["status"] for one in whole["attempts"]] == [500, 400]
    assert await jobs.status("2") == "PENDING"
