"""Keeps secrets out of what is shown: tokens of messages, queries of targets, and what repeats them.

Nobody needs to see them, so nobody does, admins neither. Where it cannot be told where a secret ends, the rest of the
text is hidden; where it stands in a form that cannot be cut out, all of it is.
"""

import base64
import binascii
import html
import re
from collections.abc import Collection, Mapping
from typing import Any, Final
from urllib.parse import parse_qsl, unquote, urlsplit

import msgspec

from flowcatalyst.core.message import MessagePointer
from flowcatalyst.http.interpret import EXCERPT_CHARS

MASK: Final = "***"
HIDDEN_ECHO: Final = f"{MASK} (hidden: it repeats a secret of the message in another form)"
LEAST_CHARS: Final = 4  # a shorter secret is found in nearly every text, were it looked for in other forms
LEAST_VALUE_CHARS: Final = 6  # of a query

_NAME: Final = re.compile(
    r"token|secret|passw(?:or)?d|passphrase|authorization|api[^a-z0-9]{0,3}key|credential|cookie|\bbearer\b",
    re.IGNORECASE,
)
_PARTS_OF_NAMES: Final = ("token", "secret", "pass", "authoriz", "key", "credential", "cookie", "bearer")
# What follows such a name inside a key of JSON, if it can be told where the value ends. Also a value that is cut off.
_VALUE: Final = re.compile(r'([\w.-]*"\s*:\s*)(?:"(?:[^"\\]|\\.)*"?|[^\s",\\{}\[\]]+)', re.DOTALL)
_URL: Final = re.compile(r"://([^\s/?#\"'<>]*@)?([^\s?#\"'<>]*)([?#][^\s\"'<>]*)?")  # from its scheme on
_JWT: Final = re.compile(r"\beyJ[\w-]{8,}\.[\w-]*(?:\.[\w-]*)?")
_ENCODED: Final = re.compile(r"[A-Za-z0-9+/_-]{12,}={0,2}")
_ESCAPED: Final = re.compile(r"\\+(?:u([0-9a-fA-F]{4})|x([0-9a-fA-F]{2})|(.))", re.DOTALL)
_BEGINS_LIKE_JSON: Final = ("{", "[", '"')


# The body of a message


def mask_body(body: str) -> str:
    """A message body that is no valid pointer, as it is but for its secrets."""
    try:
        return _mask_json(body)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return _mask_text(body)


def mask_target(target: str) -> str:
    """A URL without its query, which may hold secrets."""
    return f"{target.partition('?')[0]}?{MASK}" if "?" in target else target


def _mask_json(text: str) -> str:
    return msgspec.json.encode(_masked(msgspec.json.decode(text))).decode()


def _masked(content: Any) -> Any:
    if isinstance(content, list):
        return [_masked(one) for one in content]
    if isinstance(content, dict):
        return {_mask_text(key): _masked_value(key, one) for key, one in content.items()}
    return _mask_string(content) if isinstance(content, str) else content


def _masked_value(key: str, value: Any) -> Any:
    if _NAME.search(key):
        return MASK
    if isinstance(value, str) and key.lower() == "mediationtarget":
        return mask_target(_mask_string(value))
    return _masked(value)


def _mask_string(text: str) -> str:
    """A string in JSON, which may be JSON itself, with as many more layers as somebody wrapped around it."""
    if text.lstrip().startswith(_BEGINS_LIKE_JSON):
        try:
            return _mask_json(text)
        except (msgspec.DecodeError, UnicodeError):
            pass
    return _mask_text(text)


def _mask_text(text: str) -> str:
    plain = _without_escapes(text)
    lowered = plain.lower()
    if not any(part in lowered for part in _PARTS_OF_NAMES):  # nearly always; much faster than the pattern
        return _without_encoded(text)
    if plain != text and len(_NAME.findall(plain)) > len(_NAME.findall(text)):
        return MASK  # a name that is escaped itself: who knows how its value is
    text = _without_encoded(text)
    shown: list[str] = []
    position = 0
    while (name := _NAME.search(text, position)) is not None:
        shown.append(text[position : name.end()])
        if name.end() == len(text):  # nothing but the name: a key, or the end of a sentence
            return "".join(shown)
        value = _VALUE.match(text, name.end())
        if value is None:
            return "".join([*shown, MASK])
        shown.append(f'{value[1]}"{MASK}"')
        position = value.end()
    return "".join([*shown, text[position:]])


def _without_encoded(text: str) -> str:
    """Without what does not need a name to be a secret."""
    text = _ENCODED.sub(lambda found: MASK if _NAME.search(_decoded(found[0])) else found[0], text)
    return _URL.sub(_mask_url, _JWT.sub(MASK, text))


def _mask_url(url: re.Match[str]) -> str:
    user_info, place, query = url.groups()
    return f"://{f'{MASK}@' if user_info else ''}{place}{f'{query[0]}{MASK}' if query else ''}"


# What others say about a message


def secrets_of(pointer: MessagePointer) -> list[str]:
    """What no text about the message may repeat."""
    found = [pointer.auth_token] if pointer.auth_token else []
    query = urlsplit(pointer.mediation_target).query
    if len(query) >= LEAST_CHARS:
        found.append(query)
    found += [value for _, value in parse_qsl(query) if len(value) >= LEAST_VALUE_CHARS]
    for name, value in (pointer.headers or {}).items():
        if is_secret_header(name) and len(value) >= LEAST_CHARS:
            found += [value, *(word for word in value.split()[1:] if len(word) >= LEAST_VALUE_CHARS)]
    return found


def is_secret_header(name: str) -> bool:
    return _NAME.search(name) is not None


def mask_headers(headers: Mapping[str, str]) -> dict[str, str]:
    return {name: MASK if is_secret_header(name) else _mask_string(value) for name, value in headers.items()}


def mask_echo(text: str, secrets: Collection[str]) -> str:
    """A text in which an endpoint may have repeated the secrets of its message, as they are or in another form."""
    for secret in secrets:
        text = _without_beginning(text.replace(secret, MASK), secret)
    plain = _comparable(text)
    for secret in secrets:
        sought = _comparable(secret)
        if len(sought) >= LEAST_CHARS and (sought in plain or _without_beginning(plain, sought) != plain):
            return HIDDEN_ECHO
        if any(secret in _decoded(run) for run in _ENCODED.findall(text)):
            return HIDDEN_ECHO
    return text


def _without_beginning(text: str, secret: str) -> str:
    """The text without the beginning of a secret at its end, where it may have been cut."""
    if len(text) < EXCERPT_CHARS // 2:
        return text
    for length in range(min(len(secret) - 1, len(text)), LEAST_CHARS - 1, -1):
        if text.endswith(secret[:length]):
            return text[:-length] + MASK
    return text


def _comparable(text: str) -> str:
    """What is left of a text whatever escapes, white space and letter case were chosen for it."""
    return "".join(_without_escapes(text).replace("\0", "").split()).casefold()


def _without_escapes(text: str) -> str:
    """Escapes of JSON, HTML and URLs undone, however many layers of them there are in JSON."""
    if "\\" in text:
        text = _ESCAPED.sub(
            lambda found: chr(int(found[1] or found[2], 16)) if found[1] or found[2] else found[3], text
        )
    if "&" in text:
        text = html.unescape(text)
    return unquote(text) if "%" in text else text


def _decoded(run: str) -> str:
    """What a run of letters and digits says if it is base64; nothing if it is none."""
    letters = run.rstrip("=").replace("-", "+").replace("_", "/")
    letters = letters[: len(letters) - 1] if len(letters) % 4 == 1 else letters
    try:
        return base64.b64decode(letters + "=" * (-len(letters) % 4)).decode("latin-1")
    except binascii.Error:
        return ""
