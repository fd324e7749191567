"""What is shown of messages holds no secret, in whatever way somebody wrapped it."""

import base64
import html
import json
from urllib.parse import quote

import pytest

from flowcatalyst.api.secrets import HIDDEN_ECHO, mask_body, mask_echo, mask_target, secrets_of
from flowcatalyst.core.message import MessagePointer
from flowcatalyst.http.interpret import EXCERPT_CHARS

TOKEN = "s3cr=t/tok&en"
POINTER = {"id": "m-1", "authToken": TOKEN, "messageGroupId": "g"}


def base64_of(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def in_json(text: str, layers: int = 1) -> str:
    return in_json(json.dumps(text), layers - 1) if layers else text


def unreadable(token: str) -> bool:
    return TOKEN not in token and "s3cr" not in token and "tok&en" not in token


BODIES = [
    json.dumps(POINTER),
    json.dumps({"message": {"inner": [POINTER]}}),
    json.dumps([1, [POINTER]]),
    json.dumps({"Message": json.dumps(POINTER)}),
    json.dumps({"Records": [{"body": json.dumps({"Message": json.dumps(POINTER)})}]}),
    in_json(json.dumps(POINTER), 3),
    json.dumps({"data": base64_of(json.dumps(POINTER))}),
    base64_of(json.dumps(POINTER)),
    json.dumps({"auth_token": TOKEN}),
    json.dumps({"AUTH-TOKEN": TOKEN}),
    json.dumps({"headers": {"Authorization": f"Bearer {TOKEN}"}}),
    json.dumps({"password": TOKEN, "apiKey": TOKEN, "x-api-key": TOKEN, "clientSecret": [TOKEN]}),
    json.dumps({"text": f"Authorization: Bearer {TOKEN}"}),
    json.dumps({"mediationTarget": f"http://h.test/x?key={TOKEN}"}),
    json.dumps({"mediationTarget": f"h.test/x?key={TOKEN}"}),
    json.dumps({"url": f"https://user:{TOKEN.replace('/', '')}@h.test/x"}),
    json.dumps({"url": f"https://h.test/x#{TOKEN}"}),
    json.dumps(POINTER)[:-1],
    json.dumps({"Message": json.dumps(POINTER)})[:-1],
    json.dumps({"Message": json.dumps({"Message": json.dumps(POINTER)})})[:-1],
    f'{{"auth\\u0054oken":"{TOKEN}"',
    f'{{"authToken":["x","{TOKEN}"',
    f"{{'authToken':'{TOKEN}'}}",
    f"authToken={TOKEN}&id=1",
    f"authToken: {TOKEN}\nid: 1",
    f"<authToken>{TOKEN}</authToken>",
    quote(json.dumps(POINTER)),
    html.escape(json.dumps(POINTER)),
]


@pytest.mark.parametrize("body", BODIES)
def test_no_secret_of_a_body_is_shown_however_it_is_wrapped(body: str) -> None:
    shown = mask_body(body)
    assert unreadable(shown), shown
    assert "***" in shown


def test_what_is_no_secret_is_shown() -> None:
    assert mask_body("plain text") == "plain text"
    assert mask_body('{"id":5,"x":"why? because"}') == '{"id":5,"x":"why? because"}'
    assert mask_body('{"authToken": "t0p", "id": ') == '{"authToken": "***", "id": '
    shown = json.loads(mask_body(json.dumps({"a": 1, "Message": json.dumps({**POINTER, "n": [None, True]})})))
    assert shown["a"] == 1
    assert json.loads(shown["Message"]) == {**POINTER, "authToken": "***", "n": [None, True]}


def test_a_body_nested_too_deep_to_be_read_shows_no_token_either() -> None:
    body = '{"a":' * 100_000 + json.dumps(POINTER)
    assert unreadable(mask_body(body))
    wrapped = json.dumps(POINTER)
    for _ in range(12):
        wrapped = json.dumps({"m": wrapped})
    assert unreadable(mask_body(wrapped))


def test_masking_takes_no_longer_for_hostile_bodies() -> None:
    """It would not end within the time of a test run if it were not linear."""
    for piece in ('"', "\\", 'token":"', "token", "a://", "eyJ", "%", "&", '{"', "?" * 3, "A"):
        mask_body(piece * (200_000 // len(piece)))


# Targets and echoes


def test_the_query_of_a_target_is_not_shown() -> None:
    assert mask_target("https://h.test/hook?key=s3cret") == "https://h.test/hook?***"
    assert mask_target("https://h.test/hook") == "https://h.test/hook"


def pointer(token: str | None = TOKEN, query: str = "") -> MessagePointer:
    return MessagePointer(id="m", mediation_target=f"http://h.test/hook{query}", auth_token=token)


@pytest.mark.parametrize(
    "echo",
    [
        json.dumps({"got": f"Bearer {TOKEN}"}).replace("/", "\\/"),
        json.dumps({"got": TOKEN}).replace("=", "\\u003d").replace("&", "\\u0026"),
        in_json(in_json(f'"{TOKEN}"'.replace("/", "\\/"))),
        quote(TOKEN, safe=""),
        quote(TOKEN),
        html.escape(TOKEN),
        TOKEN.upper(),
        "\0".join(TOKEN),
        "\n  ".join([TOKEN[:5], TOKEN[5:]]),
        base64_of(TOKEN),
        base64_of(f"user:{TOKEN}!"),
        base64.urlsafe_b64encode(f"\xff\xfe{TOKEN}".encode()).decode(),
    ],
)
def test_an_echo_of_the_token_is_hidden_in_whatever_form(echo: str) -> None:
    assert mask_echo(f"no: {echo}, sorry", secrets_of(pointer())) == HIDDEN_ECHO


def test_an_echo_of_the_token_as_it_is_leaves_the_rest_of_the_answer() -> None:
    assert mask_echo(f"no: {TOKEN}, sorry", secrets_of(pointer())) == "no: ***, sorry"
    assert mask_echo("no: a, sorry", ["a"]) == "no: ***, sorry"
    assert mask_echo("no", secrets_of(pointer(token=None))) == "no"
    assert mask_echo("HTTP 404", secrets_of(pointer())) == "HTTP 404"


@pytest.mark.parametrize("shown", range(4, len(TOKEN)))
def test_an_echo_cut_off_by_the_end_of_the_excerpt_is_masked(shown: int) -> None:
    excerpt = f"{'x' * EXCERPT_CHARS}{TOKEN}"[shown : EXCERPT_CHARS + shown]
    assert excerpt.endswith(TOKEN[:shown])
    assert mask_echo(excerpt, secrets_of(pointer())) == "x" * (EXCERPT_CHARS - shown) + "***"


@pytest.mark.parametrize(
    "echo", ["Cannot POST /hook?sig=ab%2Fcdef&v=1", "sig=ab%2Fcdef&v=1", "bad signature ab/cdef", "bad: ab%2Fcdef"]
)
def test_an_echo_of_the_targets_query_is_masked_too(echo: str) -> None:
    shown = mask_echo(echo, secrets_of(pointer(None, "?sig=ab%2Fcdef&v=1")))
    assert "cdef" not in shown
    assert "***" in shown
