"""A payload from the API to its endpoint, through a real router; and what is refused on the way."""

import json
from typing import Any

import pytest

from flowcatalyst.core.payload import MAX_PAYLOAD_BYTES
from flowcatalyst.queues.contract import Outgoing
from tests.api.running import Running, on_idle_router
from tests.support.http_servers import always, in_turn, raw_server, reply

BAD: list[tuple[dict[str, Any], str]] = [
    ({"headers": {"X-A": "1\r\nX-Evil: 2"}}, "the header X-A may have printable ASCII characters only"),
    ({"headers": {"Content-Length": "0"}}, "the header Content-Length is set by the router alone"),
    ({"headers": {"Authorization": "a"}, "authToken": "b"}, "the header Authorization is made of authToken"),
    ({"payload": "x", "contentType": "text"}, "contentType is not a media type"),
    ({"payload": "x" * MAX_PAYLOAD_BYTES}, "payload has"),
]


async def test_a_payload_arrives_byte_for_byte_and_each_attempt_says_which_it_is(router: Running) -> None:
    script = in_turn(always(reply(500)), always(reply(200)))
    async with raw_server(script) as endpoint:
        payload = '{ "balance":\t5.00, "name": "gr\\u00fc\\u00df", "big": 12345678901234567890123 }'
        body = f'{{"id": "m 1", "mediationTarget": "{endpoint.url("/hook")}", "messageGroupId": "größe", '
        body += f'"headers": {{"X-Tenant": "acme"}}, "payload": {payload} }}'
        answer = await router.client.post("/api/messages", body=body.encode())
        assert answer.status == 202
        await router.until_settled()
    assert [call.body for call in endpoint.requests] == [payload.encode()] * 2
    for attempt, call in enumerate(endpoint.requests, 1):
        told = {name.lower(): value for name, value in call.headers.items()}
        assert told["x-tenant"] == "acme"
        assert told["content-type"] == "application/json"
        assert told["x-flowcatalyst-message-id"] == "m 1"
        assert told["x-flowcatalyst-group"] == "gr%C3%B6%C3%9Fe"
        assert told["x-flowcatalyst-attempt"] == str(attempt)


@on_idle_router
@pytest.mark.parametrize(("more", "why"), BAD)
async def test_what_cannot_be_sent_is_refused_and_stored_nowhere(
    idle_router: Running, more: dict[str, Any], why: str
) -> None:
    (await idle_router.send(mediationTarget="http://127.0.0.1:9/", **more)).assert_problem(400, why)
    depth = await idle_router.app.queues["default"].depth()
    assert depth is not None
    assert depth.waiting == 0


async def test_what_a_queue_brings_and_cannot_be_sent_is_a_dead_letter_that_says_why(router: Running) -> None:
    required = {"id": "m", "mediationTarget": "http://127.0.0.1:9/"}
    small = [(more, why) for more, why in BAD if "payload has" not in why]
    await router.app.queues["default"].publish([Outgoing(json.dumps({**required, **more}), "g") for more, _ in small])
    letters = await router.until_dead(len(small))
    for (_, why), letter in zip(small, letters, strict=True):
        assert letter["reason"].startswith(why)


async def test_the_dead_letter_of_a_foreign_body_says_what_is_missing(router: Running) -> None:
    await router.app.queues["default"].publish([Outgoing('{"order": 7}', "g")])
    (letter,) = await router.until_dead(1)
    assert letter["reason"] == (
        "body is not a message pointer: `id` and `mediationTarget` are missing; "
        "if its producer does not write for FlowCatalyst, set the queue to raw (docs/messages.md)"
    )
