"""What the body of a 2xx says: the message was taken, it was refused, or nobody can tell.

A body that is not JSON is a success, because endpoints older than the `ack` field answer anything. Nothing that could
have been a refusal may profit from that: what was not read in full, what is encoded, and what mentions an `ack` but
cannot be read is no success.
"""

import json
import re
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from flowcatalyst.http.contract import MAX_BODY_BYTES, WHOLE, Content

# Charsets a JSON body may be declared in. An own list: Python knows codecs that take seconds for 64 KiB.
_KNOWN_CHARSET: Final = re.compile(
    r"utf[-_]?(8|16|32)([-_]?(le|be))?|(us-)?ascii|(iso[-_]?8859[-_]|latin[-_]?)\d{1,2}|(windows-|cp)125\d|koi8[-_][ru]"
    r"|shift[-_]jis|euc[-_](jp|kr)|gbk|gb2312|gb18030|big5"
)
_CHARSET: Final = re.compile(r"charset\s*=\s*\"?([^\s\";]+)")
_JSON_TYPE: Final = re.compile(r"[^;]*[/+]json\s*(;|$)")
_ACK_THAT_IS_NOT_TRUE: Final = re.compile(rb'"ack"(?!\s*:\s*true\b)')
_BLANK: Final = b"\xef\xbb\xbf\xff\xfe \t\r\n"  # byte order marks and white space


@dataclass(slots=True, frozen=True)
class Answer:
    """What an endpoint said in a 200."""

    taken: bool
    delay: object = None  # `delaySeconds` of a refusal, as it came
    unclear: str = ""  # why it cannot be told whether the message was taken; then `taken` is false
    note: str = ""  # what is odd about a message that was taken


class _Fields(msgspec.Struct, rename="camel"):
    ack: Any = True
    delay_seconds: Any = None


class _Object(list[tuple[str, Any]]):
    """A JSON object with every one of its keys, also those that come twice."""


_decoder = msgspec.json.Decoder(_Fields)
_TAKEN: Final = Answer(True)
_TAKEN_BUT_NOT_JSON: Final = Answer(True, note="its body is declared as JSON but is not: counted as a success")


def read_answer(body: bytes, content: Content = WHOLE) -> Answer:
    """What the body of a 2xx says."""
    if content.truncated:
        return _unclear(f"its body is longer than the {MAX_BODY_BYTES} bytes that are read")
    if content.coding and body:
        return _unclear(f"its body is encoded ({content.coding[:40]}) although the request accepts identity only")
    try:
        fields = _decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _read_unusual(body, content)  # another charset, NaN, no object, no JSON
    if fields.ack is not True:
        return Answer(False, fields.delay_seconds)
    if body.count(b'ack"') > 1 or b"\\u" in body:
        return _read_unusual(body, content)  # perhaps an `ack` that comes twice
    return _TAKEN


def _read_unusual(body: bytes, content: Content) -> Answer:
    declared = _CHARSET.search(content.type)
    charset = declared[1] if declared else ""
    # A byte order mark and the zeros of UTF-16 tell more surely than a header.
    for encoding in (json.detect_encoding(body), charset):
        if not encoding:
            continue
        if not _KNOWN_CHARSET.fullmatch(encoding.removesuffix("-sig")):
            return _unclear(f"its body is in the charset {charset[:40]!r}, which is unknown")
        try:
            value = json.loads(body.decode(encoding).removeprefix("\ufeff"), object_pairs_hook=_Object)
        except (ValueError, LookupError, RecursionError):
            continue
        if not isinstance(value, _Object):
            return _TAKEN
        refused = any(key == "ack" and said is not True for key, said in value)
        return Answer(False, dict(value).get("delaySeconds")) if refused else _TAKEN
    # It is no JSON.
    letters = body.replace(b"\0", b"")  # of UTF-16 and UTF-32 as well
    if _ACK_THAT_IS_NOT_TRUE.search(letters):
        return _unclear("its body is not JSON but mentions an ack that is not true")
    is_json = bool(_JSON_TYPE.match(content.type))
    start = letters.lstrip(_BLANK)[:1]
    # Ended by the end of its connection, which may have come too early. Only what could have become an object with an
    # `ack` matters: no rest of "OK" would have made it a refusal.
    if not content.framed and (start == b"{" or (not start and is_json)):
        return _unclear("its body ended with the connection before it was complete")
    return _TAKEN_BUT_NOT_JSON if is_json and start else _TAKEN


def _unclear(why: str) -> Answer:
    return Answer(False, unclear=why)
