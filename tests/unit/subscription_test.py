"""Subscriptions: what is refused, and the jobs that they make of an event."""

import json
from collections.abc import Iterator
from itertools import count
from typing import Any
from urllib.parse import unquote

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowcatalyst.core.headers import check_headers
from flowcatalyst.core.message import MAX_NAME_CHARS, DispatchMode, Terms
from flowcatalyst.dispatch.event import MAX_EVENT_GROUP_CHARS, Event, NewEvent, new_event
from flowcatalyst.dispatch.job import Job, Kind
from flowcatalyst.dispatch.subscription import (
    MAX_CODE_CHARS,
    InvalidSubscriptionError,
    Subscription,
    SubscriptionStatus,
    check_subscription,
    jobs_of,
)

NOW = 1_800_000_000.0


def subscription(**more: Any) -> Subscription:
    """As it comes over the API."""
    asked = {
        "code": "orders",
        "targetUrl": "https://shop.example/hook",
        "eventTypes": [{"eventTypeCode": "order.*"}],
        **more,
    }
    return msgspec.json.decode(msgspec.json.encode(asked), type=Subscription)


def event(**more: Any) -> Event:
    asked = {"type": "order.created", "source": "shop", "data": {"total": 12}, **more}
    return new_event(msgspec.json.decode(msgspec.json.encode(asked), type=NewEvent), "e1", NOW)


def job(made_of: Event, wanted: Subscription) -> Job:
    ids: Iterator[int] = count()
    (made,) = jobs_of(made_of, [wanted], lambda: f"j{next(ids)}", NOW)
    return made


def test_a_subscription_of_the_manual_has_these_defaults() -> None:
    asked = subscription(name="Orders", mode="NEXT_ON_ERROR")
    check_subscription(asked)
    assert asked.patterns == ("order.*",)
    assert (asked.status, asked.mode, asked.sequence) == (SubscriptionStatus.ACTIVE, DispatchMode.NEXT_ON_ERROR, 99)
    assert (asked.timeout_seconds, asked.max_retries, asked.dispatch_pool_code) == (30, 3, "DEFAULT-POOL")
    assert (asked.delay_seconds, asked.max_age_seconds, asked.data_only) == (0, None, False)
    assert msgspec.json.decode(msgspec.json.encode(asked), type=Subscription) == asked


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"code": ""}, "code is ''"),
        ({"code": "a:b"}, "code is 'a:b'"),  # a:b + c and a + b:c would share a group
        ({"code": "-a"}, "code is '-a'"),
        ({"code": "a/b"}, "code is 'a/b'"),
        ({"code": "a" * 65}, "it has up to 64 letters"),
        ({"name": " "}, "name is empty"),
        ({"name": "a\nb"}, "cannot be printed"),
        ({"name": "n" * 257}, "name has 257 characters"),
        ({"eventTypes": []}, "eventTypes has 0 entries, not 1 to 50"),
        ({"eventTypes": [{"eventTypeCode": "a"}] * 51}, "eventTypes has 51 entries"),
        (
            {"eventTypes": [{"eventTypeCode": "a"}, {"eventTypeCode": "**.a"}]},
            r"eventTypes\[1\].eventTypeCode is '\*\*.a', which is no pattern",
        ),
        ({"filters": [{"exact": {}}]}, r"filters\[0\].exact must be an object"),
        ({"filters": [{"jsonpath": "$..*..*"}]}, r"filters\[0\].jsonpath has a second `..`"),
        ({"targetUrl": "ftp://x/"}, "targetUrl cannot be called"),
        ({"targetUrl": ""}, "targetUrl is empty"),
        ({"sequence": -1}, "sequence is -1"),
        ({"dispatchPoolCode": " "}, "dispatchPoolCode is empty"),
        ({"timeoutSeconds": 0}, "timeoutSeconds is 0"),
        ({"maxRetries": 1001}, "maxRetries is 1001"),
        ({"retryDelaysSeconds": [1, -1]}, "retryDelaysSeconds is -1"),
        ({"delaySeconds": -1}, "delaySeconds is -1"),
        ({"maxAgeSeconds": 0}, "maxAgeSeconds is 0"),
        ({"delaySeconds": 60, "maxAgeSeconds": 60}, r"more than delaySeconds \(60\)"),
        ({"headers": {"X-A": "b\r\nEvil: yes"}}, "X-A may have printable"),
        ({"headers": {"X-FlowCatalyst-Event-Id": "x"}}, "set by the router alone"),
        ({"headers": {"Webhook-Signature": "v1,x"}}, "Webhook-Signature is part of the signature"),
    ],
)
def test_what_cannot_be_kept_is_refused_with_one_sentence(more: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidSubscriptionError, match=words):
        check_subscription(subscription(**more))


def test_an_event_becomes_a_job_with_all_that_its_subscription_says() -> None:
    wanted = subscription(
        mode="BLOCK_ON_ERROR",
        sequence=5,
        dispatchPoolCode="P",
        timeoutSeconds=3,
        maxRetries=7,
        retryDelaysSeconds=[2, 4],
        delaySeconds=10,
        maxAgeSeconds=60,
        headers={"X-Tenant": "acme"},
    )
    happened = event(messageGroup="order:1", correlationId="c1", causationId="z1")
    made = job(happened, wanted)
    assert made == Job(
        id="j0",
        kind=Kind.EVENT,
        code="order.created",
        target="https://shop.example/hook",
        payload=made.payload,
        content_type="application/cloudevents+json",
        headers=(
            ("X-Tenant", "acme"),
            ("X-FlowCatalyst-Event-Id", "e1"),
            ("X-FlowCatalyst-Event-Type", "order.created"),
            ("X-FlowCatalyst-Correlation-Id", "c1"),
            ("X-FlowCatalyst-Causation-Id", "z1"),
            ("X-FlowCatalyst-Subscription", "orders"),
        ),
        group="orders:order:1",
        sequence=5,
        mode=DispatchMode.BLOCK_ON_ERROR,
        pool="P",
        terms=Terms(3, 7, (2, 4)),
        scheduled_for=NOW + 10,
        expires_at=NOW + 60,
        idempotency_key=None,
        metadata={"eventId": "e1", "subscription": "orders"},
        created_at=NOW,
        subscription="orders",
    )
    assert json.loads(made.payload or b"")["data"] == {"total": 12}


def test_the_sequence_is_that_of_the_event_else_of_the_subscription_else_99() -> None:
    with_its_own = event(messageGroup="g", extensions={"sequence": "1"})
    assert job(with_its_own, subscription(sequence=5)).sequence == 1
    assert job(event(messageGroup="g"), subscription(sequence=5)).sequence == 5
    assert job(event(messageGroup="g"), subscription()).sequence == 99


def test_an_event_without_a_group_is_ordered_with_nothing() -> None:
    made = job(event(), subscription(mode="BLOCK_ON_ERROR"))
    assert (made.group, made.mode, made.scheduled_for, made.expires_at) == (None, DispatchMode.IMMEDIATE, None, None)


@pytest.mark.parametrize(
    ("more", "payload", "content_type"),
    [
        ({"data": msgspec.Raw(b'{ "a":1.0 }')}, b'{ "a":1.0 }', "application/json"),
        ({"data": {"a": 1}, "dataContentType": "application/vnd.a+json"}, b'{"a":1}', "application/vnd.a+json"),
        ({"data": "<a/>", "dataContentType": "text/xml"}, b"<a/>", "text/xml"),
        ({"data": None, "dataBase64": "/wA="}, b"\xff\x00", "application/octet-stream"),
        ({"data": None, "dataBase64": "/wA=", "dataContentType": "image/png"}, b"\xff\x00", "image/png"),
        ({"data": None, "dataContentType": "text/xml"}, b"null", "application/json"),
    ],
)
def test_data_only_is_the_data_with_their_own_type(more: dict[str, Any], payload: bytes, content_type: str) -> None:
    made = job(event(**more), subscription(dataOnly=True))
    assert (made.payload, made.content_type) == (payload, content_type)


def test_each_subscription_gets_a_job_in_its_own_group() -> None:
    numbers = count()
    wanted = [subscription(code="a"), subscription(code="b", dataOnly=True)]
    made = jobs_of(event(messageGroup="g"), wanted, lambda: f"j{next(numbers)}", NOW)
    assert [(one.id, one.group) for one in made] == [("j0", "a:g"), ("j1", "b:g")]
    assert jobs_of(event(), [], lambda: "j", NOW) == []


@given(st.text(min_size=1, max_size=50).filter(lambda text: text.isprintable() and not text.isspace()))
def test_any_text_that_an_event_may_have_can_stand_in_its_headers(text: str) -> None:
    made = job(event(correlationId=text, causationId=text), subscription())
    own = {name.replace("X-FlowCatalyst-", "X-Own-"): value for name, value in made.headers}
    check_headers(own)  # of a message that brings them
    assert unquote(own["X-Own-Correlation-Id"]) == unquote(own["X-Own-Causation-Id"]) == text


def test_the_trace_of_an_event_goes_on_in_its_jobs_and_replaces_what_a_subscription_says() -> None:
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    wanted = subscription(headers={"TraceParent": "of nothing", "X-Own": "1"})
    traced = job(event(extensions={"traceparent": parent, "tracestate": "a=1"}), wanted).headers
    named = [(name, value) for name, value in traced if name.lower().startswith("trace")]
    assert named == [("traceparent", parent), ("tracestate", "a=1")]
    assert ("X-Own", "1") in traced
    untraced = job(event(extensions={"traceparent": "nonsense", "tracestate": "a=1"}), wanted).headers
    assert [(name, value) for name, value in untraced if name.lower().startswith("trace")] == [
        ("TraceParent", "of nothing")
    ]


def test_the_group_of_a_job_is_never_too_long_for_one() -> None:
    wanted = subscription(code="c" * MAX_CODE_CHARS)
    check_subscription(wanted)
    made = job(event(messageGroup="g" * MAX_EVENT_GROUP_CHARS), wanted)
    assert made.group is not None
    assert len(made.group) == MAX_NAME_CHARS
