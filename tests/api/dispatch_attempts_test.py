"""The attempts of jobs, as the API shows them: how long one may take, what is kept of it, and what costs none."""

from tests.api.dispatching import Dispatching
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
