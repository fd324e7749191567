"""CloudEvents come in as the official SDK sends them, in all three modes, and go out as it reads them."""

import json
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from cloudevents.core.bindings import http
from cloudevents.core.formats.json import JSONFormat
from cloudevents.core.v1.event import CloudEvent
from hypothesis import given
from hypothesis import strategies as st

from flowcatalyst.dispatch import cloudevents
from flowcatalyst.dispatch.cloudevents import Mode, envelope, from_batch, from_binary, from_structured, mode_of
from flowcatalyst.dispatch.event import Event, InvalidEventError, NewEvent, new_event

NOW = 1_800_000_000.0
REQUIRED = {"specversion": "1.0", "id": "7", "source": "/shop", "type": "com.shop.order.created"}
ATTRIBUTES = {
    **REQUIRED,
    "subject": "order 1% \u20ac",
    "time": datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
    "messagegroup": "order:1",
    "deduplicationid": "o-1",
    "correlationid": 'c "1"',
    "causationid": "z1",
    "sequence": "3",
    "tenant": "acme",
}
BODIES: list[tuple[Any, str]] = [
    ({"total": 12}, "application/json"),
    ({"total": 12}, "application/vnd.shop+json"),
    ("<total>12\u20ac</total>", "text/xml"),
    (b"\xff\x00\xfe", "image/png"),
]


def sent(attributes: dict[str, Any], data: Any, content_type: str) -> CloudEvent:
    return CloudEvent({**attributes, "datacontenttype": content_type}, data)


def structured(event: CloudEvent) -> NewEvent:
    message = http.to_structured_event(event)
    assert mode_of(message.headers["content-type"], message.headers) is Mode.STRUCTURED
    return from_structured(message.body)


def batched(event: CloudEvent) -> NewEvent:
    assert mode_of("application/cloudevents-batch+json; charset=utf-8", []) is Mode.BATCHED
    (read,) = from_batch(b"[" + http.to_structured_event(event).body + b"]")
    assert isinstance(read, NewEvent)
    return read


def binary(event: CloudEvent) -> NewEvent:
    message = http.to_binary_event(event)
    assert mode_of(message.headers["content-type"], message.headers) is Mode.BINARY
    return from_binary(message.headers.items(), message.body)


@pytest.mark.parametrize("read", [structured, batched, binary])
@pytest.mark.parametrize(("data", "content_type"), BODIES)
def test_what_the_sdk_sends_is_read_in_all_modes(read: Any, data: Any, content_type: str) -> None:
    event = new_event(read(sent(ATTRIBUTES, data, content_type)), "e1", NOW)
    expected = data if isinstance(data, bytes) else (data if isinstance(data, str) else json.dumps(data)).encode()
    assert event.data_bytes() == expected
    assert msgspec.structs.replace(event, data=msgspec.Raw(), data_base64=None) == Event(
        id="e1",
        sender_id="7",
        type="com.shop.order.created",
        source="/shop",
        subject="order 1% \u20ac",
        time=datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
        data_content_type=content_type,
        message_group="order:1",
        deduplication_id="o-1",
        correlation_id='c "1"',
        causation_id="z1",
        extensions={"sequence": "3", "tenant": "acme"},
    )
    assert event.sequence == 3


@pytest.mark.parametrize("read", [structured, batched, binary])
@pytest.mark.parametrize(("data", "content_type"), BODIES)
def test_the_sdk_reads_the_envelope_as_what_it_sent(read: Any, data: Any, content_type: str) -> None:
    original = sent(ATTRIBUTES, data, content_type)
    event = new_event(read(original), "e1", NOW)
    message = http.HTTPMessage({"content-type": cloudevents.STRUCTURED_TYPE}, envelope(event))
    again = http.from_http(message, JSONFormat())
    assert again.get_attributes() == original.get_attributes()
    assert again.get_data() == data


def test_an_event_that_is_no_cloudevent_has_our_id_in_its_envelope() -> None:
    event = new_event(NewEvent(type="order.created", source="shop", data=msgspec.Raw(b'{ "a":1.0}')), "e1", NOW)
    assert envelope(event) == (
        b'{"specversion":"1.0","id":"e1","type":"order.created","source":"shop","time":"2027-01-15T08:00:00Z",'
        b'"datacontenttype":"application/json","data":{ "a":1.0}}'
    )


def test_without_a_deduplication_id_source_and_id_identify_it_and_it_gets_none() -> None:
    event = new_event(from_structured(json.dumps(REQUIRED).encode()), "e1", NOW)
    assert event.deduplication_id == "/shop 7"
    assert "deduplicationid" not in json.loads(envelope(event))


TEXTS = st.text(st.characters(exclude_categories=["Cc", "Cs"]), min_size=1, max_size=20).filter(
    lambda t: t.strip() == t
)


@given(TEXTS, st.dictionaries(st.from_regex("x[a-z0-9]{0,5}", fullmatch=True), TEXTS | st.booleans(), max_size=4))
def test_any_text_survives_all_modes(subject: str, extensions: dict[str, Any]) -> None:
    attributes = {**REQUIRED, "subject": subject, "time": datetime(2026, 1, 1, tzinfo=UTC), **extensions}
    read = [new_event(how(sent(attributes, {}, "application/json")), "e", NOW) for how in (structured, batched)]
    assert read[0] == read[1]
    assert (read[0].subject, read[0].extensions) == (subject, extensions)
    as_text = {name: str(value) for name, value in extensions.items()}
    in_headers = new_event(binary(sent(attributes, {}, "application/json")), "e", NOW)
    assert (in_headers.subject, in_headers.extensions) == (subject, as_text)


def with_(**more: Any) -> bytes:
    return json.dumps({**REQUIRED, **more}).encode()


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"{", "not JSON: it ends too early"),
        (b"[]", "a CloudEvent in JSON is an object"),
        (b'{"data":' + b"[" * 100_000, "nested too deeply"),
        (b"{}", "the CloudEvent has no specversion and no id and no source and no type"),
        (with_(specversion="0.3"), "specversion is '0.3': only 1.0 is read"),
        (with_(id=None), "has no id"),
        (with_(id=7), "id must be text"),
        (with_(time="yesterday"), "time is 'yesterday', which is no time"),
        (with_(tenant={"a": 1}), "'tenant' must be text, a whole number"),
        (with_(data_base64=5), "data_base64 must be text"),
        (with_(data_base64="aGk=", data=1), "data and dataBase64 are both there"),
        (with_(Tenant="a"), "extensions has 'Tenant', which is no name"),
        (with_(messageGroup="g"), "'messageGroup' is no attribute of a CloudEvent: it is written 'messagegroup'"),
        (with_(type="a b"), "no event type"),
    ],
)
def test_what_is_no_cloudevent_is_refused_with_one_sentence(body: bytes, words: str) -> None:
    with pytest.raises(InvalidEventError, match=words):
        new_event(from_structured(body), "e1", NOW)


def test_a_batch_says_of_each_event_what_is_wrong_with_it() -> None:
    good, bad = from_batch(b"[" + with_() + b",{}]")
    assert isinstance(good, NewEvent)
    assert isinstance(bad, InvalidEventError)
    with pytest.raises(InvalidEventError, match="is a list"):
        from_batch(b"{}")


HEADERS = [(f"Ce-{name}", value) for name, value in REQUIRED.items()]


@pytest.mark.parametrize(
    ("headers", "body", "words"),
    [
        ([("ce-id", "8")], b"", "ce-id is there twice"),
        ([("ce-subject", "\u20ac")], b"", "percent-encode"),
        ([("ce-subject", "%ff")], b"", "is not UTF-8"),
        ([("ce-subject", "a%0d%0aX-Evil: yes")], b"", "subject has a control character"),
        ([("ce-datacontenttype", "text/plain")], b"", "is no attribute here"),
        ([("Content-Type", "application/json")], b"{", "the body is JSON by its Content-Type"),
        ([], b"<a/>", "the body is JSON without a Content-Type"),
    ],
)
def test_what_is_no_binary_cloudevent_is_refused(headers: list[tuple[str, str]], body: bytes, words: str) -> None:
    with pytest.raises(InvalidEventError, match=words):
        new_event(from_binary([*HEADERS, *headers], body), "e1", NOW)


def test_quoted_headers_are_read_as_the_binding_has_them() -> None:
    assert from_binary([*HEADERS, ("ce-subject", r'"a \"b\" %41"')], b"").subject == 'a "b" A'


def test_a_request_that_carries_no_cloudevents_is_none_of_them() -> None:
    assert mode_of("application/json", ["host", "ce-tenant"]) is None
    assert mode_of(None, []) is None
    with pytest.raises(InvalidEventError, match="avro is not read"):
        mode_of("application/cloudevents+avro", [])
