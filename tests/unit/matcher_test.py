"""Which subscriptions want an event, while they come, change and go."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowcatalyst.dispatch.event import Event, NewEvent, new_event
from flowcatalyst.dispatch.filters import EventView, InvalidFilterError, compiled
from flowcatalyst.dispatch.matcher import SUBSCRIPTION_STEPS, TURN_STEPS, Matcher
from flowcatalyst.dispatch.subscription import EventTypeBinding, Subscription, SubscriptionStatus
from tests.unit.event_types_test import PATTERNS, codes, matches

HEAVY = "count($..*) > 1000000"


def subscription(code: str, *patterns: str, **more: Any) -> Subscription:
    types = tuple(map(EventTypeBinding, patterns or ("order.*",)))
    return Subscription(code=code, target_url="https://shop.example/hook", event_types=types, **more)


def event(code: str = "order.created", data: bytes = b'{"total":12}', source: str = "shop") -> Event:
    return new_event(NewEvent(type=code, source=source, data=msgspec.Raw(data)), "e", 1.0)


def found(matcher: Matcher, happened: Event) -> list[str]:
    return [one.code for one in matcher.match(happened)]


def test_an_event_finds_those_whose_type_and_filters_it_fits() -> None:
    over = {"jsonpath": "$.total > 10"}
    matcher = Matcher(
        [
            subscription("exact", "order.created"),
            subscription("both", "order.created", "order.*"),
            subscription("all", "**"),
            subscription("other", "account.*"),
            subscription("large", filters=(over,)),
            subscription("small", filters=({"not": over},)),
            subscription("web", filters=({"exact": {"source": "web"}},)),
        ]
    )
    assert len(matcher) == 7
    assert found(matcher, event()) == ["all", "both", "exact", "large"]
    assert found(matcher, event(data=b'{"total":1}', source="web")) == ["all", "both", "exact", "small", "web"]
    assert found(matcher, event("unknown")) == ["all"]


def test_a_paused_subscription_still_gets_its_jobs() -> None:
    matcher = Matcher([subscription("s", status=SubscriptionStatus.PAUSED)])
    assert [one.status for one in matcher.match(event())] == [SubscriptionStatus.PAUSED]


def test_a_change_that_cannot_be_used_changes_nothing() -> None:
    matcher = Matcher([subscription("s")])
    with pytest.raises(InvalidFilterError):
        matcher.replace(subscription("s", "account.*", filters=({"sql": "x"},)))
    assert found(matcher, event()) == ["s"]
    assert found(matcher, event("account.closed")) == []


CHANGES = st.lists(
    st.tuples(st.sampled_from("abc"), st.lists(PATTERNS, min_size=1, max_size=3) | st.none()), max_size=10
)


@given(CHANGES, codes())
def test_after_any_changes_it_is_as_if_made_anew(changes: list[tuple[str, list[str] | None]], code: str) -> None:
    matcher = Matcher()
    now: dict[str, list[str]] = {}
    for name, patterns in changes:
        if patterns is None:
            matcher.remove(name)
            now.pop(name, None)
        else:
            matcher.replace(subscription(name, *patterns))
            now[name] = patterns
    assert found(matcher, event(code)) == sorted(
        name for name, patterns in now.items() if any(matches(pattern, code) for pattern in patterns)
    )


def test_an_undecided_event_is_taken_and_counted() -> None:
    matcher = Matcher([subscription("s", filters=({"jsonpath": HEAVY},)), subscription("t")])
    wide = event(data=b"[" + b"1," * 50_000 + b"1]")
    assert found(matcher, wide) == found(matcher, wide) == ["s", "t"]
    assert found(matcher, event()) == ["t"]
    assert matcher.undecided == {"s": 2}
    matcher.remove("s")
    assert matcher.undecided == {}


def turns(matcher: Matcher, happened: Event) -> list[int]:
    """How many subscriptions were found in each turn."""
    counts = [0]
    for one in matcher.matching(happened):
        if one is None:
            counts.append(0)
        else:
            counts[-1] += 1
    return counts


def test_others_have_their_turn_between_filters_that_take_long() -> None:
    heavy = [subscription(f"s{n}", filters=({"jsonpath": f"count($..*) > {1_000_000 + n}"},)) for n in range(5)]
    wide = event(data=b"[" + b"1," * 50_000 + b"1]")
    assert turns(Matcher(heavy), wide) == [1, 1, 1, 1, 1, 0]
    same = [subscription(f"s{n}", filters=({"jsonpath": HEAVY},)) for n in range(5)]
    assert turns(Matcher(same), wide) == [1, 4]  # they say the same, so one of them is asked


def test_others_have_their_turn_while_many_are_found() -> None:
    one_turn = TURN_STEPS // SUBSCRIPTION_STEPS
    matcher = Matcher(subscription(f"s{number}") for number in range(one_turn + 1))
    assert turns(matcher, event()) == [one_turn, 1]


def test_changes_between_two_turns_are_for_the_next_event() -> None:
    matcher = Matcher([subscription("a"), subscription("b")])
    matching = matcher.matching(event())
    first = next(matching)
    matcher.remove("b")
    matcher.replace(subscription("c"))
    assert [one.code for one in (first, *matching) if one is not None] == ["a", "b"]
    assert found(matcher, event()) == ["a", "c"]


ATTRIBUTES = st.sampled_from(["source", "Source", "tenant", "type", "subject"])
VALUES = st.sampled_from(["shop", "web", "order.created", "7"])
EXACT = st.builds(lambda name, value: {"exact": {name: value}}, ATTRIBUTES, VALUES) | st.builds(
    lambda first, second: {"exact": {"source": first, "tenant": second}}, VALUES, VALUES
)
OTHER = st.builds(lambda name, value: {"prefix": {name: value}}, ATTRIBUTES, VALUES) | st.sampled_from(
    [{"jsonpath": "$.total > 10"}, {"jsonpath": HEAVY}]
)
FILTERS = st.recursive(
    EXACT | OTHER,
    lambda inner: st.builds(
        lambda dialect, parts: {dialect: parts if dialect != "not" else parts[0]},
        st.sampled_from(["all", "all", "any", "not"]),
        st.lists(inner, min_size=1, max_size=3),
    ),
    max_leaves=5,
)
PATTERN_LISTS = st.lists(st.sampled_from(["order.*", "order.created", "**", "account.*"]), min_size=1, max_size=3)
STEPS_OF_CHANGES = st.lists(
    st.tuples(st.sampled_from("abcdef"), PATTERN_LISTS, st.lists(FILTERS, max_size=3) | st.none()), max_size=16
)
EVENTS = st.builds(
    lambda code, source, tenant, data: new_event(
        NewEvent(type=code, source=source, data=msgspec.Raw(data), extensions={"tenant": tenant}), "e", 1.0
    ),
    st.sampled_from(["order.created", "order.shipped", "account.closed"]),
    st.sampled_from(["shop", "web", "other"]),
    st.sampled_from(["shop", "web", 7, None]),
    st.sampled_from([b'{"total":12}', b"1", b"[" + b"1," * 20_000 + b"1]"]),
)


@given(STEPS_OF_CHANGES, st.lists(EVENTS, min_size=1, max_size=4))
def test_the_index_finds_exactly_whom_asking_everyone_finds(
    changes: list[tuple[str, list[str], list[Any] | None]], happened: list[Event]
) -> None:
    matcher = Matcher()
    now: dict[str, Subscription] = {}
    for name, patterns, filters in changes:
        if filters is None:
            matcher.remove(name)
            now.pop(name, None)
        else:
            now[name] = subscription(name, *patterns, filters=tuple(filters))
            matcher.replace(now[name])
    for one in happened:
        wanting = []
        for name, wanted in sorted(now.items()):
            asked = compiled(wanted.filters)
            of_type = any(matches(pattern, one.type) for pattern in wanted.patterns)
            if of_type and (asked is None or asked.passes(EventView(one)) is not False):
                wanting.append(name)
        assert found(matcher, one) == wanting


def test_an_index_of_subscriptions_that_all_left_is_empty() -> None:
    matcher = Matcher()
    for number in range(4):
        tenant = {"exact": {"source": "shop", "tenant": f"t{number % 2}"}}
        matcher.replace(subscription(f"s{number}", "order.*", "order.*", "**", filters=(tenant,) * (number % 3)))
    for number in range(4):
        matcher.remove(f"s{number}")
    index = matcher._index
    assert (index._by_pattern, index._found_by, index._count) == ({}, {}, {})
    assert index._types._root.next == {}


def visits(subscriptions: int, filters: Callable[[int], Any]) -> int:
    """Of an event that fits all patterns and no filter."""
    matcher = Matcher(subscription(f"s{n}", "order.*", filters=(filters(n),)) for n in range(subscriptions))
    asked = NewEvent(type="order.created", source="shop", extensions={"tenant": "nobody"})
    assert matcher.match(new_event(asked, "e", 1.0)) == []
    return matcher.visits


@pytest.mark.thorough
@pytest.mark.parametrize(
    "filters",
    [
        lambda n: {"exact": {"tenant": f"t{n}"}},
        lambda n: {"exact": {"source": "shop", "specversion": "1.0", "tenant": f"t{n}", "type": "order.created"}},
        lambda n: {"all": [{"jsonpath": "$.total > 1"}, {"all": [{"exact": {"Tenant": f"t{n}"}}]}]},
        lambda n: {"exact": {f"name{n}": "x"}},
    ],
    ids=["tenant", "tenant among others", "within all", "names that no event has"],
)
def test_ten_thousand_filters_that_an_event_does_not_fit_cost_it_what_ten_do(filters: Callable[[int], Any]) -> None:
    assert visits(10_000, filters) <= 1.5 * visits(10, filters)
