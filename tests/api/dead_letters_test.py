import json
import re
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from flowcatalyst.api.listing import MAX_LIST_BYTES
from flowcatalyst.api.router.dead_letters import SHOWN_CHARS
from flowcatalyst.api.secrets import HIDDEN_ECHO
from flowcatalyst.queues.contract import Outgoing
from tests.api.running import Running, on_idle_router, run_router, until
from tests.support.http_servers import always, raw_server, reply

TOKEN = "s3cret-token"
LETTERS_OF_1970 = Path(__file__).parent.parent / "unit" / "data" / "dead_letters_version_1.sql"


async def test_a_message_refused_by_its_endpoint_is_listed_with_the_reason_and_without_its_token(
    router: Running,
) -> None:
    async with raw_server(always(reply(422, b"no thanks, " + TOKEN.encode()))) as endpoint:
        await router.send(id="m-1", mediationTarget=endpoint.url("/x"), messageGroupId="g", authToken=TOKEN)
        (letter,) = await router.until_dead(1)
    assert letter["number"] == 1
    assert letter["recordedAt"].endswith("Z")
    wanted = {
        "messageId": "m-1",
        "queue": "default",
        "group": "g",
        "status": 422,
        "excerpt": "no thanks, ***",
        "failures": 1,
        "body": None,
        "message": {
            "id": "m-1",
            "mediationTarget": endpoint.url("/x"),
            "poolCode": "DEFAULT-POOL",
            "mediationType": "HTTP",
            "messageGroupId": "g",
            "highPriority": False,
            "dispatchMode": None,
            "payload": None,
            "contentType": None,
            "headers": None,
        },
    }
    assert {key: letter[key] for key in wanted} == wanted
    assert letter["reason"]
    for path in ("/monitoring/dead-letters", "/monitoring/dead-letters/1"):
        assert TOKEN not in (await router.client.get(path)).text
    assert (await router.client.get("/monitoring/dead-letters/1")).json == letter


async def test_payload_and_headers_are_shown_without_their_secrets(router: Running) -> None:
    async with raw_server(always(reply(422, f"no {TOKEN}, no {TOKEN[::-1]}".encode()))) as endpoint:
        await router.send(
            mediationTarget=endpoint.url("/x"),
            payload={"password": "hush-hush", "order": 7},
            headers={"X-Tenant": "acme", "Authorization": f"Basic {TOKEN}", "Cookie": TOKEN[::-1]},
        )
        (letter,) = await router.until_dead(1)
    message = letter["message"]
    assert json.loads(message["payload"]) == {"password": "***", "order": 7}
    assert message["headers"] == {"X-Tenant": "acme", "Authorization": "***", "Cookie": "***"}
    shown = (await router.client.get("/monitoring/dead-letters")).text
    for secret in (TOKEN, TOKEN[::-1], "hush-hush"):
        assert secret not in shown


async def test_a_letter_of_a_raw_queue_is_shown_without_the_secrets_of_its_queue(tmp_path: Path) -> None:
    async with raw_server(always(reply(422, f"no {TOKEN}".encode()))) as endpoint:
        raw = {"target": endpoint.url("/x"), "headers": {"X-Api-Key": TOKEN}}
        queues = [{"name": "shop", "uri": "embedded:shop", "raw": raw}]
        async with run_router(tmp_path, queues=queues) as router:
            await router.app.queues["shop"].publish([Outgoing('{"token": "abc", "id": "1"}', "g")])
            (letter,) = await router.until_dead(1)
            refused = await router.client.post("/api/messages?queue=shop", {"mediationTarget": endpoint.url("/x")})
            refused.assert_problem(400, "publish to it with flowcatalyst publish --queue shop --payload")
            (await router.client.post("/api/seed/messages?queue=shop")).assert_problem(400, "queue has to be one of")
    assert (letter["message"], letter["body"]) == (None, '{"token":"***","id":"1"}')
    assert letter["excerpt"] == "no ***"
    assert letter["messageId"].startswith("embedded-")


async def test_a_body_that_is_no_message_is_shown_with_its_token_masked(router: Running) -> None:
    body = f'{{"authToken": "{TOKEN}", "mediationTarget": '
    await router.app.queues["default"].publish([Outgoing(body, "g")])
    (letter,) = await router.until_dead(1)
    assert (letter["message"], letter["messageId"]) == (None, "")
    assert letter["body"] == '{"authToken": "***", "mediationTarget": '


async def test_a_wrapped_message_is_shown_without_the_token_inside(router: Running) -> None:
    inner = json.dumps({"id": "m", "mediationTarget": "http://h.test/?key=s3cret", "authToken": TOKEN})
    body = json.dumps({"Type": "Notification", "Message": json.dumps({"Message": inner})})
    await router.app.queues["default"].publish([Outgoing(body, "g")])
    (letter,) = await router.until_dead(1)
    assert "s3cret" not in str(letter)
    assert '"Type":"Notification"' in letter["body"]


async def test_what_an_endpoint_repeats_of_token_and_query_is_shown_nowhere(
    router: Running, capfd: pytest.CaptureFixture[str]
) -> None:
    token, query = "s3cret=to/ken", "sig=s3cret%2Fsig"
    said = json.dumps({"no": f"Bearer {token}"}).replace("=", "\\u003d").encode()
    async with raw_server(always(reply(422, said))) as endpoint:
        target = endpoint.url(f"/x?{query}")
        await router.send(id="m-1", mediationTarget=target, messageGroupId="g", authToken=token)
        await router.until_dead(1)
        endpoint.script = always(reply(404, f"no /x?{query} here".encode()))
        await router.send(id="m-2", mediationTarget=target, messageGroupId="g", authToken=token)
        first, second = await router.until_dead(2)
    assert first["excerpt"] == HIDDEN_ECHO
    assert second["excerpt"] == "no /x?*** here"
    assert second["message"]["mediationTarget"] == endpoint.url("/x?***")
    for path in ("dead-letters", "dead-letters/1", "warnings", "circuit-breakers", "health", "in-flight-messages"):
        assert "s3cret" not in (await router.client.get(f"/monitoring/{path}")).text, path
    assert "s3cret" not in (await router.client.get("/metrics")).text
    assert "s3cret" not in str(capfd.readouterr())


async def publish_unreadable(router: Running, bodies: list[str]) -> None:
    await router.app.queues["default"].publish([Outgoing(body, "g") for body in bodies])


@pytest.mark.thorough
async def test_a_list_is_no_larger_than_a_page_and_says_where_the_rest_is(router: Running) -> None:
    """Control characters take six times their size in JSON."""
    for _ in range(4):
        await publish_unreadable(router, ["\x01" * 60_000] * 10)
    await router.until_dead(40)
    path, seen, pages = "/monitoring/dead-letters?limit=1000", [], 0
    while path:
        answer = await router.client.get(path)
        assert len(answer.text) <= MAX_LIST_BYTES
        seen += [letter["number"] for letter in answer.json]
        pages += 1
        link = re.fullmatch('<(.+)>; rel="next"', answer.headers.get("Link", ""))
        path = link[1] if link else ""
    assert seen == list(range(1, 41))
    assert pages > 10


async def test_of_a_large_body_only_the_beginning_is_shown(router: Running) -> None:
    await publish_unreadable(router, ["x" * SHOWN_CHARS, "x" * (SHOWN_CHARS + 1), "y" * 200_000])
    letters = await router.until_dead(3)
    assert [len(letter["body"]) for letter in letters] == [SHOWN_CHARS] * 3
    assert [letter["bodyTruncated"] for letter in letters] == [False, True, True]
    answer = await router.client.post("/monitoring/dead-letters/3/replay")
    assert answer.json == {"replayed": 1}
    await router.until_dead(3)
    again = await router.app.dead_letters.get(4)
    assert again is not None
    assert again.body == "y" * 200_000  # what is replayed is all of it


async def test_a_replayed_letter_is_delivered_and_forgotten(router: Running) -> None:
    async with raw_server(always(reply(400))) as endpoint:
        await router.send(id="m-1", mediationTarget=endpoint.url(), messageGroupId="g")
        (letter,) = await router.until_dead(1)
        endpoint.script = always(reply(200))
        answer = await router.client.post(f"/monitoring/dead-letters/{letter['number']}/replay")
        assert (answer.status, answer.json) == (200, {"replayed": 1})
        await endpoint.until(lambda server: len(server.requests) == 2)
        assert endpoint.requests[1].body == b'{"messageId":"m-1"}'
        await router.until_settled()
    assert (await router.client.get("/monitoring/dead-letters")).json == []


async def test_all_letters_can_be_replayed_at_once(router: Running) -> None:
    async with raw_server(always(reply(400))) as endpoint:
        for number in range(3):
            await router.send(id=f"m-{number}", mediationTarget=endpoint.url(), messageGroupId="g")
        await router.until_dead(3)
        endpoint.script = always(reply(200))
        answer = await router.client.post("/monitoring/dead-letters/replay")
        assert (answer.status, answer.json) == (200, {"replayed": 3, "matching": 3, "dryRun": False})
        await router.until_settled()
        again = [request.body for request in endpoint.requests[3:]]
        assert again == [f'{{"messageId":"m-{number}"}}'.encode() for number in range(3)]
    assert (await router.client.get("/monitoring/dead-letters")).json == []


async def test_letters_are_listed_in_pages_oldest_first(router: Running) -> None:
    for number in range(5):
        await router.send(id=f"m-{number}", mediationTarget=router.receiver("client-error"), messageGroupId="g")
    await router.until_dead(5)
    answer = await router.client.get("/monitoring/dead-letters?limit=2")
    assert answer.headers["Link"] == '</monitoring/dead-letters?limit=2&after=2>; rel="next"'
    page = answer.json
    assert [letter["messageId"] for letter in page] == ["m-0", "m-1"]
    page = (await router.client.get(f"/monitoring/dead-letters?limit=2&after={page[-1]['number']}")).json
    assert [letter["messageId"] for letter in page] == ["m-2", "m-3"]
    answer = await router.client.get(f"/monitoring/dead-letters?limit=1&after={page[-1]['number']}")
    assert [letter["messageId"] for letter in answer.json] == ["m-4"]
    assert "Link" not in answer.headers


async def test_letters_can_be_removed_one_by_one_and_all_at_once(router: Running) -> None:
    for number in range(3):
        await router.send(mediationTarget=router.receiver("client-error"), messageGroupId=f"g-{number}")
    first, *_ = await router.until_dead(3)
    path = f"/monitoring/dead-letters/{first['number']}"
    assert (await router.client.delete(path)).status == 204
    (await router.client.delete(path)).assert_problem(404, "no dead letter")
    answer = await router.client.delete("/monitoring/dead-letters")
    assert (answer.status, answer.json) == (200, {"purged": 2, "matching": 2, "dryRun": False})
    assert (await router.client.get("/monitoring/dead-letters")).json == []


@on_idle_router
async def test_an_unknown_letter_is_not_found(idle_router: Running) -> None:
    (await idle_router.client.get("/monitoring/dead-letters/77")).assert_problem(404, "no dead letter 77")
    (await idle_router.client.post("/monitoring/dead-letters/77/replay")).assert_problem(404, "no dead letter 77")
    (await idle_router.client.get("/monitoring/dead-letters/x")).assert_problem(404)
    (await idle_router.client.get(f"/monitoring/dead-letters/{2**63}")).assert_problem(400, "number")
    (await idle_router.client.get(f"/monitoring/dead-letters?after={2**63}")).assert_problem(400, "after")


async def test_a_letter_of_a_queue_that_is_gone_cannot_be_replayed(router: Running) -> None:
    await router.send(mediationTarget=router.receiver("client-error"))
    (letter,) = await router.until_dead(1)
    queue = router.app.queues.pop("default")
    try:
        answer = await router.client.post(f"/monitoring/dead-letters/{letter['number']}/replay")
        answer.assert_problem(409, "'default'")
    finally:
        router.app.queues["default"] = queue
    assert len((await router.client.get("/monitoring/dead-letters")).json) == 1


@pytest.mark.parametrize(
    ("settings", "left"), [({}, 0), ({"max_age_days": 0}, 4), ({"max_age_days": 0, "max_count": 3}, 3)]
)
async def test_letters_that_an_older_version_left_are_kept_within_the_bounds_of_the_settings(
    tmp_path: Path, settings: dict[str, int], left: int
) -> None:
    with closing(sqlite3.connect(tmp_path / "dead-letters.db")) as connection:
        connection.executescript(LETTERS_OF_1970.read_text())
    async with run_router(tmp_path, dead_letters=settings) as router:

        async def dropped() -> bool:
            return sum(router.app.dead_letters.dropped.values()) == 4 - left

        await until(dropped)
        shown = (await router.client.get("/monitoring/dead-letters")).json
        assert [letter["number"] for letter in shown] == [1, 3, 4, 5][4 - left :]
        metrics = (await router.client.get("/metrics")).text
        assert f"flowcatalyst_dead_letters {left}\n" in metrics
        bound = "count" if settings else "age"
        assert f'flowcatalyst_dead_letters_dropped_total{{bound="{bound}"}} {4 - left}\n' in metrics
        events = (await router.client.get("/monitoring/audit?action=dead_letter_drop")).json
        assert [(one["who"], one["count"]) for one in events] == ([("retention", 4 - left)] if left < 4 else [])
        warnings = (await router.client.get("/monitoring/warnings")).json
        assert [one["code"] for one in warnings] == (["DEAD_LETTERS_DROPPED"] if left == 3 else [])


@pytest.mark.parametrize(
    ("method", "path", "one"),
    [
        ("POST", "/monitoring/dead-letters/replay", "POST /monitoring/dead-letters/{number}/replay"),
        ("DELETE", "/monitoring/dead-letters", "DELETE /monitoring/dead-letters/{number}"),
    ],
)
async def test_a_body_that_seems_to_choose_some_is_refused_and_nothing_happens(
    router: Running, method: str, path: str, one: str
) -> None:
    await publish_unreadable(router, ["no", "message"])
    letters = await router.until_dead(2)
    answer = await router.client.request(method, path, json={"numbers": [999]})
    assert answer.status == 400
    assert (
        answer.json["detail"]
        == f"this takes no body and means all dead letters of its filter; for one of them use {one}"
    )
    assert await router.until_dead(2) == letters
    assert (await router.client.request(method, path)).status == 200
