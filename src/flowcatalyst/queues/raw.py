"""Raw queues: their bodies are not pointers, and are sent as they are to one target. Pure.

Group and id of a message are those that its broker knows, or are found in its body by a path.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

import msgspec

from flowcatalyst.core.errors import InvalidMessageError
from flowcatalyst.core.headers import check_headers
from flowcatalyst.core.json_words import why_not_json
from flowcatalyst.core.message import (
    DEFAULT_POOL,
    MAX_NAME_CHARS,
    Delivery,
    DispatchMode,
    MessagePointer,
    check_name,
    check_target,
    parse_pointer,
    without_mark,
)
from flowcatalyst.core.payload import JSON_TYPE, check_content_type, check_size

BROKER: Final = "broker"
MAX_PATH_CHARS: Final = 256

_PATH: Final = re.compile(r"\$(?:\.[^.\[\]\s]+|\[[0-9]{1,6}\])+")
_STEP: Final = re.compile(r"\.([^.\[\]\s]+)|\[([0-9]+)\]")
_KINDS: Final = {dict: "an object", list: "a list", bool: "a boolean", float: "a number with a decimal point"}

Reader = Callable[[Delivery], MessagePointer]


class Missing(StrEnum):
    """What happens to a message in whose body a path finds nothing."""

    REJECT = "reject"
    DEFAULT = "default"


@dataclass(slots=True, frozen=True)
class RawConfig:
    """What the messages of a raw queue become."""

    target: str = field(repr=False)  # its query may hold a secret
    pool: str = DEFAULT_POOL
    group: str = BROKER  # or a path
    id: str = BROKER  # or a path
    missing: Missing = Missing.REJECT
    mode: DispatchMode | None = None
    content_type: str = JSON_TYPE
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)  # may hold secrets

    def check(self) -> None:
        """Raise `InvalidMessageError` with what is wrong with it, in the words of a message."""
        try:
            check_target(self.target)
        except InvalidMessageError as error:
            raise InvalidMessageError(str(error).replace("mediationTarget", "target", 1)) from None
        check_name("pool", self.pool)
        if not self.pool or self.pool.isspace():
            raise InvalidMessageError("pool is empty")
        for name, source in (("group", self.group), ("id", self.id)):
            if source != BROKER and (len(source) > MAX_PATH_CHARS or not _PATH.fullmatch(source)):
                raise InvalidMessageError(
                    f"{name} must be {BROKER}, or a path into the body such as $.order.id or $.lines[0].sku"
                )
        check_content_type(self.content_type)
        check_headers(dict(self.headers))

    @property
    def groups_by_body(self) -> bool:
        """The router's groups are others than those of the broker."""
        return self.group != BROKER


def reader_of(raw: RawConfig | None) -> Reader:
    """How to read the bodies of a queue; it raises `InvalidMessageError` with the reason where it cannot."""
    return POINTERS if raw is None else _RawReader(raw).read


def _pointer_in(delivery: Delivery) -> MessagePointer:
    return parse_pointer(delivery.body)


POINTERS: Final[Reader] = _pointer_in


class _RawReader:
    def __init__(self, raw: RawConfig) -> None:
        self._raw = raw
        self._group = _steps(raw.group)
        self._id = _steps(raw.id)
        self._headers = dict(raw.headers) or None

    def read(self, delivery: Delivery) -> MessagePointer:
        raw, body = self._raw, delivery.body
        delivery.is_raw = True
        check_size("body", len(body) if isinstance(body, bytes) else len(body.encode(errors="surrogatepass")))
        document = _document(body) if self._group or self._id else None
        message_id = delivery.message_id or delivery.broker_id
        if self._id:
            message_id = self._found(document, self._id, raw.id, "id") or message_id
        if self._group:
            delivery.group = self._found(document, self._group, raw.group, "group") or None
        if len(message_id) > MAX_NAME_CHARS:
            check_name("its id at the broker", message_id)
        return MessagePointer(
            id=message_id,
            mediation_target=raw.target,
            pool_code=raw.pool,
            dispatch_mode=raw.mode,
            content_type=raw.content_type,
            headers=self._headers,
        )

    def _found(self, document: "Any | _Unreadable", steps: tuple[str | int, ...], path: str, what: str) -> str:
        """The text at the end of the path; empty where there is none and that is no fault."""
        text, why = "", document.why if isinstance(document, _Unreadable) else ""
        if not why:
            value: Any = document
            for step in steps:
                value = _inside(value, step)
            if isinstance(value, str) and value.strip():
                text = value
            elif isinstance(value, int) and not isinstance(value, bool):
                text = str(value)
            else:
                kind = "nothing" if value is None or isinstance(value, str) else _KINDS[type(value)]
                why = f"there is {kind} where text or a whole number is expected"
        if not text:
            if self._raw.missing is Missing.REJECT:
                raise InvalidMessageError(f"{path} does not lead to the {what} of the message: {why}")
            return ""
        check_name(f"the {what} at {path}", text)
        return text


@dataclass(slots=True, frozen=True)
class _Unreadable:
    """In place of a document."""

    why: str


def _document(body: str | bytes) -> Any:
    try:
        return msgspec.json.decode(without_mark(body))
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        return _Unreadable(f"the body is not JSON: {why_not_json(error)}")


def _inside(value: Any, step: str | int) -> Any:
    if isinstance(step, str):
        return value.get(step) if isinstance(value, dict) else None
    return value[step] if isinstance(value, list) and step < len(value) else None


def _steps(source: str) -> tuple[str | int, ...]:
    """The steps of a path; none if it is not one."""
    return () if source == BROKER else tuple(_step_in(source))


def _step_in(path: str) -> Iterator[str | int]:
    for found in _STEP.finditer(path):
        yield found[1] if found[1] is not None else int(found[2])
