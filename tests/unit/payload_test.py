"""What a message may bring along: payload, content type and headers, and what is refused, each with one sentence."""

import json
from typing import Any
from urllib.parse import unquote

import msgspec
import pytest
from hypothesis import given as for_any
from hypothesis import strategies as st

from flowcatalyst.core.clock import IdSource, SystemClock
from flowcatalyst.core.errors import InvalidMessageError
from flowcatalyst.core.headers import MAX_HEADERS, MAX_HEADERS_BYTES, header_safe
from flowcatalyst.core.message import MAX_BODY_BYTES, MessagePointer, encode_pointer, parse_pointer, pool_code_of
from flowcatalyst.core.payload import MAX_PAYLOAD_BYTES, NO_PAYLOAD, check_payload, is_json, payload_bytes
from flowcatalyst.queues.intake import NewMessage, prepare

REQUIRED = '"id":"m1","mediationTarget":"https://example.org/hook"'


def parsed(more: str) -> MessagePointer:
    return parse_pointer(f"{{{REQUIRED},{more}}}")


def fields(**found: Any) -> str:
    return json.dumps(found)[1:-1]


@pytest.mark.parametrize(
    "payload",
    ['{ "a" : 1.0 }', "[1, 2]", '"t\\u00e9"', "0", "false", "1e400", '{"a":1,"a":2}', "123456789012345678901"],
)
def test_a_payload_keeps_its_bytes_from_body_to_body(payload: str) -> None:
    for body in (f'{{{REQUIRED},"payload":{payload}}}', f'{{{REQUIRED},"payload": {payload} }}'.encode()):
        pointer = parse_pointer(body)
        assert bytes(pointer.payload) == payload.encode()
        assert parse_pointer(encode_pointer(pointer)) == pointer
    lenient = parse_pointer(f'\ufeff{{"id":7,"mediationTarget":"https://example.org/hook","payload": {payload} }}')
    assert (lenient.id, bytes(lenient.payload)) == ("7", payload.encode())


def test_null_is_absent() -> None:
    pointer = parsed('"payload":null,"contentType":null,"headers":null')
    assert pointer == parse_pointer(f"{{{REQUIRED}}}")
    assert pointer.payload == NO_PAYLOAD


def test_without_them_a_pointer_is_written_as_before() -> None:
    assert encode_pointer(parse_pointer(f"{{{REQUIRED}}}")) == f"{{{REQUIRED}}}".encode()


@pytest.mark.parametrize(
    "content_type",
    ["text/plain", "text/plain; charset=utf-8", "application/vnd.acme+xml", 'a/b;c="d\\" ;e"; f=g', "A/B"],
)
def test_a_media_type_is_taken(content_type: str) -> None:
    assert parsed(fields(payload="x", contentType=content_type)).content_type == content_type


def test_which_content_types_are_json() -> None:
    assert [is_json(one) for one in ("application/json", "Application/JSON; charset=utf-8", "text/json", "a/b+json")]
    assert not any(is_json(one) for one in ("text/plain", "application/jsonl", "application/json-seq"))


WRONG = [
    (fields(payload="x", contentType="text"), "contentType is not a media type"),
    (fields(payload="x", contentType=""), "contentType is not a media type"),
    (fields(payload="x", contentType="text/plain\r\nX-Evil: 1"), "contentType is not a media type"),
    (fields(payload="x", contentType="text/plain\n"), "contentType is not a media type"),
    (fields(payload="x", contentType="text/" + "x" * 300), "contentType is not a media type"),
    (fields(payload="x", contentType=7), "`contentType` must be text or null, not a number"),
    (fields(contentType="text/plain"), "contentType is there without a payload"),
    (fields(payload="x" * MAX_PAYLOAD_BYTES), f"payload has {MAX_PAYLOAD_BYTES + 2} bytes, more than the"),
    (fields(headers=["X-A: 1"]), "`headers` must be an object or null, not a list"),
    (fields(headers={"X-A": 1}), "must be text, not a number"),
    (fields(headers={"X A": "1"}), "headers has 'X A', which is not the name of a header"),
    (fields(headers={"": "1"}), "which is not the name of a header"),
    (fields(headers={"X-A\r\nX-B": "1"}), "which is not the name of a header"),
    (fields(headers={"X-" + "a" * 200: "\n"}), "may have printable ASCII characters only"),
    *[
        (fields(headers={"X-A": f"1{bad}2"}), "the header X-A may have printable ASCII characters only")
        for bad in ("\r", "\n", "\0", "\x1f", "\x7f", "\t", "ü", "\u2028")
    ],
    *[
        (fields(headers={name: "1"}), f"the header {name} is set by the router alone: leave it out of headers")
        for name in ("Host", "content-length", "Transfer-Encoding", "Connection", "Accept-Encoding", "USER-AGENT", "TE")
    ],
    (fields(headers={"X-FlowCatalyst-Anything": "1"}), "the header X-FlowCatalyst-Anything is set by the router alone"),
    (fields(headers={"Content-Type": "a/b"}), "the header Content-Type is made of contentType"),
    (fields(headers={"authorization": "Basic x"}, authToken="t"), "the header Authorization is made of authToken"),
    (fields(headers={"X-A": "1", "x-a": "2"}), "the header x-a is there twice"),
    (fields(headers={f"X-{n}": "1" for n in range(MAX_HEADERS + 1)}), "headers has 33 entries, more than the 32"),
    (fields(headers={"X-A": "1" * MAX_HEADERS_BYTES}), f"headers has {MAX_HEADERS_BYTES + 3} bytes, more than the"),
    ('"payload":"\\ud800","contentType":"text/plain"', "body is not a message pointer"),
]


@pytest.mark.parametrize(("more", "why"), WRONG, ids=[why[:40] + str(n) for n, (_, why) in enumerate(WRONG)])
def test_what_cannot_be_sent_is_refused_with_a_sentence(more: str, why: str) -> None:
    with pytest.raises(InvalidMessageError) as refused:
        parsed(more)
    assert why in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(("more", "why"), [one for one in WRONG if "`" not in one[1] and "ud800" not in one[0]])
def test_it_is_refused_where_it_is_published_too(more: str, why: str) -> None:
    message = msgspec.json.decode(f"{{{REQUIRED},{more}}}", type=NewMessage) if "must be" not in why else None
    if message is not None:
        with pytest.raises(InvalidMessageError) as refused:
            prepare(message, IdSource(SystemClock()))
        assert why in str(refused.value)


def test_a_payload_that_is_not_unicode_is_refused() -> None:
    body = b'{%b,"payload":{"a":"\xff"}}' % REQUIRED.encode()
    with pytest.raises(InvalidMessageError, match="payload is not valid Unicode"):
        parse_pointer(body)


def test_a_header_value_is_never_repeated() -> None:
    with pytest.raises(InvalidMessageError) as refused:
        parsed(fields(headers={"X-Secret": "sesame\n"}))
    assert "sesame" not in str(refused.value)


def test_authorization_may_stand_in_headers_where_there_is_no_token() -> None:
    assert parsed(fields(headers={"Authorization": "Basic x"})).headers == {"Authorization": "Basic x"}


def test_the_largest_payload_is_taken() -> None:
    check_payload(msgspec.Raw(b'"' + b"x" * (MAX_PAYLOAD_BYTES - 2) + b'"'), None)


def test_a_published_message_carries_its_payload_as_it_stood() -> None:
    text = f'{{{REQUIRED},"payload":{{ "a":1.50 }},"contentType":"application/json","headers":{{"X-A":"1"}}}}'
    ready = prepare(msgspec.json.decode(text, type=NewMessage), IdSource(SystemClock()))
    assert '"payload":{ "a":1.50 }' in ready.outgoing.body
    assert parse_pointer(ready.outgoing.body).headers == {"X-A": "1"}
    absent = prepare(msgspec.json.decode(f'{{{REQUIRED},"payload":null}}', type=NewMessage), IdSource(SystemClock()))
    assert "payload" not in absent.outgoing.body


def test_the_whole_message_has_the_limit_of_every_queue() -> None:
    text = f"{{{REQUIRED},{fields(payload='x' * (MAX_PAYLOAD_BYTES - 2))}}}"
    with pytest.raises(InvalidMessageError, match=f"more than the {MAX_BODY_BYTES} allowed"):
        prepare(msgspec.json.decode(text, type=NewMessage), IdSource(SystemClock()))


FOREIGN = [
    ('{"order": 1}', "`id` and `mediationTarget` are missing"),
    ('{"id": "1"}', "`mediationTarget` is missing"),
    ("<order/>", "invalid character"),
    ("[1]", "it must be an object, not a list"),
]


@pytest.mark.parametrize(("body", "why"), FOREIGN)
def test_a_foreign_body_is_told_what_is_missing_and_of_raw_queues(body: str, why: str) -> None:
    with pytest.raises(InvalidMessageError) as refused:
        parse_pointer(body)
    assert why in str(refused.value)
    assert "set the queue to raw (docs/messages.md)" in str(refused.value)


def test_a_pool_is_found_beside_a_payload_that_names_another() -> None:
    assert pool_code_of(f'{{{REQUIRED},"payload":{{"poolCode":"B"}},"poolCode":"A"}}') == "A"


@for_any(st.text(max_size=30))
def test_any_text_can_stand_in_a_header_and_be_read_back(text: str) -> None:
    safe = header_safe(text.encode(errors="ignore").decode())
    assert safe.isascii()
    assert safe.isprintable()
    assert safe == safe.strip()
    assert unquote(safe) == text.encode(errors="ignore").decode()


@for_any(st.text(st.characters(codec="utf-8")))
def test_text_is_sent_as_itself(text: str) -> None:
    for raw in (msgspec.json.encode(text), json.dumps(text).encode()):
        assert payload_bytes(msgspec.Raw(raw), "text/plain") == text.encode()
        assert payload_bytes(msgspec.Raw(raw), "application/json") == raw
