"""Errors about JSON speak JSON: no reader has to know the types of Python."""

from enum import StrEnum
from typing import Annotated, Any

import msgspec
import pytest

from flowcatalyst.core.json_words import fault_in, why_not_json
from flowcatalyst.core.spelling import nearest


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


class Inner(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    hit_points: int = 1


class Thing(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    name: Annotated[str, msgspec.Meta(max_length=3)]
    share: Annotated[float, msgspec.Meta(gt=0, lt=1)] = 0.5
    colour: Colour | None = None
    parts: Annotated[list[Inner], msgspec.Meta(min_length=1)] | None = None


FIELDS: dict[str, list[str]] = {"name": [], "share": [], "colour": [*Colour], "parts": [], "parts[].hitPoints": []}


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ({}, "`name` is missing"),
        ({"name": 5}, "`name` must be text, not a number"),
        ({"name": True}, "`name` must be text, not a boolean"),
        ({"name": None}, "`name` must be text, not null"),
        ({"name": {}}, "`name` must be text, not an object"),
        ({"name": "long"}, "`name` must have at most 3 characters"),
        ({"name": "a", "share": "1"}, "`share` must be a number, not text"),
        ({"name": "a", "share": 0}, "`share` must be more than 0.0"),
        ({"name": "a", "share": 1}, "`share` must be less than 1.0"),
        ({"name": "a", "colour": "green"}, "`colour` must be one of red, blue, not 'green'"),
        ({"name": "a", "colour": 5}, "`colour` must be one of red, blue, not a number"),
        ({"name": "a", "parts": []}, "`parts` must have at least 1 entry"),
        ({"name": "a", "parts": {}}, "`parts` must be a list or null, not an object"),
        ({"name": "a", "parts": [{"hitPoints": 1.5}]}, "`parts[0].hitPoints` must be a whole number, not one with a"),
        (
            {"name": "a", "parts": [{"hit_point": 1}]},
            "`parts[0].hit_point` is not a field here (did you mean `hitPoints`?)",
        ),
        ({"name": "a", "parts": [{"x": 1}]}, "`parts[0].x` is not a field here; the fields are hitPoints"),
        ({"name": "a", "Color": "red"}, "`Color` is not a field here (did you mean `colour`?)"),
        ({"name": "a", "x": 1}, "`x` is not a field here; the fields are name, share, colour, parts"),
        ([], "it must be an object, not a list"),
    ],
)
def test_a_fault_is_said_in_the_words_of_json(document: Any, said: str) -> None:
    with pytest.raises(msgspec.ValidationError) as caught:
        msgspec.json.decode(msgspec.json.encode(document), type=Thing)
    sentence = fault_in(caught.value, FIELDS).sentence("it")
    assert sentence.startswith(said)
    assert "[]" not in sentence
    assert "Expected" not in sentence


def test_a_long_value_is_not_repeated_in_full() -> None:
    with pytest.raises(msgspec.ValidationError) as caught:
        msgspec.json.decode(msgspec.json.encode({"name": "a", "colour": "x" * 10_000}), type=Thing)
    assert len(fault_in(caught.value, FIELDS).said) < 200


@pytest.mark.parametrize(
    ("document", "why"),
    [
        (b"", "it ends too early"),
        (b'{"name": ', "it ends too early"),
        (b'{"name": "a",}', "trailing comma in object (byte 13)"),
        (b'{"name": "\xff"}', "it is not UTF-8"),
        (b"[" * 100_000, "it is nested too deeply"),
    ],
)
def test_what_is_no_json_says_why_not(document: bytes, why: str) -> None:
    with pytest.raises((msgspec.DecodeError, UnicodeError, RecursionError)) as caught:
        msgspec.json.decode(document)
    assert why_not_json(caught.value) == why


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("group_mode", "messageGroupMode"),
        ("MESSAGEGROUPMODE", "messageGroupMode"),
        ("cuont", "count"),
        ("endpont", "endpoint"),
        ("e", None),
        ("", None),
        ("colour", None),
    ],
)
def test_the_nearest_name_is_one_that_somebody_may_have_meant(written: str, meant: str | None) -> None:
    assert nearest(written, ["count", "endpoint", "queue", "messageGroupMode"]) == meant
