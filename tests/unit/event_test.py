"""What is an event, what is refused with one sentence, and that data stays as it came."""

import json
from base64 import b64encode
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowcatalyst.core.payload import MAX_PAYLOAD_BYTES
from flowcatalyst.dispatch.event import Event, InvalidEventError, NewEvent, depth_of, new_event

NOW = 1_800_000_000.0
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=20,
)


def event(**more: Any) -> Event:
    """As it comes over the API."""
    asked = {"type": "order.created", "source": "shop", **more}
    return new_event(msgspec.json.decode(msgspec.json.encode(asked), type=NewEvent), "e1", NOW)


def raw(data: str) -> msgspec.Raw:
    return msgspec.Raw(data.encode())


def test_an_event_of_the_manual_is_what_it_says() -> None:
    found = event(subject="order:12345", messageGroup="order:12345", data={"total": 12}, extensions={"sequence": 1})
    assert found == Event(
        id="e1",
        type="order.created",
        source="shop",
        time=datetime.fromtimestamp(NOW, UTC),
        subject="order:12345",
        data=raw('{"total":12}'),
        message_group="order:12345",
        extensions={"sequence": 1},
    )
    assert found.sequence == 1


@pytest.mark.parametrize("data", ['{ "a" : 1.0 }', "[1, 2]", '"t\\u00e9"', "0", "false", "1e400", '{"a":1,"a":2}'])
def test_data_keeps_its_bytes(data: str) -> None:
    found = event(data=raw(data))
    assert bytes(found.data) == found.data_bytes() == data.encode()


def test_text_that_is_no_json_is_sent_as_it_is() -> None:
    assert event(data="<a>é</a>", dataContentType="text/xml").data_bytes() == "<a>é</a>".encode()


def test_bytes_come_as_base64_and_are_sent_as_bytes() -> None:
    found = event(dataBase64=b64encode(b"\xff\x00").decode(), dataContentType="image/png")
    assert (found.data_bytes(), bool(found.data)) == (b"\xff\x00", False)


def test_null_is_absent() -> None:
    found = event(data=None, subject=None, extensions={"x": None})
    assert (bytes(found.data), found.subject, found.extensions) == (b"", None, {})
    assert found.data_bytes() == b"null"


def test_a_time_is_kept_in_utc_and_one_without_a_zone_is_utc() -> None:
    assert event(time="2026-01-02T03:04:05+01:00").time == datetime(2026, 1, 2, 2, 4, 5, tzinfo=UTC)
    assert event(time="2026-01-02T03:04:05").time == datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def test_an_event_with_an_id_of_its_own_is_known_by_that_and_its_source() -> None:
    assert event(id="7").deduplication_id == "shop 7"
    assert event(id="7", source="/shop").deduplication_id != event(id="7").deduplication_id
    assert event(id="7", deduplicationId="o-1").deduplication_id == "o-1"
    assert event().deduplication_id is None


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"type": "order created"}, "type is 'order created', which is no event type"),
        ({"source": ""}, "source is empty"),
        ({"source": "my shop"}, "source has a space"),
        ({"source": "s" * 1025}, "source has 1025 characters, more than the 1024"),
        ({"subject": " "}, "subject is empty"),
        ({"id": "i" * 257}, "id has 257 characters"),
        ({"messageGroup": "g" * 192}, "messageGroup has 192 characters"),
        ({"correlationId": "a\r\nX-Evil: yes"}, "correlationId has a control character"),
        ({"causationId": "a\u0085b"}, "causationId has a control character"),
        ({"deduplicationId": "a\0b"}, "deduplicationId has a control character"),
        ({"data": "x" * MAX_PAYLOAD_BYTES}, "data has 262146 bytes, more than the 262144"),
        ({"data": raw("[" * 65 + "]" * 65)}, "data has objects and lists within each other more than 64 deep"),
        ({"dataBase64": "???"}, "dataBase64 is not base64"),
        ({"dataBase64": "aGk=", "data": 1}, "data and dataBase64 are both there"),
        ({"dataBase64": b64encode(bytes(MAX_PAYLOAD_BYTES + 1)).decode()}, "dataBase64 has 262145 bytes"),
        ({"data": 1, "dataContentType": "json"}, "dataContentType is not a media type"),
        ({"data": raw('"\\u0080\xff"'), "dataContentType": "text/plain; a"}, "dataContentType is not a media type"),
        ({"extensions": {f"x{n}": 1 for n in range(21)}}, "extensions has 21 entries, more than the 20"),
        ({"extensions": {"traceParent": "x"}}, "extensions has 'traceParent', which is no name"),
        ({"extensions": {"x" * 65: "x"}}, "which is no name"),
        ({"extensions": {"messagegroup": "x"}}, "extensions has 'messagegroup': give it as messageGroup"),
        ({"extensions": {"x": 1.5}}, "the extension x must be text, a whole number, true or false"),
        ({"extensions": {"x": "a\nb"}}, "the extension x has a control character"),
        ({"extensions": {"x": 2**60}}, "the extension x is a number beyond"),
        ({"extensions": {"sequence": "first"}}, "the extension sequence is no whole number"),
        ({"extensions": {"sequence": -1}}, "the extension sequence is no whole number"),
        ({"extensions": {"sequence": True}}, "the extension sequence is no whole number"),
        ({"extensions": {"sequence": "9" * 5000}}, "the extension sequence"),
    ],
)
def test_what_cannot_be_accepted_is_refused_with_one_sentence(more: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidEventError, match=words) as refused:
        event(**more)
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 300


def test_a_sequence_may_be_the_digits_of_one() -> None:
    assert event(extensions={"sequence": "0007"}).sequence == 7


def naive_depth(value: Any) -> int:
    match value:
        case list():
            return 1 + max(map(naive_depth, value), default=0)
        case dict():
            return 1 + max(map(naive_depth, value.values()), default=0)
    return 0


@given(JSON, st.integers(0, 80))
def test_depth_is_counted_without_being_fooled_by_strings(value: Any, more: int) -> None:
    for _ in range(more):
        value = [value, '[{"\\']
    many = [[value]] * 70  # so many brackets that it has to look
    assert depth_of(json.dumps(many).encode()) == naive_depth(many)
    assert depth_of(json.dumps(value).encode()) >= naive_depth(value)


def test_hostile_nesting_is_counted_not_followed() -> None:
    assert depth_of(b"[" * 130_000 + b"]" * 130_000) == 130_000
    assert depth_of(b'{"a":' * 40_000 + b"1" + b"}" * 40_000) == 40_000
