"""An index from an event to the subscriptions that may want it: by its type, then by one attribute. Pure.

A subscription whose filters want attributes to be exactly so is found by one of them, that which the fewest others are
found by. The index says who may want an event; whether all their filters pass is for these to say.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Final, TypeAlias

from flowcatalyst.dispatch.event_types import TypeIndex
from flowcatalyst.dispatch.filters import EventView, Filter

_Pair: TypeAlias = tuple[str, str]  # an attribute and its value
_Codes: TypeAlias = dict[str, None]
_ANY: Final = ("", "")  # of a subscription that names no attribute; no attribute is called so


class SubscriptionIndex:
    """Codes of subscriptions. What an event costs depends on its segments and attributes and on those that fit it."""

    def __init__(self) -> None:
        self._types: TypeIndex[str] = TypeIndex()  # to the patterns themselves
        self._by_pattern: dict[str, dict[str, dict[str, _Codes]]] = {}  # then by attribute and its value
        self._found_by: dict[str, tuple[frozenset[str], _Pair]] = {}  # by code
        self._count: Counter[_Pair] = Counter()  # of subscriptions that are found by it
        self._visits = 0

    @property
    def visits(self) -> int:
        """Nodes, attributes and subscriptions that all lookups together looked at."""
        return self._visits + self._types.visits

    def put(self, code: str, patterns: Sequence[str], filters: Filter | None) -> None:
        """In the place of what was there by this code."""
        self.remove(code)
        pairs = filters.exactly if filters is not None and filters.exactly else (_ANY,)
        pair = attribute, value = min(pairs, key=lambda one: self._count[one])
        self._count[pair] += 1
        self._found_by[code] = (frozenset(patterns), pair)
        for pattern in self._found_by[code][0]:
            if pattern not in self._by_pattern:
                self._by_pattern[pattern] = {}
                self._types.add(pattern, pattern)
            self._by_pattern[pattern].setdefault(attribute, {}).setdefault(value, {})[code] = None

    def remove(self, code: str) -> None:
        """One that is not there is removed already."""
        patterns, pair = self._found_by.pop(code, (frozenset(), _ANY))
        attribute, value = pair
        for pattern in patterns:
            attributes = self._by_pattern[pattern]
            del attributes[attribute][value][code]
            if not attributes[attribute][value]:
                del attributes[attribute][value]
            if not attributes[attribute]:
                del attributes[attribute]
            if not attributes:
                del self._by_pattern[pattern]
                self._types.remove(pattern, pattern)
        if patterns:
            self._count[pair] -= 1
            if not self._count[pair]:
                del self._count[pair]

    def candidates(self, event_type: str, view: EventView) -> set[str]:
        """Those that may want an event: all that do are among them."""
        found: set[str] = set()
        for pattern in self._types.match(event_type):
            attributes = self._by_pattern[pattern]
            for attribute, value in self._asked(attributes, view):
                codes = attributes[attribute].get(value, {})
                self._visits += 1 + len(codes)
                found.update(codes)
        return found

    def _asked(self, attributes: dict[str, dict[str, _Codes]], view: EventView) -> list[_Pair]:
        """What the event says of those attributes, whichever are fewer: those it has or those somebody asks for."""
        any_of_them = [_ANY] if _ANY[0] in attributes else []
        if len(attributes) == len(any_of_them):
            return any_of_them
        self._visits += min(len(attributes), len(view.attributes))
        return any_of_them + [(name, view.attributes[name]) for name in attributes.keys() & view.attributes.keys()]
