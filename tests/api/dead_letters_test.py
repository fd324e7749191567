from flowcatalyst.queues.contract import Outgoing
from flowcatalyst.web.secrets import mask_body, mask_token
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


def test_tokens_are_masked_however_a_body_is_broken() -> None:
    for body in (
        '{"authToken":"tok"}',
        '{"authtoken" : "tok", "id": 5}',
        '{"authToken":"tok',
        '{"authToken":"a\\"tok"',
        '{"a":{"authToken":["x","tok"]}}',
        '{"\\u0061uthToken":"tok"}',
        '{"authToken":tok}',
    ):
        masked = mask_body(body)
        assert "tok" not in masked.lower().replace("authtoken", ""), body
        assert "***" in masked
    assert mask_body("plain text") == "plain text"
    assert mask_token("got a-b", "a-b") == "got ***"
    assert mask_token("got nothing", None) == "got nothing"


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
    page = (await router.client.get("/monitoring/dead-letters?limit=2")).json
    assert [letter["messageId"] for letter in page] == ["m-0", "m-1"]
    page = (await router.client.get(f"/monitoring/dead-letters?limit=2&after={page[-1]['number']}")).json
    assert [letter["messageId"] for letter in page] == ["m-2", "m-3"]


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
