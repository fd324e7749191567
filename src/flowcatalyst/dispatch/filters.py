"""Filters of subscriptions: the dialects of CloudEvents Subscriptions, and conditions on data. Pure.

A filter is an object with one dialect in it. `exact`, `prefix` and `suffix` compare attributes, `all`, `any` and `not`
put filters together, `jsonpath` is a condition on the data (`conditions.py`); a list of filters is like `all`:

    [{"exact": {"source": "shop"}}, {"any": [{"prefix": {"subject": "order:"}}, {"jsonpath": "$.total > 100"}]}]

Whether an event passes is True, False, or None: undecided. A condition that needs more than `MAX_STEPS` on the data of
an event is undecided, and so is what depends on it. Whoever asks takes undecided as a match, since an event too many is
better than one that is lost; attributes are always decided.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, TypeAlias

import msgspec

from flowcatalyst.core.errors import FlowCatalystError
from flowcatalyst.core.spelling import nearest
from flowcatalyst.dispatch.cloudevents import attributes_of
from flowcatalyst.dispatch.conditions import InvalidConditionError, OutOfStepsError, Steps, read_condition
from flowcatalyst.dispatch.event import MAX_EXTENSION_NAME_CHARS, Event, containers_in

MAX_FILTER_PARTS: Final = 64  # dialects, and attributes in them
MAX_FILTER_DEPTH: Final = 8
MAX_FILTER_CHARS: Final = 1024  # of a value to compare with
MAX_STEPS: Final = 10_000  # for all conditions of one subscription on one event
MAX_DECODED_CONTAINERS: Final = 10_000  # objects and lists of data: beyond, they are not even decoded
COMPILED_KEPT: Final = 4096

FilterSpec: TypeAlias = dict[str, Any]  # as JSON has it
Verdict: TypeAlias = bool | None  # None: undecided
_Check: TypeAlias = Callable[["EventView", Steps], Verdict]

_COMPARED: Final[dict[str, Callable[[str, str], bool]]] = {
    "exact": str.__eq__,
    "prefix": str.startswith,
    "suffix": str.endswith,
}
_DIALECTS: Final = (*_COMPARED, "all", "any", "not", "jsonpath")
_ATTRIBUTE: Final = re.compile(rf"[a-z0-9]{{1,{MAX_EXTENSION_NAME_CHARS}}}")
_ABSENT: Final = object()


class InvalidFilterError(FlowCatalystError):
    """A filter cannot be used as it is; whoever wrote it has to change it."""


class EventView:
    """An event as filters see it. What they ask for is made once, whoever asks, and not before."""

    __slots__ = ("_attributes", "_data", "_event", "_undecidable")

    def __init__(self, event: Event) -> None:
        self._event = event
        self._attributes: dict[str, str] | None = None
        self._data: Any = None
        self._undecidable: bool | None = None  # None: nobody asked yet

    @property
    def attributes(self) -> dict[str, str]:
        """All of them as text, extensions too: true and 7 are "true" and "7"."""
        if self._attributes is None:
            found = attributes_of(self._event)
            self._attributes = {
                name: value if isinstance(value, str) else msgspec.json.encode(value).decode()
                for name, value in found.items()
            }
        return self._attributes

    def test_data(self, condition: Callable[[Any, Any, Steps], bool], steps: Steps) -> bool:
        """Whether its data are JSON and fulfil a condition. Raises `OutOfStepsError`."""
        if self._undecidable is None:
            self._undecidable = False
            self._data = _ABSENT
            if self._event.data_is_json:
                try:
                    self._data = decoded(self._event.data)
                except OutOfStepsError:
                    self._undecidable = True
        if self._undecidable:
            raise OutOfStepsError
        return self._data is not _ABSENT and condition(self._data, self._data, steps)


def decoded(data: msgspec.Raw) -> Any:
    """Raises `OutOfStepsError` for what takes too long to decode, or has numbers that cannot be."""
    if containers_in(bytes(data)) > MAX_DECODED_CONTAINERS:
        raise OutOfStepsError
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError):
        raise OutOfStepsError from None


@dataclass(slots=True, frozen=True, eq=False)
class Filter:
    """The filters of a subscription, ready for use. The same filters are the same object, as long as they are kept."""

    check: _Check
    needs_data: bool
    exactly: tuple[tuple[str, str], ...] = ()  # attributes, lower case, that nothing passes without

    def passes(self, view: EventView, steps: Steps | None = None) -> Verdict:
        """Whether an event passes; None: undecided, which is to be taken as a match. `steps` tells what it took."""
        return self.check(view, steps or Steps(MAX_STEPS))


def compiled(filters: Sequence[FilterSpec]) -> Filter | None:
    """The filters of a subscription, or None if there are none. Raises `InvalidFilterError`, which says where."""
    if not filters:
        return None
    try:
        return _compiled(msgspec.json.encode(filters, order="deterministic"))
    except RecursionError:
        raise InvalidFilterError(f"filters have filters within each other more than {MAX_FILTER_DEPTH} deep") from None


@lru_cache(maxsize=COMPILED_KEPT)
def _compiled(filters: bytes) -> Filter:
    return _Compiler().all_of("filters", msgspec.json.decode(filters), 1)


class _Compiler:
    def __init__(self) -> None:
        self._parts = 0

    def _count(self, place: str) -> None:
        self._parts += 1
        if self._parts > MAX_FILTER_PARTS:
            raise InvalidFilterError(f"{place} is more than the {MAX_FILTER_PARTS} filters and attributes allowed")

    def filter(self, place: str, spec: Any, depth: int) -> Filter:
        self._count(place)
        if depth > MAX_FILTER_DEPTH:
            raise InvalidFilterError(f"{place} is within more than the {MAX_FILTER_DEPTH} filters allowed")
        if not isinstance(spec, dict) or len(spec) != 1:
            raise InvalidFilterError(f"{place} must be an object with one dialect: {', '.join(_DIALECTS)}")
        ((dialect, inner),) = spec.items()
        place = f"{place}.{dialect[:40]}"
        if dialect in _COMPARED:
            return self._attributes(place, inner, _COMPARED[dialect])
        match dialect:
            case "all":
                return self.all_of(place, inner, depth + 1)
            case "any":
                return self._any_of(place, inner, depth + 1)
            case "not":
                return self._not(place, inner, depth + 1)
            case "jsonpath":
                return _on_data(place, inner)
        near = nearest(dialect, _DIALECTS)
        meant = f"the dialects are {', '.join(_DIALECTS)}" if near is None else f"did you mean {near}?"
        raise InvalidFilterError(f"{place} is not a dialect here: {meant}")

    def _parts_of(self, place: str, specs: Any, depth: int) -> list[Filter]:
        """Those that need no data first: then it may not be decoded at all."""
        if not isinstance(specs, list) or not specs:
            raise InvalidFilterError(f"{place} must be a list with a filter in it")
        parts = [self.filter(f"{place}[{number}]", spec, depth) for number, spec in enumerate(specs)]
        return sorted(parts, key=lambda part: part.needs_data)

    def all_of(self, place: str, specs: Any, depth: int) -> Filter:
        parts = self._parts_of(place, specs, depth)
        checks = [part.check for part in parts]

        def check(view: EventView, steps: Steps) -> Verdict:
            verdict: Verdict = True
            for one in checks:
                match one(view, steps):
                    case False:
                        return False
                    case None:
                        verdict = None
            return verdict

        return Filter(check, parts[-1].needs_data, tuple(pair for part in parts for pair in part.exactly))

    def _any_of(self, place: str, specs: Any, depth: int) -> Filter:
        parts = self._parts_of(place, specs, depth)
        checks = [part.check for part in parts]

        def check(view: EventView, steps: Steps) -> Verdict:
            verdict: Verdict = False
            for one in checks:
                match one(view, steps):
                    case True:
                        return True
                    case None:
                        verdict = None
            return verdict

        return Filter(check, parts[-1].needs_data)

    def _not(self, place: str, spec: Any, depth: int) -> Filter:
        inner = self.filter(place, spec, depth)

        def check(view: EventView, steps: Steps) -> Verdict:
            verdict = inner.check(view, steps)
            return None if verdict is None else not verdict

        return Filter(check, inner.needs_data)

    def _attributes(self, place: str, wanted: Any, compare: Callable[[str, str], bool]) -> Filter:
        if not isinstance(wanted, Mapping) or not wanted:
            raise InvalidFilterError(f"{place} must be an object with an attribute in it")
        pairs: list[tuple[str, str]] = []
        for name, value in wanted.items():
            attribute, shown = name.lower(), f"{place}.{name[:40]}"
            self._count(shown)
            if not _ATTRIBUTE.fullmatch(attribute):
                raise InvalidFilterError(f"{shown} is no name of an attribute: it has letters and digits")
            if not isinstance(value, str) or not value:
                raise InvalidFilterError(f"{shown} must be text that is not empty")
            if len(value) > MAX_FILTER_CHARS:
                raise InvalidFilterError(
                    f"{shown} has {len(value)} characters, more than the {MAX_FILTER_CHARS} allowed"
                )
            pairs.append((attribute, value))

        def check(view: EventView, steps: Steps) -> Verdict:
            attributes = view.attributes
            return all((found := attributes.get(name)) is not None and compare(found, value) for name, value in pairs)

        return Filter(check, needs_data=False, exactly=tuple(pairs) if compare is str.__eq__ else ())


def _on_data(place: str, text: Any) -> Filter:
    if not isinstance(text, str):
        raise InvalidFilterError(f"{place} must be text")
    try:
        condition = read_condition(text)
    except InvalidConditionError as error:
        raise InvalidFilterError(f"{place} {error}") from None

    def check(view: EventView, steps: Steps) -> Verdict:
        try:
            return view.test_data(condition, steps)
        except OutOfStepsError:
            return None

    return Filter(check, needs_data=True)
