"""Raw queues: what becomes of a foreign body, where its group and id come from, and what is refused."""

from typing import Any

import pytest

from flowcatalyst.core.errors import InvalidMessageError
from flowcatalyst.core.message import Delivery, DispatchMode
from flowcatalyst.core.payload import MAX_PAYLOAD_BYTES
from flowcatalyst.queues.raw import Missing, RawConfig, reader_of

TARGET = "https://shop.example/hooks/orders"
BODY = '{"order": {"id": "o-7", "number": 12, "lines": [{"sku": "s1"}], "paid": true, "total": 1.5, "note": " "}}'

NESTED = "[" * 100_000


def arrived(body: str | bytes = BODY, group: str | None = "g1", message_id: str = "") -> Delivery:
    return Delivery("broker-1", None, body, group, message_id=message_id)


def read(delivery: Delivery, **raw: Any) -> tuple[str, str | None]:
    """Id and group."""
    delivery.pointer = reader_of(RawConfig(TARGET, **raw))(delivery)
    return delivery.pointer.id, delivery.group


def test_a_raw_body_goes_to_the_target_of_its_queue() -> None:
    delivery = arrived(b"\xff<xml/>")
    raw = RawConfig(
        TARGET, "ORDERS", content_type="application/xml", headers=(("X-A", "1"),), mode=DispatchMode.NEXT_ON_ERROR
    )
    pointer = reader_of(raw)(delivery)
    assert (pointer.mediation_target, pointer.pool_code, pointer.content_type) == (TARGET, "ORDERS", "application/xml")
    assert (pointer.headers, pointer.dispatch_mode) == ({"X-A": "1"}, DispatchMode.NEXT_ON_ERROR)
    assert (delivery.is_raw, delivery.body) == (True, b"\xff<xml/>")


def test_group_and_id_are_those_of_the_broker_unless_said_otherwise() -> None:
    assert read(arrived()) == ("broker-1", "g1")
    assert read(arrived(message_id="producer-1", group=None)) == ("producer-1", None)
    assert read(arrived("no json at all")) == ("broker-1", "g1")


@pytest.mark.parametrize(
    ("path", "found"),
    [("$.order.id", "o-7"), ("$.order.number", "12"), ("$.order.lines[0].sku", "s1")],
)
def test_a_path_into_the_body_names_group_or_id(path: str, found: str) -> None:
    assert read(arrived(), group=path) == ("broker-1", found)
    assert read(arrived(), id=path) == (found, "g1")
    assert read(arrived(BODY.encode()), id=path, group=path) == (found, found)
    assert read(arrived("\ufeff" + BODY), group=path) == ("broker-1", found)


MISSING = [
    ("$.order.other", BODY, "there is nothing where text or a whole number is expected"),
    ("$.order.note", BODY, "there is nothing where"),
    ("$.other.deeper[3].still", BODY, "there is nothing where"),
    ("$.order.lines[9]", BODY, "there is nothing where"),
    ("$.order.lines", BODY, "there is a list where"),
    ("$.order", BODY, "there is an object where"),
    ("$.order.paid", BODY, "there is a boolean where"),
    ("$.order.total", BODY, "there is a number with a decimal point where"),
    ("$.order[0]", BODY, "there is nothing where"),
    ("$.order.id", "<xml/>", "the body is not JSON: invalid character"),
    ("$.order.id", b'{"order": "\xff"}', "the body is not JSON"),
    ("$.order.id", NESTED, "the body is not JSON: it is nested too deeply"),
    ("$[0].id", '{"id": 1}', "there is nothing where"),
]


@pytest.mark.parametrize(("path", "body", "why"), MISSING, ids=range(len(MISSING)))
def test_a_path_that_finds_nothing_rejects_the_message_and_says_so(path: str, body: str | bytes, why: str) -> None:
    for what in ("group", "id"):
        with pytest.raises(InvalidMessageError) as refused:
            read(arrived(body), **{what: path})
        assert f"{path} does not lead to the {what} of the message: {why}" in str(refused.value)


@pytest.mark.parametrize(("path", "body", "why"), MISSING, ids=range(len(MISSING)))
def test_or_the_message_goes_to_the_default_group_if_its_queue_says_so(path: str, body: str | bytes, why: str) -> None:
    assert read(arrived(body), group=path, id=path, missing=Missing.DEFAULT) == ("broker-1", None)


def test_what_is_too_long_is_refused() -> None:
    long = f'{{"id": "{"x" * 300}"}}'
    with pytest.raises(InvalidMessageError, match=r"the id at \$\.id has 300 characters, more than the 256 allowed"):
        read(arrived(long), id="$.id")
    with pytest.raises(InvalidMessageError, match="its id at the broker has 300 characters"):
        read(arrived(message_id="x" * 300))
    with pytest.raises(InvalidMessageError, match=f"body has {MAX_PAYLOAD_BYTES + 1} bytes, more than the"):
        read(arrived(b"x" * (MAX_PAYLOAD_BYTES + 1)))
    read(arrived(b"x" * MAX_PAYLOAD_BYTES))


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        ({"target": ""}, "target is empty"),
        ({"target": "ftp://h/"}, "target cannot be called"),
        ({"pool": " "}, "pool is empty"),
        ({"pool": "x" * 257}, "pool has 257 characters"),
        ({"group": "order.id"}, "group must be broker, or a path into the body such as"),
        ({"group": "$"}, "group must be"),
        ({"id": "$..a"}, "id must be"),
        ({"id": "$.a[x]"}, "id must be"),
        ({"id": "$." + "a" * 300}, "id must be"),
        ({"content_type": "xml"}, "contentType is not a media type"),
        ({"headers": (("Host", "x"),)}, "the header Host is set by the router alone"),
    ],
)
def test_a_wrong_setting_is_told_in_one_sentence(raw: dict[str, Any], why: str) -> None:
    with pytest.raises(InvalidMessageError) as refused:
        RawConfig(**{"target": TARGET, **raw}).check()
    assert str(refused.value).startswith(why)


def test_a_right_setting_is_taken() -> None:
    RawConfig(TARGET, "P", "$.a.b-c[0]", "$.ü", Missing.DEFAULT, None, "text/xml", (("Authorization", "x"),)).check()
