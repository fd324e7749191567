"""Conditions on JSON data in the words of JSONPath (RFC 9535), evaluated in a bounded number of steps. Pure.

A condition is what stands in a filter selector of RFC 9535 (`logical-expr`), where `$` and `@` are both the data:
`$.total > 10 && @.currency == 'EUR'`. A query alone asks whether it selects anything: `$.items[?@.price > 10]`.

python-jsonpath reads them, strictly by the RFC. It is not used to evaluate them: it cannot be stopped, evaluates what
need not be, and its regular expressions can take for ever. What takes more than linear time is refused when it is read
(see `_Reader`), and the rest counts its steps.
"""

from collections.abc import Callable, Iterator
from typing import Any, Final, TypeAlias

from jsonpath import JSONPath, JSONPathEnvironment, segments, selectors
from jsonpath import filter as parsed
from jsonpath.exceptions import JSONPathError

from flowcatalyst.core.errors import FlowCatalystError

MAX_CONDITION_CHARS: Final = 1024
MAX_CONDITION_PARTS: Final = 64  # selectors, operators, literals and functions
CHARS_PER_STEP: Final = 64  # of strings that are compared

_RFC: Final = JSONPathEnvironment(strict=True, filter_caching=False)
_BEFORE: Final = "$[?"
_LONGEST_SAID: Final = 200
_REGEX: Final = ("match", "search")
NOTHING: Final = object()  # RFC 9535's result of a query that selects no value


class InvalidConditionError(FlowCatalystError):
    """A condition is not JSONPath, or not the part of it that can be evaluated in bounded time."""


class OutOfStepsError(FlowCatalystError):
    """A condition was not decided within its steps."""


class Steps:
    """How many nodes of data may still be looked at."""

    __slots__ = ("left",)

    def __init__(self, left: int) -> None:
        self.left = left

    def take(self, count: int = 1) -> None:
        self.left -= count
        if self.left < 0:
            raise OutOfStepsError


# Of the current node, the root, and the steps that are left.
Condition: TypeAlias = Callable[[Any, Any, Steps], bool]
_Value: TypeAlias = Callable[[Any, Any, Steps], Any]
_Nodes: TypeAlias = Callable[[Any, Any, Steps], Iterator[Any]]
_Selector: TypeAlias = Callable[[Any, Any, Steps], Iterator[Any]]


def read_condition(text: str) -> Condition:
    """What tests data: `condition(data, data, Steps(n))`. Raises `InvalidConditionError`, which says where."""
    if len(text) > MAX_CONDITION_CHARS:
        raise InvalidConditionError(f"has {len(text)} characters, more than the {MAX_CONDITION_CHARS} allowed")
    try:
        match _RFC.compile(f"{_BEFORE}{text}]"):
            case JSONPath(segments=(segments.JSONPathChildSegment(selectors=(selectors.Filter() as whole,)),)):
                return _Reader().condition(whole.expression.expression, inside=False)
    except RecursionError:  # also that of the library
        raise InvalidConditionError("is nested too deeply") from None
    except JSONPathError as error:
        at = len(text) if error.token is None else min(max(error.token.index - len(_BEFORE), 0), len(text))
        said = str(error.message)[:_LONGEST_SAID]
        raise InvalidConditionError(f"is no JSONPath at character {at + 1}: {said}") from None
    except (OverflowError, ValueError):
        raise InvalidConditionError("has a number that is out of range") from None
    raise InvalidConditionError("is more than one JSONPath expression")


class _Reader:
    """Makes functions of what the library read, and refuses what could take long.

    There is one `..` at most, no filter within a filter, and within a filter `$` begins the path to one value only:
    each of these would multiply the steps by the size of the data.
    """

    def __init__(self) -> None:
        self._parts = 0
        self._has_descent = False

    def _count(self) -> None:
        self._parts += 1
        if self._parts > MAX_CONDITION_PARTS:
            raise InvalidConditionError(f"has more than the {MAX_CONDITION_PARTS} selectors and operators allowed")

    def condition(self, expression: parsed.BaseExpression, inside: bool) -> Condition:
        """`inside`: of a filter of the condition."""
        self._count()
        match expression:
            case parsed.PrefixExpression(operator="!", right=right):
                inner = self.condition(right, inside)
                return lambda current, root, steps: not inner(current, root, steps)
            case parsed.InfixExpression(operator="&&"):
                one, other = self.condition(expression.left, inside), self.condition(expression.right, inside)
                return lambda current, root, steps: one(current, root, steps) and other(current, root, steps)
            case parsed.InfixExpression(operator="||"):
                one, other = self.condition(expression.left, inside), self.condition(expression.right, inside)
                return lambda current, root, steps: one(current, root, steps) or other(current, root, steps)
            case parsed.InfixExpression(operator=operator) if operator in _COMPARISONS:
                left, right_value = self._value(expression.left, inside), self._value(expression.right, inside)
                compare = _COMPARISONS[operator]
                return lambda current, root, steps: compare(
                    left(current, root, steps), right_value(current, root, steps), steps
                )
            case parsed.RelativeFilterQuery() | parsed.RootFilterQuery():
                if expression.path.singular_query():
                    value = self._value(expression, inside)
                    return lambda current, root, steps: value(current, root, steps) is not NOTHING
                nodes = self._nodes(expression, inside)
                return lambda current, root, steps: any(True for _ in nodes(current, root, steps))
            case parsed.FunctionExtension(name=name) if name in _REGEX:
                instead = "compare with == or use the dialects prefix and suffix"
                raise InvalidConditionError(f"uses {name}(), whose regular expressions can take for ever: {instead}")
        raise InvalidConditionError(f"has {str(expression)[:60]!r}, which is no condition of RFC 9535")

    def _value(self, expression: parsed.BaseExpression, inside: bool) -> _Value:
        self._count()
        match expression:
            case parsed.Nil():
                return lambda current, root, steps: None
            case (
                parsed.BooleanLiteral(value=literal)
                | parsed.StringLiteral(value=literal)
                | parsed.IntegerLiteral(value=literal)
                | parsed.FloatLiteral(value=literal)
            ):
                return lambda current, root, steps: literal
            case parsed.RelativeFilterQuery() | parsed.RootFilterQuery() if expression.path.singular_query():
                return self._one_value(expression)
            case parsed.FunctionExtension(name="length", args=[argument]):
                value = self._value(argument, inside)
                return lambda current, root, steps: _length(value(current, root, steps))
            case parsed.FunctionExtension(name="count", args=[parsed.FilterQuery() as query]):
                counted = self._nodes(query, inside)
                return lambda current, root, steps: sum(1 for _ in counted(current, root, steps))
            case parsed.FunctionExtension(name="value", args=[parsed.FilterQuery() as query]):
                nodes = self._nodes(query, inside)
                return lambda current, root, steps: _only(nodes(current, root, steps))
        raise InvalidConditionError(f"has {str(expression)[:60]!r}, which is no value of RFC 9535")

    def _one_value(self, query: parsed.FilterQuery) -> _Value:
        """Of a path of names and indexes."""
        keys: list[str | int] = []
        for segment in query.path.segments:
            self._count()
            (selector,) = segment.selectors
            keys.append(selector.name if isinstance(selector, selectors.NameSelector) else selector.index)  # type: ignore[attr-defined]
        absolute, path, cost = isinstance(query, parsed.RootFilterQuery), tuple(keys), len(keys) + 1

        def value(current: Any, root: Any, steps: Steps) -> Any:
            steps.take(cost)
            node = root if absolute else current
            for key in path:
                node = _child(node, key)
                if node is NOTHING:
                    break
            return node

        return value

    def _nodes(self, query: parsed.FilterQuery, inside: bool) -> _Nodes:
        absolute = isinstance(query, parsed.RootFilterQuery)
        if absolute and inside and not query.path.singular_query():
            raise InvalidConditionError("has a path from $ to many values within a filter: compare with one value")
        steps_of_path = [self._segment(segment, inside) for segment in query.path.segments]

        def nodes(current: Any, root: Any, steps: Steps) -> Iterator[Any]:
            found = iter((root if absolute else current,))
            for descends, chosen in steps_of_path:
                found = _select(_descendants(found, steps) if descends else found, chosen, root, steps)
            return found

        return nodes

    def _segment(self, segment: segments.JSONPathSegment, inside: bool) -> tuple[bool, tuple[_Selector, ...]]:
        descends = isinstance(segment, segments.JSONPathRecursiveDescentSegment)
        if descends and self._has_descent:
            at = segment.token.index - len(_BEFORE) + 1
            raise InvalidConditionError(f"has a second `..` at character {at}: one is allowed")
        self._has_descent |= descends
        return descends, tuple(self._selector(selector, inside) for selector in segment.selectors)

    def _selector(self, selector: selectors.JSONPathSelector, inside: bool) -> _Selector:
        self._count()
        match selector:
            case selectors.NameSelector(name=key) | selectors.IndexSelector(index=key):
                return lambda node, root, steps: _one(node, key, steps)
            case selectors.WildcardSelector():
                return lambda node, root, steps: _counted(_children(node), steps)
            case selectors.SliceSelector(slice=part):
                return lambda node, root, steps: _sliced(node, part, steps)
            case selectors.Filter():
                if inside:
                    at = selector.token.index - len(_BEFORE) + 1
                    raise InvalidConditionError(f"has a filter within a filter at character {at}")
                holds = self.condition(selector.expression.expression, inside=True)
                return lambda node, root, steps: (
                    child for child in _counted(_children(node), steps) if holds(child, root, steps)
                )
        raise InvalidConditionError(f"has {str(selector)[:60]!r}, which is no selector of RFC 9535")


def _child(node: Any, key: str | int) -> Any:
    if isinstance(key, str):
        return node.get(key, NOTHING) if type(node) is dict else NOTHING
    return node[key] if type(node) is list and -len(node) <= key < len(node) else NOTHING


def _children(node: Any) -> Iterator[Any]:
    return iter(node.values() if type(node) is dict else node if type(node) is list else ())


def _counted(nodes: Iterator[Any], steps: Steps) -> Iterator[Any]:
    steps.take()  # also for one that has none
    for node in nodes:
        steps.take()
        yield node


def _one(node: Any, key: str | int, steps: Steps) -> Iterator[Any]:
    steps.take()
    child = _child(node, key)
    if child is not NOTHING:
        yield child


def _sliced(node: Any, part: slice, steps: Steps) -> Iterator[Any]:
    steps.take()
    if type(node) is list and part.step != 0:
        for index in range(*part.indices(len(node))):
            steps.take()
            yield node[index]


def _select(nodes: Iterator[Any], chosen: tuple[_Selector, ...], root: Any, steps: Steps) -> Iterator[Any]:
    for node in nodes:
        for selector in chosen:
            yield from selector(node, root, steps)


def _descendants(nodes: Iterator[Any], steps: Steps) -> Iterator[Any]:
    """Each node and all that is in it, without recursion."""
    open_nodes = [nodes]
    while open_nodes:
        for node in open_nodes[-1]:
            steps.take()
            yield node
            if type(node) is dict or type(node) is list:
                open_nodes.append(_children(node))
                break
        else:
            open_nodes.pop()


def _length(value: Any) -> Any:
    return len(value) if type(value) in (str, list, dict) else NOTHING


def _only(nodes: Iterator[Any]) -> Any:
    """The value of the one node there is."""
    first, second = next(nodes, NOTHING), next(nodes, NOTHING)
    return first if second is NOTHING else NOTHING


def _equal(one: Any, other: Any, steps: Steps) -> bool:
    """As JSON values: true is not 1, and lists and objects are equal by what is in them."""
    pairs = [(one, other)]
    while pairs:
        one, other = pairs.pop()
        kind, other_kind = type(one), type(other)
        if kind is dict and other_kind is dict:
            steps.take(len(one) + 1)
            if one.keys() != other.keys():
                return False
            pairs.extend((value, other[name]) for name, value in one.items())
        elif kind is list and other_kind is list:
            if len(one) != len(other):
                return False
            steps.take(len(one) + 1)
            pairs.extend(zip(one, other, strict=True))
        elif kind is str and other_kind is str:
            if len(one) != len(other):
                return False
            steps.take(len(one) // CHARS_PER_STEP)
            if one != other:
                return False
        elif kind in (int, float) and other_kind in (int, float):
            if one != other:
                return False
        elif one is not other:  # null, true and false, and nothing
            return False
    return True


def _less(one: Any, other: Any, steps: Steps) -> bool:
    if type(one) is str and type(other) is str:
        steps.take(min(len(one), len(other)) // CHARS_PER_STEP)
        return one < other
    return type(one) in (int, float) and type(other) in (int, float) and bool(one < other)


_COMPARISONS: Final[dict[str, Callable[[Any, Any, Steps], bool]]] = {
    "==": _equal,
    "!=": lambda one, other, steps: not _equal(one, other, steps),
    "<": _less,
    ">": lambda one, other, steps: _less(other, one, steps),
    "<=": lambda one, other, steps: _less(one, other, steps) or _equal(one, other, steps),
    ">=": lambda one, other, steps: _less(other, one, steps) or _equal(one, other, steps),
}
