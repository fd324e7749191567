"""Whether a request is a webhook that its sender signed, lately, and nobody changed."""

import hmac
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol
from urllib.parse import unquote

from flowcatalyst.core.clock import SystemClock
from flowcatalyst.core.webhook import ID, SIGNATURE, TIMESTAMP, InvalidSecretError, is_id, key_of, signature

TOLERANCE_S: Final = 300.0
MAX_HEADER_CHARS: Final = 8 * 1024

_ATTEMPT: Final = "x-flowcatalyst-attempt"
_GROUP: Final = "x-flowcatalyst-group"
_GROUP_SEQ: Final = "x-flowcatalyst-group-seq"
_GROUP_PREV: Final = "x-flowcatalyst-group-prev"
_NAMES: Final = frozenset({ID, TIMESTAMP, SIGNATURE, _ATTEMPT, _GROUP, _GROUP_SEQ, _GROUP_PREV})
_NUMBER: Final = re.compile("0|[1-9][0-9]{0,17}")
_CLOCK: Final = SystemClock()


class WebhookError(Exception):
    """A request is no webhook to be believed: answer it with 400 or 401 and do nothing."""


class MissingHeaderError(WebhookError):
    """A header that every webhook has is not there."""


class InvalidHeaderError(WebhookError):
    """A header is not what a sender of webhooks writes."""


class TimestampError(WebhookError):
    """It was signed too long ago, or in the future."""


class SignatureError(WebhookError):
    """No signature is that of one of our secrets: another secret signed it, or somebody changed it."""


class _HasItems(Protocol):
    def items(self) -> Iterable[tuple[Any, Any]]: ...


Headers = _HasItems | Iterable[tuple[str, str]] | Iterable[tuple[bytes, bytes]]


@dataclass(frozen=True, slots=True)
class Webhook:
    """A request whose signature is right.

    The signature covers `id`, `timestamp` and `body`. The other fields are as trustworthy as the connection.
    """

    id: str  # the same in every attempt
    timestamp: int  # when this attempt was signed, in seconds since the epoch
    body: bytes
    attempt: int = 1
    group: str | None = None
    group_seq: int | None = None  # its position in the group; None: it is ordered with nothing
    group_prev: int | None = None  # the position of what the sender knew as delivered last when this attempt began

    def json(self) -> Any:
        """The body, decoded. Raises `ValueError` if it is not JSON."""
        return json.loads(self.body)


def verify(
    headers: Headers,
    body: bytes,
    secrets: str | Sequence[str],
    tolerance_s: float = TOLERANCE_S,
    now: float | None = None,
) -> Webhook:
    """The webhook that a request is, or a `WebhookError` that says in a sentence why it is none.

    `headers` are those of any framework: a mapping, or pairs, of text or bytes, whatever the case of their names.
    `body` has to be the bytes as they came. With several secrets any of them will do: give the old one and the new
    one while they change. `InvalidSecretError` is about the secrets, not about the request.
    """
    if not isinstance(body, bytes):
        raise TypeError("body has to be the bytes of the request as they came, not what was decoded of them")
    keys = _keys_of(secrets)
    given = _ours(headers)
    for name in (ID, TIMESTAMP, SIGNATURE):
        if not given.get(name):
            raise MissingHeaderError(f"the request has no header {name}, which every webhook has")
    webhook_id = given[ID]
    if not is_id(webhook_id):
        raise InvalidHeaderError(f"the header {ID} is no id of a webhook")
    timestamp = _number(given, TIMESTAMP)
    age_s = (_CLOCK.wall() if now is None else now) - timestamp
    if abs(age_s) > tolerance_s:
        when = f"{age_s:.0f} s ago" if age_s > 0 else f"{-age_s:.0f} s in the future by this machine's clock"
        raise TimestampError(f"the webhook was signed {when}, which is more than the {tolerance_s:g} s allowed")
    expected = [signature(key, webhook_id, timestamp, body).encode() for key in keys]
    # All are compared with all, whichever fits: the time taken tells nothing.
    matches = [hmac.compare_digest(one, own) for one in given[SIGNATURE].encode().split(b" ") for own in expected]
    if not any(matches):
        raise SignatureError("no signature of the webhook is that of a secret of ours")
    group = unquote(given[_GROUP]) if _GROUP in given else None
    webhook = Webhook(webhook_id, timestamp, body, _number(given, _ATTEMPT, 1), group)
    position = [name for name in (_GROUP, _GROUP_SEQ, _GROUP_PREV) if name in given]
    if position in ([], [_GROUP]):
        return webhook
    if len(position) < 3:
        raise MissingHeaderError(f"{_GROUP}, {_GROUP_SEQ} and {_GROUP_PREV} come together, and one of them is missing")
    seq, prev = _number(given, _GROUP_SEQ), _number(given, _GROUP_PREV)
    if seq == 0:
        raise InvalidHeaderError(f"the header {_GROUP_SEQ} is 0, and positions in a group begin with 1")
    return replace(webhook, group_seq=seq, group_prev=prev)


def check_secrets(secrets: str | Sequence[str]) -> None:
    """Raises `InvalidSecretError` if `verify` would, so that a receiver can say so at its start."""
    _keys_of(secrets)


def _keys_of(secrets: str | Sequence[str]) -> list[bytes]:
    keys = [key_of(one) for one in ([secrets] if isinstance(secrets, str) else secrets)]
    if not keys:
        raise InvalidSecretError("there is no secret to check signatures with")
    return keys


def _ours(headers: Headers) -> dict[str, str]:
    """Those of webhooks, by their names in lower case."""
    found: dict[str, str] = {}
    for raw_name, raw_value in headers.items() if hasattr(headers, "items") else headers:
        name = (raw_name.decode("latin-1") if isinstance(raw_name, bytes) else raw_name).lower()
        if name not in _NAMES:
            continue
        value = raw_value.decode("latin-1") if isinstance(raw_value, bytes) else raw_value
        if not isinstance(value, str) or not value.isascii() or len(value) > MAX_HEADER_CHARS:
            raise InvalidHeaderError(f"the header {name} is not ASCII text of at most {MAX_HEADER_CHARS} characters")
        if name in found:
            raise InvalidHeaderError(f"the header {name} is there twice, and nobody can say which one counts")
        found[name] = value
    return found


def _number(given: Mapping[str, str], name: str, default: int = 0) -> int:
    text = given.get(name)
    if text is None:
        return default
    if not _NUMBER.fullmatch(text):
        raise InvalidHeaderError(f"the header {name} is no whole number of at most 18 digits")
    return int(text)
