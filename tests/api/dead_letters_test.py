import json
import re

import pytest

from flowcatalyst.queues.contract import Outgoing
from flowcatalyst.web.api.dead_letters import SHOWN_CHARS
from flowcatalyst.web.listing import MAX_LIST_BYTES
from flowcatalyst.web.secrets import HIDDEN_ECHO
from tests.api.running import Running, on_idle_router
from tests.support.http_servers import always, raw_server, reply

TOKEN = "s3cret-token"


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
        },
    }
    assert {key: letter[key] for key in wanted} == wanted
    assert letter["reason"]
    for path in ("/monitoring/dead-letters", "/monitoring/dead-letters/1"):
        assert TOKEN not in (await router.client.get(path)).text
    assert (await router.client.get("/monitoring/dead-letters/1")).json == letter


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
        assert (answer.status, answer.json) == (200, {"replayed": 3})
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
    assert (answer.status, answer.json) == (200, {"purged": 2})
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
