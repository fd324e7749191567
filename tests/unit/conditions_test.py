"""Conditions on data: as RFC 9535 has them, and decided, or given up, in a bounded number of steps."""

import sys
from types import FrameType
from typing import Any

import msgspec
import pytest
from hypothesis import given, reject
from hypothesis import strategies as st
from jsonpath import JSONPathEnvironment

from flowcatalyst.core.payload import MAX_PAYLOAD_BYTES
from flowcatalyst.dispatch.conditions import InvalidConditionError, OutOfStepsError, Steps, read_condition
from flowcatalyst.dispatch.event import NewEvent, new_event
from flowcatalyst.dispatch.filters import MAX_STEPS, EventView, compiled
from tests.support import hostile_filters

DATA = {"total": 12, "currency": "EUR", "items": [{"sku": "a", "price": 5}, {"sku": "b", "price": 50}], "vip": True}
DATA |= {"flags": [True], "ones": [1], "off": [False]}


def holds(text: str, data: Any, steps: int = MAX_STEPS) -> bool:
    return read_condition(text)(data, data, Steps(steps))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("$.total > 10 && @.currency == 'EUR'", True),
        ("$.total > 10 && !(@.currency == 'EUR')", False),
        ("$.items[?@.price > 10]", True),
        ("$.items[?@.price > 100]", False),
        ("$.items[?@.price > $.total && @.sku == 'b']", True),
        ("count($.items[*]) == 2", True),
        ("length($.currency) == 3", True),
        ("value($..sku) == 'a'", False),  # there are two
        ("value($.items[0].sku) == 'a'", True),
        ("$.items[-1].sku == 'b'", True),
        ("$.items[::-1]", True),
        ("$.items[1:5]", True),
        ("$.items[2:]", False),
        ("$..price", True),
        ("$.currency[0:2]", False),
        ("$.items[::0]", False),
        ("$.nothing", False),
        ("$.nothing == $.nowhere", True),
        ("$.nothing != 1", True),
        ("$.nothing < 1", False),
        ("$.vip == true", True),
        ("$.vip == 1", False),
        ("$.vip < 2", False),
        ("$.off[?@]", True),  # it is there
        ("$.vip >= true", True),
        ("false < true", False),
        ("$.flags == $.ones", False),
        ("$.total == 12.0", True),
        ("$.total >= 12 && $.total <= 12", True),
        ("$.currency < 'F'", True),
        ("$.currency < 1", False),
        ("$.items == $.items", True),
        ("$.items[0] == $.items[1]", False),
        ("$['items', 'nothing']", True),
    ],
)
def test_a_condition_is_what_the_rfc_says(text: str, expected: bool) -> None:
    assert holds(text, DATA) is expected


NAMES = st.sampled_from(["a", "b", "c"])
# What the library gets wrong is tested by itself: to it true is 1 within lists and for < and >, and text has slices.
LITERALS = st.sampled_from(["1", "2.5", "-1", "'x'", '"ab"', "null"])
SINGULAR = st.lists(NAMES.map(".{}".format) | st.integers(-2, 2).map("[{}]".format), max_size=3).map("".join)
SELECTORS = st.sampled_from([".*", "[-1]", "['a','b']", "[*,0]"])
OPERATORS = st.sampled_from(["==", "!=", "<", "<=", ">", ">="])


@st.composite
def comparisons(draw: st.DrawFn, paths: st.SearchStrategy[str]) -> str:
    return f"{draw(paths | LITERALS)} {draw(OPERATORS)} {draw(paths | LITERALS)}"


@st.composite
def logical(draw: st.DrawFn, basic: st.SearchStrategy[str]) -> str:
    one, other = draw(basic), draw(basic)
    return draw(st.sampled_from([one, f"!({one})", f"{one} && {other}", f"({one} || {other})"]))


RELATIVE = SINGULAR.map("@{}".format)
INNER = logical(comparisons(RELATIVE | SINGULAR.map("ROOT{}".format)) | RELATIVE | SELECTORS.map("@{}".format))


@st.composite
def queries(draw: st.DrawFn) -> str:
    path = draw(SINGULAR) + draw(st.sampled_from(["", "..a", "..*", "..[0]", "..[?@.a]"])) + draw(SINGULAR)
    path += draw(SELECTORS | st.just("") | INNER.map("[?{}]".format))
    return f"ROOT{path}"


FUNCTIONS = st.one_of(queries().map("count({}) > 1".format), queries().map("value({}) == 1".format))
CONDITIONS = logical(
    comparisons(SINGULAR.map("ROOT{}".format)) | queries() | FUNCTIONS | SINGULAR.map("length(ROOT{}) > 1".format)
)
VALUES = st.recursive(
    st.none() | st.sampled_from([0, 1, 2.5, "x", "ab", ""]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=12,
)
LIBRARY = JSONPathEnvironment(strict=True, filter_caching=False)


@given(CONDITIONS, VALUES)
def test_conditions_hold_where_the_library_says_so(text: str, data: Any) -> None:
    try:
        ours = holds(text.replace("ROOT", "$"), data)
    except InvalidConditionError:
        reject()  # a second `..`
    assert ours == bool(LIBRARY.findall(f"$[?{text.replace('ROOT', '$[0]')}]", [data])), text


BOUNDS = st.integers(-9, 9) | st.just("")


@given(st.lists(st.integers(), max_size=6), BOUNDS, BOUNDS, BOUNDS.filter(lambda bound: bound != 0))
def test_slices_are_those_of_python(data: list[int], start: int | str, stop: int | str, step: int | str) -> None:
    part = slice(*(None if bound == "" else int(bound) for bound in (start, stop, step)))
    assert holds(f"count($[{start}:{stop}:{step}]) == {len(data[part])}", data)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("$.total >", "is no JSONPath at character 10: "),
        ("$.total = 1", "is no JSONPath at character 9: unexpected token '='"),
        ("", "is no JSONPath at character 1"),
        ("@.a, ?@.b", "is more than one JSONPath expression"),
        ("@.a][?@.b", "is more than one JSONPath expression"),
        ("$..a..b", "has a second `..` at character 5"),
        ("$.a[?@.b[?@.c]]", "has a filter within a filter at character 10"),
        ("match(@.a, 'x')", r"uses match\(\), whose regular expressions can take for ever"),
        ("$.a == 'x' and $.b", "is no JSONPath at character 12"),
        ("typeof(@.a) == 'string'", "is no JSONPath at character 1: function 'typeof' is not defined"),
        ("@.a <> 1", "which is no condition of RFC 9535"),
    ],
)
def test_what_cannot_be_evaluated_is_refused_with_its_place(text: str, words: str) -> None:
    with pytest.raises(InvalidConditionError, match=words):
        read_condition(text)


@pytest.mark.parametrize("text", hostile_filters.REFUSED)
def test_hostile_conditions_are_refused_when_they_are_saved(text: str) -> None:
    with pytest.raises(InvalidConditionError) as refused:
        read_condition(text)
    assert len(str(refused.value)) < 300


def calls_of(work: Any) -> int:
    """How many functions were called, ours and Python's own: what a processor does, without a clock."""
    calls = 0

    def count(_frame: FrameType, what: str, _argument: Any) -> None:
        nonlocal calls
        calls += what in ("call", "c_call")

    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(None)
    return calls


@pytest.mark.parametrize("name", hostile_filters.DATA)
def test_hostile_conditions_on_hostile_data_end_within_their_steps(name: str) -> None:
    data = hostile_filters.DATA[name]
    assert len(data) <= MAX_PAYLOAD_BYTES
    event = new_event(NewEvent(type="a", source="s", data=msgspec.Raw(data)), "e", 1.0)
    view, verdicts = EventView(event), set()
    for text in hostile_filters.ACCEPTED:
        filters = compiled([{"jsonpath": text}])
        assert filters is not None
        assert calls_of(lambda filters=filters: verdicts.add(filters.passes(view))) < 10 * MAX_STEPS, text
    assert verdicts <= {True, False, None}
    assert None in verdicts or name in ("deep", "text", "huge numbers")  # the others are there to use up the steps


def test_steps_run_out_where_they_say_and_not_before() -> None:
    wide = [{"x": number} for number in range(100)]
    assert not holds("$[?@.x == -1]", wide, steps=1 + 100 + 100 * 2)
    with pytest.raises(OutOfStepsError):
        holds("$[?@.x == -1]", wide, steps=100 + 100 * 2)
    assert holds("$[?@.x == 0]", wide, steps=4)  # the rest need not be looked at


def test_long_texts_cost_steps_when_they_are_compared() -> None:
    data = {"one": "x" * 6400, "two": "x" * 6400}
    assert holds("$.one == $.two", data, steps=104)
    with pytest.raises(OutOfStepsError):
        holds("$.one == $.two", data, steps=103)
    assert not holds("$.one == 'x'", data, steps=4)
