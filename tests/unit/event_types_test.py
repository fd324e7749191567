"""Event types, patterns, and the index that finds subscriptions by them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowcatalyst.dispatch.event_types import (
    MAX_SEGMENTS,
    InvalidEventTypeError,
    TypeIndex,
    check_event_type,
    check_pattern,
)

SEGMENTS = st.sampled_from(["a", "ab"])
SEPARATORS = st.sampled_from([".", ".", ":"])


@st.composite
def codes(draw: st.DrawFn, segments: st.SearchStrategy[str] = SEGMENTS, last: str = "") -> str:
    code = draw(segments)
    for _ in range(draw(st.integers(0, 3))):
        code += draw(SEPARATORS) + draw(segments)
    return code + draw(SEPARATORS) + last if last and draw(st.booleans()) else code


PATTERNS = codes(SEGMENTS | st.just("*"), last="**") | st.just("**")


def matches(pattern: str, code: str) -> bool:
    """Said again without an index: character by character."""
    if not pattern or not code:
        return pattern == code
    if pattern == "**":
        return True
    if pattern[0] == "*":
        end = min((at for at in (code.find("."), code.find(":")) if at >= 0), default=len(code))
        return matches(pattern[1:], code[end:])
    return pattern[0] == code[0] and matches(pattern[1:], code[1:])


@given(st.sets(st.tuples(PATTERNS, st.integers(0, 1)), max_size=12), st.sets(st.integers(0, 11)), codes())
def test_the_index_finds_whom_a_naive_matcher_finds(added: set[tuple[str, int]], removed: set[int], code: str) -> None:
    index: TypeIndex[tuple[str, int]] = TypeIndex()
    check_event_type("it", code)
    for one in added:
        check_pattern("it", one[0])
        index.add(one[0], one)
    kept = set(added)
    for number, one in enumerate(sorted(added)):
        if number in removed:
            index.remove(one[0], one)
            kept.discard(one)
    assert set(index.match(code)) == {one for one in kept if matches(one[0], code)}


@pytest.mark.parametrize(
    ("pattern", "matching", "others"),
    [
        ("order.created", ["order.created"], ["order.created.v2", "order:created", "order"]),
        ("order.*", ["order.created", "order.shipped"], ["order", "order.created.v2", "order:created"]),
        ("*.created", ["order.created"], ["shop.order.created", "created"]),
        ("order.**", ["order.created", "order.created.v2", "order.created:late"], ["order", "orders.a", "order:a"]),
        ("shop:*:**", ["shop:orders:order:created", "shop:orders:a.b"], ["shop:orders", "shop:orders.a"]),
        ("**", ["order", "order.created"], []),
    ],
)
def test_patterns_match_what_the_manual_says(pattern: str, matching: list[str], others: list[str]) -> None:
    index: TypeIndex[str] = TypeIndex()
    index.add(pattern, "s")
    assert [code for code in matching + others if index.match(code)] == matching


def test_an_index_that_everything_left_is_empty() -> None:
    index: TypeIndex[str] = TypeIndex()
    for pattern in ("order.*", "order.created", "order.**", "**"):
        index.add(pattern, "s")
    for pattern in ("order.created", "**", "order.**", "order.*"):
        index.remove(pattern, "s")
    assert index._root.next == {}
    with pytest.raises(KeyError):
        index.remove("order.*", "s")


def visits(subscriptions: int, code: str) -> int:
    """Of an event that none of them wants: some are about other things, some differ in the last segment only."""
    index: TypeIndex[int] = TypeIndex()
    for number in range(subscriptions):
        index.add(f"shop{number}.order.*", number)
        index.add(f"shop.order.created.v{number}", number)
        index.add(f"*.order.*.v{number}", number)
    assert index.match(code) == {}
    return index.visits


@pytest.mark.parametrize("code", ["shop.order.created.other", "unknown", "shop:order"])
def test_ten_thousand_subscriptions_cost_an_event_that_none_wants_what_ten_do(code: str) -> None:
    assert visits(10_000, code) == visits(10, code) <= 2 * MAX_SEGMENTS


def test_a_hostile_type_visits_no_more_nodes_than_its_segments_allow() -> None:
    index: TypeIndex[int] = TypeIndex()
    depth = 12
    for number in range(2**depth):
        pattern = ".".join("*" if number >> bit & 1 else "a" for bit in range(depth))
        index.add(f"{pattern}.end", number)
    assert index.match(".".join(["a"] * (depth + 1))) == {}
    assert index.visits == 2 ** (depth + 1) - 1


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("", "no event type"),
        ("order..created", "no event type"),
        (".order", "no event type"),
        ("order.", "no event type"),
        ("order created", "no event type"),
        ("order.*", "no event type"),
        ("order\r\nX-Evil: yes", "no event type"),
        ("bestätigt", "no event type"),
        ("a" * 256, "type has 256 characters"),
        ("a." * 16 + "a", "type has 17 segments"),
    ],
)
def test_what_is_no_type_is_refused(code: str, words: str) -> None:
    with pytest.raises(InvalidEventTypeError, match=words):
        check_event_type("type", code)


@pytest.mark.parametrize(
    "pattern", ["", "***", "order.**.created", "**.created", "order.cre*", "*order", "a..b", "a.**.**"]
)
def test_what_is_no_pattern_is_refused(pattern: str) -> None:
    with pytest.raises(InvalidEventTypeError, match="no pattern of event types"):
        check_pattern("eventTypeCode", pattern)


@pytest.mark.parametrize(
    "code",
    ["order.created", "shop:orders:order:created", "com.github.pull_request.opened", "Microsoft.Storage.BlobCreated"],
)
def test_types_that_people_use_are_types(code: str) -> None:
    check_event_type("type", code)
    check_pattern("eventTypeCode", code)
