"""Looking at jobs: filters, pages, and one with all that is known of it."""

from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import quote

import pytest

from flowcatalyst.core.clock import SystemClock
from tests.api.dispatching import JOBS, Dispatching, on_sqlite
from tests.api.running import until

BLOCK = "BLOCK_ON_ERROR"


async def test_a_list_goes_on_where_the_page_before_ended(jobs: Dispatching) -> None:
    for number in range(5):
        await jobs.create(str(number))
    seen: list[str] = []
    query = "limit=2"
    while True:
        page = (await jobs.client.get(f"{JOBS}?{query}")).json
        seen += [one["id"] for one in page["items"]]
        if page["next"] is None:
            break
        query = f"limit=2&cursor={page['next']}"
    assert seen == [jobs.ids[name] for name in ("4", "3", "2", "1", "0")]


async def test_every_filter_finds_what_it_says(jobs: Dispatching) -> None:
    jobs.endpoint.fails("one", 400)
    await jobs.create(
        "one",
        code="billing",
        kind="EVENT",
        messageGroup="g/1",
        mode=BLOCK,
        dispatchPoolCode="POOL-LOW",
        metadata={"tenant": "acme", "url": "a:b"},
    )
    await jobs.create("two", targetUrl=jobs.server.url("/other?key=secret"), metadata={"tenant": "acme"})
    await jobs.until("one", "ERROR")
    await jobs.until("two", "COMPLETED")
    made_at = datetime.fromisoformat((await jobs.whole("two"))["job"]["createdAt"])
    before, after = quote((made_at - timedelta(days=1)).isoformat()), quote((made_at + timedelta(days=1)).isoformat())
    for query in (
        "code=billing",
        "kind=EVENT",
        "messageGroup=g/1",
        f"mode={BLOCK}",
        "dispatchPoolCode=POOL-LOW",
        f"targetUrl={jobs.server.url('/hook')}",
        "status=ERROR",
        "parked=true",
        "metadata=tenant:acme&metadata=url:a:b",
        "status=ERROR&code=billing&metadata=tenant:acme&parked=true",
    ):
        assert await jobs.listed(query) == ["one"], query
    both = ["two", "one"]
    assert await jobs.listed("metadata=tenant:acme") == both
    assert await jobs.listed(f"targetUrl={jobs.server.url('/')}") == both
    assert await jobs.listed(f"createdFrom={before}&createdBefore={after}") == both
    assert await jobs.listed("status=COMPLETED&parked=false") == ["two"]
    nobody = ("metadata=tenant:other", "code=bill", "kind=TASK&parked=true")
    for query in (f"createdFrom={after}", f"createdBefore={before}", *nobody):
        assert await jobs.listed(query) == [], query


async def test_a_job_whose_attempt_runs_is_in_progress(jobs: Dispatching) -> None:
    gate = jobs.endpoint.hangs("1")
    await jobs.create("1", messageGroup="g", mode=BLOCK)
    await jobs.create("2", messageGroup="g", mode=BLOCK)
    running = await jobs.until("1", "IN_PROGRESS")
    assert (running["waiting"]["kind"], running["waitsFor"]) == ("ANSWER", "It waits for the answer to attempt 1.")
    assert await jobs.listed("status=IN_PROGRESS") == ["1"]
    assert "1" not in await jobs.listed("status=QUEUED")
    assert [one["status"] for one in (await jobs.client.get(f"{JOBS}?messageGroup=g")).json["items"]][
        -1
    ] == "IN_PROGRESS"
    (await jobs.act("1", "cancel")).assert_problem(409, "is being delivered right now")
    gate.set()
    await jobs.until("2", "COMPLETED")
    assert await jobs.listed("status=IN_PROGRESS") == []


async def test_a_finished_job_waits_for_nothing_and_shows_its_attempt(jobs: Dispatching) -> None:
    await jobs.create("1", metadata={"tenant": "acme"})
    whole = await jobs.until("1", "COMPLETED")
    (attempt,) = whole["attempts"]
    assert (attempt["attempt"], attempt["status"], attempt["error"]) == (1, 200, "NONE")
    assert (whole["waiting"], whole["waitsFor"], whole["place"], whole["history"]) == (None, None, None, [])
    assert whole["job"]["finishedAt"] is not None


async def test_a_scheduled_job_says_until_when_it_waits(jobs: Dispatching) -> None:
    at = datetime.fromtimestamp(SystemClock().wall() + 3600, UTC).isoformat()
    await jobs.create("1", scheduledFor=at, messageGroup="g", mode=BLOCK)
    whole = await jobs.whole("1")
    assert (whole["job"]["status"], whole["waiting"]["kind"]) == ("PENDING", "TIME")
    assert datetime.fromisoformat(whole["waiting"]["until"]) == datetime.fromisoformat(at)


async def test_secrets_are_masked_wherever_they_may_be(jobs: Dispatching) -> None:
    await jobs.create(
        "1",
        targetUrl=jobs.server.url("/hook?signature=hush-hush"),
        headers={"Authorization": "Bearer hush-hush", "X-Tenant": "acme"},
        payload={"name": "1", "password": "hush-hush", "balance": 5},
    )
    await jobs.until("1", "COMPLETED")
    answer = await jobs.client.get(f"{JOBS}/{jobs.ids['1']}")
    assert "hush-hush" not in answer.text
    assert answer.json["headers"] == {"Authorization": "***", "X-Tenant": "acme"}
    assert '"balance":5' in answer.json["payload"]


HOSTILE: dict[str, tuple[str, str]] = {
    "unknown status": ("status=SLEEPING", "status"),
    "unknown filter": ("statuss=ERROR", "did you mean 'status'"),
    "huge code": (f"code={'x' * 5000}", "code"),
    "NUL": ("code=%00", "code has a NUL character"),
    "NUL in group": ("messageGroup=a%00b", "messageGroup has a NUL character"),
    "NUL in metadata": ("metadata=a:%00", "metadata has a NUL character"),
    "metadata without a value": ("metadata=tenant", "metadata has to be KEY:VALUE"),
    "metadata twice": ("metadata=a:1&metadata=a:2", "twice"),
    "much metadata": ("&".join(f"metadata=k{number}:v" for number in range(11)), "metadata"),
    "a target with its query": ("targetUrl=http://x.test/?key=", "targetUrl has to end before the query"),
    "no time": ("createdFrom=yesterday", "createdFrom"),
    "cursor": ("cursor=-1", "cursor"),
    "large cursor": (f"cursor={2**70}", "cursor"),
    "no limit": ("limit=0", "limit"),
    "parked": ("parked=perhaps", "parked"),
}


@pytest.mark.parametrize("name", HOSTILE)
@on_sqlite
async def test_a_hostile_filter_gets_one_clear_sentence(jobs: Dispatching, name: str) -> None:
    query, words = HOSTILE[name]
    (await jobs.client.get(f"{JOBS}?{query}")).assert_problem(400, words)


@on_sqlite
async def test_a_filter_longer_than_a_url_may_be_is_refused_at_the_door(jobs: Dispatching) -> None:
    (await jobs.client.get(f"{JOBS}?metadata=k:{'v' * 9000}")).assert_problem(414, "the URL is longer than")


@pytest.mark.parametrize(
    "text", ["%' OR 1=1 --", "%", "_", "\\", "'; DROP TABLE jobs", "a\nb", "\U0001f600", "{}", "*"]
)
async def test_what_means_something_to_a_database_is_only_text(jobs: Dispatching, text: str) -> None:
    await jobs.create("plain", code="plain", metadata={"k": "v"})
    await jobs.create("odd", code=text, messageGroup=text, metadata={text: text})
    sought = quote(text, safe="")
    for query in (f"code={sought}", f"messageGroup={sought}"):
        assert await jobs.listed(query) == ["odd"], query
    assert await jobs.listed(f"targetUrl=http{sought}") == []
    if ":" not in text:
        assert await jobs.listed(f"metadata={sought}:{sought}") == ["odd"]


@pytest.mark.parametrize("job_id", ["nobody", "%00", "a" * 256, "%F0%9F%98%80", "..%2F"])
async def test_a_job_that_is_not_there_is_not_found(jobs: Dispatching, job_id: str) -> None:
    (await jobs.client.get(f"{JOBS}/{job_id}")).assert_problem(404)


async def test_a_job_behind_many_says_how_many(jobs: Dispatching) -> None:
    await jobs.blocked("0", *map(str, range(1, 6)))
    whole = await jobs.whole("5")
    assert (whole["place"]["ahead"], whole["place"]["more"]) == (5, False)
    assert "; 4 of its group are between them." in whole["waitsFor"]
    head = await jobs.whole("0")
    assert (head["place"], head["waiting"]["kind"]) == ({"ahead": 0, "more": False, "head": None}, "PERSON")


async def test_a_retry_that_is_due_later_says_when(jobs: Dispatching) -> None:
    jobs.endpoint.fails("1", 500)
    await jobs.create("1", maxRetries=1, retryDelaysSeconds=[3600])
    whole = await jobs.until("1", "ERROR")
    assert whole["waiting"] == {"kind": "RETRY", "jobId": None, "until": whole["job"]["nextAttemptAt"]}
    assert whole["job"]["parked"] is False

    async def unparked() -> bool:
        found: list[Any] = await jobs.listed("status=ERROR&parked=false")
        return found == ["1"]

    await until(unparked)
