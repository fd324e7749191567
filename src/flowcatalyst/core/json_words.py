"""What is wrong with a JSON document, in the words of JSON: its writer need not know Python. Pure."""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

import msgspec

from flowcatalyst.core.spelling import nearest

_LONGEST_VALUE: Final = 60
_ROUND: Final = 10**15  # larger ones are written with an exponent
_WANTED: Final = {
    "int": "a whole number",
    "float": "a number",
    "str": "text",
    "bool": "true or false",
    "object": "an object",
    "array": "a list",
    "null": "null",
}
_GIVEN: Final = {**_WANTED, "int": "a number", "bool": "a boolean"}
_COMPARED: Final = {">=": "at least", "<=": "at most", ">": "more than", "<": "less than"}

# What one thing is called in messages, in jobs, and by people: who knows one of them tries it in the other.
_SAME_THING: Final = (
    ("mediationTarget", "targetUrl", "target", "url"),
    ("messageGroupId", "messageGroup", "groupId", "group"),
    ("poolCode", "dispatchPoolCode", "pool"),
    ("dispatchMode", "mode"),
    ("deduplicationId", "idempotencyKey"),
)

_PLACE: Final = re.compile(r" - at `\$\.?(?P<path>[^`]*)`$")
_INDEX: Final = re.compile(r"\[(?:\d+|\.\.\.)\]")
_WRONG_TYPE: Final = re.compile(r"Expected `(?P<wanted>[a-z |]+)`, got `(?P<given>\w+)`")
_OUT_OF_BOUNDS: Final = re.compile(r"Expected `(?:int|float)` (?P<how><=?|>=?) (?P<bound>[-\d.e+]+)")
_WRONG_LENGTH: Final = re.compile(r"Expected `(?P<what>str|array)` of length (?P<how><=?|>=?) (?P<bound>\d+)")
_NOT_A_CHOICE: Final = re.compile(r"Invalid enum value (?P<value>.+)", re.DOTALL)
_MISSING: Final = re.compile(r"Object missing required field `(?P<name>.+)`", re.DOTALL)
_UNKNOWN: Final = re.compile(r"Object contains unknown field `(?P<name>.+)`", re.DOTALL)


@dataclass(slots=True, frozen=True)
class Fault:
    """What is wrong with one field. `said` goes on where the name of the field ends: "must be text, not a number"."""

    field: str  # as it was written; empty: the whole document
    said: str

    def sentence(self, whole: str) -> str:
        return f"`{self.field}` {self.said}" if self.field else f"{whole} {self.said}"


def fault_in(error: msgspec.ValidationError, fields: Mapping[str, Collection[str]]) -> Fault:
    """What a validation error says. `fields` are those there are, each with its choices if it has some: `name[]` are
    the entries of the list `name`, `name.other` is a field of the object `name`."""
    text = str(error)
    place = _PLACE.search(text)
    path, text = (place["path"], text[: place.start()]) if place else ("", text)
    if found := _MISSING.fullmatch(text):
        return Fault(_joined(path, found["name"]), "is missing")
    if found := _UNKNOWN.fullmatch(text):
        meant = _meant(found["name"], _fields_at(_INDEX.sub("[]", path), fields))
        return Fault(_joined(path, found["name"]), f"is not a field here{meant}")
    return Fault(path, in_words(text, fields.get(_INDEX.sub("[]", path), ())))


def in_words(text: str, choices: Collection[str] = ()) -> str:
    """What msgspec says about a value, to go on where the name of the value ends."""
    if found := _NOT_A_CHOICE.fullmatch(text):
        value = found["value"] if len(found["value"]) <= _LONGEST_VALUE else f"{found['value'][:_LONGEST_VALUE]}..."
        return f"must be one of {', '.join(choices)}, not {value}" if choices else f"cannot be {value}"
    if found := _WRONG_TYPE.fullmatch(text):
        given = _GIVEN.get(found["given"], found["given"])
        if choices:
            return f"must be one of {', '.join(choices)}, not {given}"
        wanted = found["wanted"].split(" | ")
        if found["given"] == "float" and "int" in wanted:
            given = "one with a decimal point"
        return f"must be {' or '.join(_WANTED.get(one, one) for one in wanted)}, not {given}"
    if found := _OUT_OF_BOUNDS.fullmatch(text):
        return f"must be {_COMPARED[found['how']]} {found['bound']}"
    if found := _WRONG_LENGTH.fullmatch(text):
        one, many = ("character", "characters") if found["what"] == "str" else ("entry", "entries")
        return f"must have {_COMPARED[found['how']]} {found['bound']} {one if found['bound'] == '1' else many}"
    return f"is wrong: {text}"


def in_digits(value: float) -> str:
    """A number as people write it: 4194303, not 4.1943e+06."""
    if -_ROUND < value < _ROUND and value == int(value):
        return str(int(value))
    try:
        return f"{value:g}"
    except OverflowError:  # JSON has whole numbers of any length
        return "a number of hundreds of digits"


def why_not_json(error: Exception) -> str:
    """Why a document is no JSON at all."""
    if isinstance(error, UnicodeError):
        return "it is not UTF-8"
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    text = str(error)
    return "it ends too early" if "truncated" in text else text.removeprefix("JSON is malformed: ")


def _joined(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _fields_at(path: str, fields: Collection[str]) -> list[str]:
    """The names of those of one object, by its path."""
    names = [name.removeprefix(f"{path}.") for name in fields if not path or name.startswith(f"{path}.")]
    return [name for name in names if "." not in name and "[" not in name]


def _meant(name: str, fields: Collection[str]) -> str:
    same = next((one for names in _SAME_THING if name in names for one in names if one in fields), None)
    if (near := same or nearest(name, fields)) is not None:
        return f" (did you mean `{near}`?)"
    return f"; the fields are {', '.join(fields)}" if fields else ""
