"""The attempts of jobs, as the API shows them: how long one may take, what is kept of it, and what costs none."""

from datetime import datetime, timedelta
from pathlib import Path

import pytest

from tests.api.dispatching import Dispatching, Endpoint, dispatching
from tests.support.http_servers import Call, always, in_turn, raw_server, reply


async def never_answers(call: Call) -> None:
    await call.until_client_is_gone()


async def test_an_attempt_is_cut_off_by_the_timeout_of_its_job_and_the_next_one_follows(jobs: Dispatching) -> None:
    """A machine that is busy may cut off some of the next ones too."""
    async with raw_server(in_turn(never_answers, always(reply(200)))) as server:
        patient = {"maxRetries": 100, "retryDelaysSeconds": [0.01]}
        await jobs.create("1", targetUrl=server.url("/hangs"), timeoutSeconds=0.5, **patient)
        whole = await jobs.until("1", "COMPLETED")
    first, last = whole["attempts"][0], whole["attempts"][-1]
    assert (first["status"], first["error"], first["counts"]) == (None, "TIMEOUT", True)
    assert "did not answer completely before the deadline" in first["detail"]
    assert first["durationMs"] >= 499
    assert (last["status"], last["error"], last["attempt"]) == (200, "NONE", len(whole["attempts"]))
    assert whole["job"]["failures"] == last["attempt"] - 1
    assert [call.headers["x-flowcatalyst-attempt"] for call in server.requests][:2] == ["1", "2"]


async def breaks_off(call: Call) -> None:
    call.reset()


async def test_each_attempt_is_kept_with_its_start_duration_status_kind_of_error_and_answer(jobs: Dispatching) -> None:
    answers = (
        always(reply(500, b"the shop is closed")),
        breaks_off,
        always(reply(429, b"slow down", "Retry-After: 1")),
        always(reply(200, b'{"ack":false,"delaySeconds":1}')),
        always(reply(200, b"thanks")),
    )
    async with raw_server(in_turn(*answers)) as server:
        await jobs.create("1", targetUrl=server.url("/h"), maxRetries=2, retryDelaysSeconds=[0.01])
        whole = await jobs.until("1", "COMPLETED")
    made = whole["attempts"]
    assert [(one["attempt"], one["status"], one["error"], one["counts"], one["excerpt"]) for one in made] == [
        (1, 500, "HTTP_ERROR", True, "the shop is closed"),
        (2, None, "NETWORK_ERROR", True, ""),
        (3, 429, "RATE_LIMITED", False, "slow down"),
        (4, 200, "NOT_ACKED", False, '{"ack":false,"delaySeconds":1}'),
        (5, 200, "NONE", False, ""),
    ]
    moments = [datetime.fromisoformat(whole["job"]["createdAt"])]
    for one in made:
        began = datetime.fromisoformat(one["beganAt"])
        moments += [began, began + timedelta(milliseconds=one["durationMs"])]
    assert moments == sorted(moments)
    assert all(one["durationMs"] > 0 for one in made)
    assert (whole["job"]["attempts"], whole["job"]["failures"]) == (5, 2)


async def test_a_stop_that_cuts_an_attempt_off_costs_its_job_no_retry(
    tmp_path: Path, store: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flowcatalyst.router.engine.POOL_DRAIN_S", 0.05)
    endpoint = Endpoint()
    async with raw_server(endpoint) as server:
        async with dispatching(tmp_path, platform=store) as jobs:
            endpoint.hangs("1")
            rules = {"messageGroup": "account:123", "mode": "BLOCK_ON_ERROR", "maxRetries": 1}
            for name in ("1", "2"):
                await jobs.create(name, targetUrl=server.url("/hook"), retryDelaysSeconds=[0.01], **rules)
            await jobs.until("1", "IN_PROGRESS")
            ids = jobs.ids
        endpoint.gates.clear()
        endpoint.fails("1", 500)
        async with dispatching(tmp_path, platform=store, enabled=False) as jobs:
            jobs.ids = ids
            for name in ("1", "2"):
                whole = await jobs.whole(name)
                assert (whole["job"]["status"], whole["job"]["failures"], whole["attempts"]) == ("PENDING", 0, [])
        async with dispatching(tmp_path, platform=store) as jobs:
            jobs.ids = ids
            await jobs.until("2", "COMPLETED")
            made = (await jobs.whole("1"))["attempts"]
    assert endpoint.started == ["1", "1", "1", "2"]
    assert [(one["attempt"], one["status"]) for one in made] == [(1, 500), (2, 200)]
