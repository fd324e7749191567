"""Conditions that try to take long, those that are refused and those that run out of steps, and data for them."""

from typing import Final

from flowcatalyst.core.payload import MAX_PAYLOAD_BYTES

REFUSED: Final = [
    "$..*..*..*",
    "$..[?@..x==$..y]",
    "$..[?@..x]",
    "$.a[?@.b[?@.c]]",
    "$[?@[?@[?@[?@.a]]]]",
    "$.*[?count($.*) > 1]",
    "$..*[?value($..*) == 1]",
    "match(@.a, '(a+)+$')",
    "$.*[?search(@, '(x+x+)+y')]",
    "$.*[?match(@, @.pattern)]",
    "!" * 500 + "@.a",
    "(" * 1000 + "@.a" + ")" * 1000,
    "$" + ".a" * 600,
    "$" + "[*]" * 200,
    "$" + "[?@" * 200 + "]" * 200,
    " || ".join(["@.a == 1"] * 60),
    "@.a == " + "9" * 900,
    "@.a == 1e999999999",
    "$.a[9007199254740992]",
]
ACCEPTED: Final = [
    "$..x",
    "$..*",
    "count($..*) > 1000000",
    "count($..[*,*,*,*,*,*,*,*,*,*]) > 1000000",
    "count($[*,*,*,*][*,*,*,*][*,*,*,*][*,*,*,*]) > 100000000",
    "value($..nothing) == 1",
    "$..[?@.x == $.y]",
    "$..[?count(@.*) > 1000000]",
    "$..[?@ == $]",
    "$.*[?@ == $.list]",
    "$.list[?@ == $.list]",
    "$.list[?$.one == $.two]",
    "$.list[?$.one < $.two]",
    "$.list[?$.list == $.again]",
    "$..[?" + " || ".join(["@.a == 'x'"] * 10) + "]",
    "$.list[::-1][::-1][::-1].x",
    "$..[-1].x",
    "length($.one) == 7 && !$..nothing",
]


def _filled(begin: str, part: str, end: str) -> bytes:
    """As much of a part as data may be."""
    count = (MAX_PAYLOAD_BYTES - len((begin + end).encode())) // len(part.encode())
    return (begin + part * count + end).encode()


def _deep(levels: int) -> str:
    return '{"a":' * levels + "1" + "}" * levels


_TEXT: Final = "\u00e9" * 30_000
DATA: Final = {
    "wide lists": _filled("[", "[],", "0]"),
    "wide numbers": _filled("[", "1,", "0]"),
    "wide list in an object": _filled('{"list":[', "7,", "0]}"),
    "objects": _filled('{"list":[', '{"x":1,"y":[2]},', "0]}"),
    "few objects": b'{"list":[' + b'{"x":1,"y":"2"},' * 9_000 + b"0]}",
    "deep and wide": _filled("[", _deep(62) + ",", "0]"),
    "deep": _deep(63).encode(),
    "two long texts": f'{{"one":"{_TEXT}a","two":"{_TEXT}b","list":[{"1," * 60_000}0]}}'.encode(),
    "two long lists": f'{{"list":[{"1," * 60_000}0],"again":[{"1," * 60_000}0]}}'.encode(),
    "keys": ("{" + ",".join(f'"k{n:06}":{n}' for n in range(15_000)) + "}").encode(),
    "huge numbers": _filled("[", "9" * 4000 + ",", "0]"),
    "out of range": b"[1e400]",
    "text": _filled('"', "x", '"'),
}
