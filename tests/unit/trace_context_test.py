"""Which trace something belongs to, as its producer says: what is taken, and from where."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowcatalyst.core.headers import MAX_TRACE_CHARS, check_headers, trace_context
from flowcatalyst.core.message import Delivery
from flowcatalyst.http.interpret import DELIVERED
from flowcatalyst.queues.sqs import messages as sqs
from tests.support.deliveries import delivery
from tests.support.http_servers import raw_server
from tests.unit.mediator_test import mediator

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
GIVEN = f"00-{TRACE}-{PARENT}-01"


@pytest.mark.parametrize("parent", [GIVEN, f"00-{TRACE}-{PARENT}-00", f"01-{TRACE}-{PARENT}-01-more.of=it"])
def test_what_w3c_allows_is_taken_as_it_is(parent: str) -> None:
    assert trace_context({"traceparent": parent}) == (("traceparent", parent),)


@pytest.mark.parametrize(
    "parent",
    [
        "",
        "nonsense",
        GIVEN.upper(),
        f" {GIVEN}",
        f"{GIVEN}\n",
        f"{GIVEN}-more",  # only a later version may
        f"ff-{TRACE}-{PARENT}-01",
        f"00-{'0' * 32}-{PARENT}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE}-{PARENT}-1",
        f"01-{TRACE}-{PARENT}-01-\u00e9",
        f"01-{TRACE}-{PARENT}-01-{'x' * MAX_TRACE_CHARS}",
        1,
        True,
        None,
    ],
)
def test_what_is_no_traceparent_is_no_trace_and_its_tracestate_means_nothing(parent: object) -> None:
    assert trace_context({"traceparent": parent, "tracestate": "a=1"}) == ()


@pytest.mark.parametrize("state", ["", "\u00e9=1", "a=1\r\nX-Evil: 1", "x" * (MAX_TRACE_CHARS + 1), 1, None])
def test_a_tracestate_that_cannot_be_a_header_is_left_out(state: object) -> None:
    assert trace_context({"traceparent": GIVEN, "tracestate": state}) == (("traceparent", GIVEN),)


@given(st.text(), st.text())
def test_whatever_is_taken_can_be_sent(parent: str, state: str) -> None:
    check_headers(dict(trace_context({"traceparent": parent, "tracestate": state})))
    check_headers(dict(trace_context({"traceparent": GIVEN, "tracestate": state})))


def received(attributes: dict[str, Any]) -> Delivery:
    raw = {"MessageId": "1", "ReceiptHandle": "r", "Body": "{}", "MessageAttributes": attributes}
    return sqs.read(raw, 0.0, 30.0)[0]


def test_sqs_has_it_in_message_attributes() -> None:
    text = {"DataType": "String"}
    told = received({"traceparent": {**text, "StringValue": GIVEN}, "tracestate": {**text, "StringValue": "a=1"}})
    assert told.trace_context == (("traceparent", GIVEN), ("tracestate", "a=1"))
    assert received({"traceparent": {"DataType": "Binary", "BinaryValue": b"x"}}).trace_context == ()
    assert received({}).trace_context == ()


def test_activemq_has_it_in_application_properties_also_of_a_copy() -> None:
    proton = pytest.importorskip("proton", reason="the extra activemq is not installed")
    from flowcatalyst.queues.amqp.message import delayed_copy, read

    raw = proton.Message(body="{}", id="an-id-that-is-long-enough", properties={"traceparent": GIVEN}).encode()
    content = read(raw)
    assert content.trace_context == (("traceparent", GIVEN),)
    again = delayed_copy(raw, content, failures=1, delay_s=1.0, not_before=0.0)
    assert read(again).trace_context == content.trace_context


async def test_what_stands_beside_the_body_is_passed_on_unless_the_message_says_it_itself() -> None:
    sender, other = mediator(), f"00-{TRACE}-{'1' * 16}-01"
    async with raw_server() as server:
        for headers in (None, {"Traceparent": other}):
            one = delivery("m1", target=server.url())
            one.trace_context = (("traceparent", GIVEN), ("tracestate", "a=1"))
            one.pointer = type(one.pointer)("m1", server.url(), headers=headers)
            assert await sender.attempt(one) is DELIVERED
        await sender.close()
    first, second = (call.headers for call in server.requests)
    assert (first["traceparent"], first["tracestate"]) == (GIVEN, "a=1")
    assert (second["traceparent"], second.get("tracestate")) == (other, None)
