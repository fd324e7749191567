"""Event types and the patterns that subscriptions name them by, with an index from a type to who wants it. Pure.

A type is segments with a dot or a colon between them: `order.created`, `shop:orders:order:created`. In a pattern `*`
stands for one segment and `**`, as the last one, for all that follow, at least one. The separators count: `order.*`
does not match `order:created`; behind `**` there may be any.
"""

import re
from collections.abc import Hashable
from typing import Final, Generic, TypeVar

from flowcatalyst.core.errors import FlowCatalystError

MAX_TYPE_CHARS: Final = 255
MAX_SEGMENTS: Final = 16  # a type visits at most 2 ** MAX_SEGMENTS nodes, however patterns are made

_SEGMENT: Final = r"[A-Za-z0-9_/~+@=-]+"
_TYPE: Final = re.compile(rf"{_SEGMENT}(?:[.:]{_SEGMENT})*")
_PATTERN: Final = re.compile(rf"(?:{_SEGMENT}|\*)(?:[.:](?:{_SEGMENT}|\*))*(?:[.:]\*\*)?|\*\*")
_PART: Final = re.compile(r"[.:]?[^.:]+")
_LONGEST_SHOWN: Final = 60
_RULES: Final = "letters, digits and - _ / ~ + @ = with a dot or a colon between segments"

Key = TypeVar("Key", bound=Hashable)


class InvalidEventTypeError(FlowCatalystError):
    """That is no event type, or no pattern of event types."""


def check_event_type(what: str, code: str) -> None:
    """Raise `InvalidEventTypeError` unless an event may have this type."""
    _check_size(what, code)
    if not _TYPE.fullmatch(code):
        raise InvalidEventTypeError(f"{what} is {_shown(code)}, which is no event type: it has {_RULES}")


def check_pattern(what: str, pattern: str) -> None:
    """Raise `InvalidEventTypeError` unless a subscription may ask for this."""
    _check_size(what, pattern)
    if not _PATTERN.fullmatch(pattern):
        wildcards = "* for one segment, or ** as the last one for all that follow"
        raise InvalidEventTypeError(
            f"{what} is {_shown(pattern)}, which is no pattern of event types: it has {_RULES}, {wildcards}"
        )


def sample_type(pattern: str) -> str:
    """An event type that a pattern matches."""
    return pattern.replace("**", "test").replace("*", "test")


def _check_size(what: str, code: str) -> None:
    if len(code) > MAX_TYPE_CHARS:
        raise InvalidEventTypeError(f"{what} has {len(code)} characters, more than the {MAX_TYPE_CHARS} allowed")
    if (count := code.count(".") + code.count(":") + 1) > MAX_SEGMENTS:
        raise InvalidEventTypeError(f"{what} has {count} segments, more than the {MAX_SEGMENTS} allowed")


def _shown(code: str) -> str:
    return repr(code if len(code) <= _LONGEST_SHOWN else f"{code[:_LONGEST_SHOWN]}...")


class _Node(Generic[Key]):
    """What begins alike: by the next part, a segment with the separator before it."""

    __slots__ = ("ends", "next")

    def __init__(self) -> None:
        self.next: dict[str, _Node[Key]] = {}
        self.ends: dict[Key, None] = {}  # whose pattern ends here


class TypeIndex(Generic[Key]):
    """Keys by the patterns they were added with. What an event type costs depends on its segments, not on the keys."""

    def __init__(self) -> None:
        self._root: _Node[Key] = _Node()
        self.visits = 0  # nodes that all matches together looked at

    def add(self, pattern: str, key: Key) -> None:
        """A pattern that `check_pattern` accepts; a second time changes nothing."""
        node = self._root
        for part in _PART.findall(pattern):
            node = node.next.setdefault(part, _Node())
        node.ends[key] = None

    def remove(self, pattern: str, key: Key) -> None:
        """Undo `add`. Raises `KeyError` if it was not added."""
        path = [self._root]
        parts = _PART.findall(pattern)
        for part in parts:
            path.append(path[-1].next[part])
        del path[-1].ends[key]
        for node, part in zip(reversed(path[:-1]), reversed(parts), strict=True):
            if node.next[part].next or node.next[part].ends:
                break
            del node.next[part]

    def match(self, event_type: str) -> dict[Key, None]:
        """The keys whose patterns match, each once, in no order that means anything."""
        found: dict[Key, None] = {}
        nodes = [self._root]
        for part in _PART.findall(event_type):
            separator = part[0] if part[0] in ".:" else ""
            one, rest = separator + "*", separator + "**"
            reached = []
            for node in nodes:
                if (exact := node.next.get(part)) is not None:
                    reached.append(exact)
                if (any_one := node.next.get(one)) is not None:
                    reached.append(any_one)
                if (any_rest := node.next.get(rest)) is not None:
                    found.update(any_rest.ends)
            self.visits += len(nodes)
            if not reached:
                return found
            nodes = reached
        for node in nodes:
            found.update(node.ends)
        self.visits += len(nodes)
        return found
