"""Filters of subscriptions: which events pass, what is refused when they are saved, and what is undecided."""

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from flowcatalyst.dispatch import filters as module
from flowcatalyst.dispatch.event import Event, NewEvent, new_event
from flowcatalyst.dispatch.filters import EventView, FilterSpec, InvalidFilterError, Verdict, compiled

EVENT = new_event(
    NewEvent(
        type="order.created",
        source="/shop",
        id="7",
        subject="order:1",
        message_group="g",
        time=datetime(2026, 1, 2, tzinfo=UTC),
        data=msgspec.Raw(b'{"total":12}'),
        extensions={"tenant": "acme", "sequence": 7, "vip": True},
    ),
    "e1",
    1.0,
)
TRUE: FilterSpec = {"exact": {"tenant": "acme"}}
FALSE: FilterSpec = {"exact": {"tenant": "evil"}}
UNDECIDED: FilterSpec = {"jsonpath": "count($..*) > 1000000"}
TOO_MUCH = msgspec.structs.replace(EVENT, data=msgspec.Raw(b"[" + b"1," * 100_000 + b"1]"))


def passes(*specs: FilterSpec, event: Event = EVENT) -> Verdict:
    filters = compiled(specs)
    assert filters is not None
    return filters.passes(EventView(event))


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({"exact": {"type": "order.created", "source": "/shop"}}, True),
        ({"exact": {"type": "order.created", "source": "/other"}}, False),
        ({"exact": {"id": "7", "specversion": "1.0", "datacontenttype": "application/json"}}, True),
        ({"exact": {"messageGroup": "g", "time": "2026-01-02T00:00:00Z"}}, True),
        ({"exact": {"sequence": "7", "vip": "true"}}, True),
        ({"exact": {"unknown": "x"}}, False),
        ({"not": {"exact": {"unknown": "x"}}}, True),
        ({"prefix": {"subject": "order:"}}, True),
        ({"prefix": {"subject": "order:12"}}, False),
        ({"suffix": {"type": ".created"}}, True),
        ({"suffix": {"type": "Created"}}, False),
        ({"all": [TRUE, FALSE]}, False),
        ({"any": [FALSE, TRUE]}, True),
        ({"any": [FALSE, {"all": [TRUE, {"not": FALSE}]}]}, True),
        ({"jsonpath": "$.total > 10"}, True),
        ({"jsonpath": "$.total > 12"}, False),
    ],
)
def test_an_event_passes_what_it_fulfils(spec: FilterSpec, expected: bool) -> None:
    assert passes(spec) is expected
    assert passes({"not": spec}) is not expected


def test_a_list_of_filters_is_passed_by_what_passes_all() -> None:
    assert passes(TRUE, {"jsonpath": "$.total == 12"}) is True
    assert passes(TRUE, FALSE) is False
    assert compiled([]) is None


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (UNDECIDED, None),
        ({"not": UNDECIDED}, None),
        ({"all": [UNDECIDED, TRUE]}, None),
        ({"all": [UNDECIDED, FALSE]}, False),
        ({"any": [UNDECIDED, FALSE]}, None),
        ({"any": [UNDECIDED, TRUE]}, True),
        ({"all": [UNDECIDED, {"jsonpath": "$[0] == 1"}]}, None),  # the steps are those of all conditions together
    ],
)
def test_what_steps_do_not_suffice_for_is_undecided_and_no_more_than_that(spec: FilterSpec, expected: Verdict) -> None:
    assert passes(spec, event=TOO_MUCH) is expected


@pytest.mark.parametrize(
    "data", [b"[" + b"[]," * 20_000 + b"1]", b"[1e400]"], ids=["too much to decode", "a number out of range"]
)
def test_data_that_cannot_be_decoded_in_time_are_undecided(data: bytes) -> None:
    assert passes({"jsonpath": "$[0]"}, event=msgspec.structs.replace(EVENT, data=msgspec.Raw(data))) is None


def test_data_that_are_no_json_fulfil_no_condition() -> None:
    text = msgspec.structs.replace(EVENT, data=msgspec.Raw(b'"{}"'), data_content_type="text/plain")
    binary = msgspec.structs.replace(EVENT, data=msgspec.Raw(), data_base64="aGk=")
    nothing = msgspec.structs.replace(EVENT, data=msgspec.Raw())
    for event in (text, binary, nothing):
        assert passes({"jsonpath": "1 == 1"}, event=event) is False


def test_data_are_decoded_once_and_only_if_a_filter_comes_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    decoded: list[bytes] = []

    def decode(data: msgspec.Raw) -> Any:
        decoded.append(bytes(data))
        return msgspec.json.decode(data)

    monkeypatch.setattr(module, "decoded", decode)
    view = EventView(EVENT)
    for specs in ([TRUE], [{"jsonpath": "$.total"}, FALSE], [{"any": [{"jsonpath": "$.total"}, TRUE]}]):
        filters = compiled(specs)
        assert filters is not None
        filters.passes(view)
    assert decoded == []
    for number in range(3):
        filters = compiled([{"jsonpath": f"$.total == {number}"}])
        assert filters is not None
        assert filters.passes(view) is False
    assert decoded == [b'{"total":12}']


def test_the_same_filters_are_compiled_once() -> None:
    assert compiled([{"exact": {"a": "1", "b": "2"}}]) is compiled([{"exact": {"b": "2", "a": "1"}}])


def nested(depth: int) -> FilterSpec:
    spec = TRUE
    for _ in range(depth):
        spec = {"not": spec}
    return spec


@pytest.mark.parametrize(
    ("specs", "words"),
    [
        ([{}], r"filters\[0\] must be an object with one dialect"),
        ([TRUE, {"exact": {"a": "b"}, "not": TRUE}], r"filters\[1\] must be an object with one dialect"),
        ([1], r"filters\[0\] must be an object"),
        ([{"sql": "type = 'x'"}], r"filters\[0\].sql is not a dialect here: the dialects are exact"),
        ([{"exactly": {"a": "b"}}], "did you mean exact"),
        ([{"all": []}], r"filters\[0\].all must be a list with a filter in it"),
        ([{"any": TRUE}], r"filters\[0\].any must be a list"),
        ([{"all": [TRUE, {"not": {"prefix": {}}}]}], r"filters\[0\].all\[1\].not.prefix must be an object with"),
        ([{"exact": {"a_b": "x"}}], r"filters\[0\].exact.a_b is no name of an attribute"),
        ([{"exact": {"type": ""}}], r"filters\[0\].exact.type must be text that is not empty"),
        ([{"exact": {"sequence": 7}}], r"filters\[0\].exact.sequence must be text"),
        ([{"exact": {"type": "x" * 1025}}], r"filters\[0\].exact.type has 1025 characters"),
        ([{"jsonpath": 1}], r"filters\[0\].jsonpath must be text"),
        ([TRUE, {"jsonpath": "$.total >"}], r"filters\[1\].jsonpath is no JSONPath at character 10"),
        ([nested(8)], "within more than the 8 filters allowed"),
        ([nested(100_000)], "more than 8 deep|within more than the 8"),
        ([TRUE] * 33, "more than the 64 filters and attributes allowed"),
    ],
)
def test_what_is_no_filter_is_refused_with_its_place(specs: list[Any], words: str) -> None:
    with pytest.raises(InvalidFilterError, match=words) as refused:
        compiled(specs)
    assert len(str(refused.value)) < 300
