"""The router configuration: which pools and queues there are. Reads, merges and compares it. Pure."""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any, Final, TypeVar

import msgspec

from flowcatalyst.core.errors import FlowCatalystError, InvalidMessageError
from flowcatalyst.core.message import DEFAULT_POOL, MAX_NAME_CHARS, DispatchMode, Severity
from flowcatalyst.core.payload import JSON_TYPE
from flowcatalyst.core.spelling import nearest
from flowcatalyst.queues.raw import BROKER, Missing, RawConfig
from flowcatalyst.queues.settings import QueueConfig
from flowcatalyst.router.group import FailureScope
from flowcatalyst.router.limits import (
    DEFAULT_POOL_LIMITS,
    LEAST,
    MAX_CONCURRENCY,
    NO_RATE,
    PARKED_LIMIT,
    RETRYABLE,
    RETRYABLE_IN_WORDS,
    PoolLimits,
    Success,
    as_text,
)

MAX_CONNECTIONS: Final = 1_000
MAX_VISIBILITY_S: Final = 43_200  # the limit of SQS
MAX_NUMBER: Final = 2**31 - 1  # of the others: the largest signed 32-bit integer
MAX_ENTRIES: Final = 50_000  # pools or queues of one document: reading more would hold up the router for seconds
MAX_SENTENCES: Final = 100  # about one document: what is above is only counted

_POOL_FIELDS: Final = (
    "code",
    "concurrency",
    "rateLimitPerMinute",
    "failureScope",
    "maxDeliveryAttempts",
    "capacity",
    "parkedLimit",
    "retryStatuses",
    "ackBeforeNext",
    "success",
)
_QUEUE_FIELDS: Final = ("queueName", "queueUri", "connections", "visibilityTimeout", "raw")
_RAW_FIELDS: Final = ("target", "pool", "group", "id", "missing", "mode", "contentType", "headers")
_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"
_DIGITS: Final = re.compile(r"-?[0-9]{1,18}", re.ASCII)
_USER_INFO: Final = re.compile(r"(?<=://)[^/?#]*@")
_LONGEST_SHOWN: Final = 60
_SETTING_NAMES: Final = {"rate_per_minute": "rate_limit_per_minute"}  # where a field is not called like its setting

Entry = Mapping[str, Any]
T = TypeVar("T")
Choice = TypeVar("Choice", bound=StrEnum)


class InvalidConfigError(FlowCatalystError):
    """The document is not a router configuration at all."""


class _RejectedError(Exception):
    """Why one entry cannot be used."""


@dataclass(slots=True, frozen=True)
class RouterConfig:
    """All pools by code and all queues by name. Equal whatever the order of the entries."""

    pools: Mapping[str, PoolLimits] = field(default_factory=dict)
    queues: Mapping[str, QueueConfig] = field(default_factory=dict)


@dataclass(slots=True, frozen=True)
class Difference:
    """Names of what a new configuration adds, changes and removes."""

    added: list[str]
    changed: list[str]
    removed: list[str]


def parse(text: bytes, source: str, last: RouterConfig | None = None) -> tuple[RouterConfig, list[str]]:
    """The configuration in a JSON document, and a sentence about each entry that cannot be used.

    `last` is what the same source said before: a pool or queue whose new entry cannot be used stays as it was there.
    Raises `InvalidConfigError` if the whole document is unusable. `source` stands in the sentences as it is.
    """
    document = _decoded(text, source)
    last = last or RouterConfig()
    connections, problems = 1, list[str]()
    try:
        connections = _number(document, "connections", MAX_CONNECTIONS) or 1
    except _RejectedError as why:
        problems.append(f"{source}: {why}; queues without their own get 1")
    pools, pool_problems = _usable("pool", _entries(document, "processingPools", source), _code, _limits, last.pools)
    queues, queue_problems = _usable(
        "queue",
        _entries(document, "queues", source),
        _queue_name,
        lambda entry: _queue(entry, connections),
        last.queues,
    )
    problems += [f"{what} of {source}: {why}" for what, why in pool_problems + queue_problems]
    problems += _misspelt(document, source)
    return RouterConfig(pools, queues), _shortened(problems, f"entries of {source} cannot be used")


def _misspelt(document: Entry, source: str) -> Iterator[str]:
    """Fields that are nearly one of ours. Others may be for somebody else who reads the same document."""
    for kind, key, known in (("pool", "processingPools", _POOL_FIELDS), ("queue", "queues", _QUEUE_FIELDS)):
        found = {name for entry in document.get(key) or [] if isinstance(entry, dict) for name in entry}
        for name in sorted(found.difference(known)):
            if (meant := nearest(name, known)) is not None:
                yield f"{name} of a {kind} of {source} is not a field and is ignored (did you mean {meant}?)"


def merge(parts: Sequence[tuple[str, RouterConfig]]) -> tuple[RouterConfig, list[str]]:
    """The union of what the sources say, and a sentence about each conflict. Parts are (source, what it says).

    Where two sources define a pool or queue differently, the first source wins. No queue is used twice: of two names
    for one URI only the first counts, because two consumers would take turns at its groups.
    """
    pools: dict[str, PoolLimits] = {}
    queues: dict[str, QueueConfig] = {}
    conflicts: list[str] = []
    said_by: dict[tuple[str, str], str] = {}
    names_by_uri: dict[str, str] = {}
    for source, config in parts:
        for name in _news("pool", config.pools, pools, source, said_by, conflicts):
            pools[name] = config.pools[name]
        for name in _news("queue", config.queues, queues, source, said_by, conflicts):
            queue = config.queues[name]
            if (first := names_by_uri.setdefault(queue.uri, name)) == name:
                queues[name] = queue
            else:
                conflicts.append(f"queue {_shown(name)} of {source} is queue {_shown(first)} under another name")
    return RouterConfig(pools, queues), _shortened(conflicts, "definitions are in conflict")


def limit_pools(
    config: RouterConfig, max_pools: int, warn_above: int, existing: Collection[str]
) -> tuple[RouterConfig, list[tuple[Severity, str]]]:
    """The configuration with `max_pools` pools at most, and the POOL_LIMIT warnings. Existing pools are kept first."""
    warnings: list[tuple[Severity, str]] = []
    known = set(existing)
    in_order = sorted(config.pools, key=lambda code: code not in known)
    kept, dropped = set(in_order[:max_pools]), in_order[max_pools:]
    if dropped:
        text = f"pools above the limit of {max_pools} are left out: {len(dropped)}, the first is {_shown(dropped[0])}"
        warnings.append((Severity.CRITICAL, text))
        config = RouterConfig({code: limits for code, limits in config.pools.items() if code in kept}, config.queues)
    if len(kept) > warn_above:
        text = f"there are more than {warn_above} pools; above {max_pools} they are left out"
        warnings.append((Severity.WARN, text))
    return config, warnings


def difference(old: Mapping[str, T], new: Mapping[str, T]) -> Difference:
    return Difference(
        added=[name for name in new if name not in old],
        changed=[name for name in new if name in old and new[name] != old[name]],
        removed=[name for name in old if name not in new],
    )


def change_in_words(before: object, after: object, hidden: Collection[str] = ()) -> str:
    """Which fields of a pool or queue differ, each before -> after; of hidden ones only that they do."""
    texts = []
    for one in fields(after):  # type: ignore[arg-type]
        old, new = getattr(before, one.name), getattr(after, one.name)
        if one.compare and old != new:
            name = _SETTING_NAMES.get(one.name, one.name)
            texts.append(f"{name} changed" if one.name in hidden else f"{name} {_value(old)} -> {_value(new)}")
    return ", ".join(texts) or "no change"


def _value(value: object) -> str:
    if isinstance(value, frozenset):
        return str(sorted(value))
    return "none" if value is None else str(value)


def changes_in_words(before: RouterConfig | None, after: RouterConfig) -> str:
    """What a new configuration changes. Addresses of queues are not shown: they may hold credentials."""
    if before is None:
        pools, queues = len(after.pools), len(after.queues)
        return f"the first one: {pools} pool{'s' * (pools != 1)}, {queues} queue{'s' * (queues != 1)}"
    texts = []
    for kind, old, new in (("pool", before.pools, after.pools), ("queue", before.queues, after.queues)):
        found = difference(old, new)
        texts += [f"{kind} {name} added" for name in found.added]
        texts += [f"{kind} {name} removed" for name in found.removed]
        texts += [f"{kind} {name}: {change_in_words(old[name], new[name], ('uri', 'raw'))}" for name in found.changed]
    return "; ".join(texts) or "no change"


def _news(
    kind: str,
    said: Mapping[str, T],
    known: Mapping[str, T],
    source: str,
    said_by: dict[tuple[str, str], str],
    conflicts: list[str],
) -> Iterable[str]:
    """Names nobody defined before. One that was defined differently is a conflict."""
    for name, value in said.items():
        first = said_by.setdefault((kind, name), source)
        if name not in known:
            yield name
        elif value != known[name]:
            conflicts.append(f"{kind} {_shown(name)} of {source} is defined differently by {first}, which wins")


def _decoded(text: bytes, source: str) -> Entry:
    try:
        document = msgspec.json.decode(text.removeprefix(_BYTE_ORDER_MARK))
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise InvalidConfigError(f"{source} is not valid JSON: {error}") from None
    if not isinstance(document, dict):
        raise InvalidConfigError(f"{source} is not a router configuration: it is {_shown(document)}, not an object")
    if document.get("queues") is None and document.get("processingPools") is None:
        # An error message as JSON, say. Taken as a configuration it would remove every pool and queue.
        raise InvalidConfigError(f"{source} is not a router configuration: it has neither queues nor processingPools")
    return document


def _entries(document: Entry, key: str, source: str) -> list[Any]:
    entries = document.get(key)
    if entries is None:
        return []
    if not isinstance(entries, list):
        raise InvalidConfigError(f"{source} is not a router configuration: {key} is {_shown(entries)}, not a list")
    if len(entries) > MAX_ENTRIES:
        raise InvalidConfigError(f"{source} has {len(entries)} {key}: there can be {MAX_ENTRIES} at most")
    return entries


def _usable(
    kind: str,
    entries: list[Any],
    name_of: Callable[[Entry], str],
    build: Callable[[Entry], T],
    last: Mapping[str, T],
) -> tuple[dict[str, T], list[tuple[str, str]]]:
    """What the entries define by name, and (which entry, why not) for the others."""
    found: dict[str, T] = {}
    rejected: list[tuple[str, str, str]] = []  # which entry, its name if it has one, why
    for number, entry in enumerate(entries, 1):
        what, name = f"{kind} number {number}", ""
        try:
            if not isinstance(entry, dict):
                raise _RejectedError(f"it is {_shown(entry)}, not an object")
            name = name_of(entry)
            what = f"{kind} {_shown(name)}"
            if name in found:
                raise _RejectedError("it is defined twice; the first one is used")
            found[name] = build(entry)
        except _RejectedError as why:
            rejected.append((what, name, str(why)))
    staying = {name: last[name] for _, name, _ in rejected if name in last and name not in found}
    pinned = "; the previous one stays in force"
    problems = [(what, f"{why}{pinned}" if name in staying else why) for what, name, why in rejected]
    return found | staying, problems


def _code(entry: Entry) -> str:
    code = _text(entry, "code")
    if not code:
        raise _RejectedError("code is missing")
    if len(code) > MAX_NAME_CHARS:
        raise _RejectedError(f"code is longer than the {MAX_NAME_CHARS} characters of a poolCode")
    return code


def _limits(entry: Entry) -> PoolLimits:
    statuses = entry.get("retryStatuses") or []
    if not isinstance(statuses, list) or not all(isinstance(one, int) and one in RETRYABLE for one in statuses):
        raise _RejectedError(f"retryStatuses may only list numbers from {RETRYABLE_IN_WORDS}")
    concurrency = _number(entry, "concurrency", MAX_CONCURRENCY, LEAST["concurrency"])
    parked_limit = _number(entry, "parkedLimit", MAX_NUMBER, LEAST["parked_limit"])
    return PoolLimits(
        concurrency=concurrency or DEFAULT_POOL_LIMITS.concurrency,
        rate_per_minute=_number(entry, "rateLimitPerMinute", MAX_NUMBER, NO_RATE) or None,
        failure_scope=_one_of(entry, "failureScope", FailureScope.GROUP),
        max_delivery_attempts=_number(entry, "maxDeliveryAttempts", MAX_NUMBER, LEAST["max_delivery_attempts"]),
        capacity=_number(entry, "capacity", MAX_NUMBER, LEAST["capacity"]),
        parked_limit=PARKED_LIMIT if parked_limit is None else parked_limit,
        retry_statuses=frozenset(statuses),
        ack_before_next=_flag(entry, "ackBeforeNext"),
        success=_one_of({"success": as_text(entry.get("success"))}, "success", Success.ANY_2XX),
    )


def _flag(entry: Entry, key: str) -> bool:
    value = entry.get(key)
    if value is not None and not isinstance(value, bool):
        raise _RejectedError(f"{key} is {_shown(value)}, it must be true or false")
    return bool(value)


def _one_of(entry: Entry, key: str, default: Choice) -> Choice:
    """The default if it is missing, null or blank."""
    choices = type(default)
    value = _text(entry, key) or default
    if value not in list(choices):
        raise _RejectedError(f"{key} is {_shown(value)}, it must be {' or '.join(choices)}")
    return choices(value)


def _queue_name(entry: Entry) -> str:
    """Its queueName, else its URI without the credentials: names are shown everywhere."""
    name = _text(entry, "queueName") or _USER_INFO.sub("", _text(entry, "queueUri"))
    if not name:
        raise _RejectedError("it has neither queueName nor queueUri")
    return name


def _queue(entry: Entry, default_connections: int) -> QueueConfig:
    name = _queue_name(entry)
    visibility_s = _number(entry, "visibilityTimeout", MAX_VISIBILITY_S)
    return QueueConfig(
        name=name,
        uri=_text(entry, "queueUri") or f"embedded:{name}",
        connections=_number(entry, "connections", MAX_CONNECTIONS) or default_connections,
        visibility_s=None if visibility_s is None else float(visibility_s),
        raw=_raw(entry),
    )


def _raw(entry: Entry) -> RawConfig | None:
    value = entry.get("raw")
    if value is None:
        return None
    if not isinstance(value, dict):
        raise _RejectedError(f"raw is {_shown(value)}, it must be an object")
    # Its bodies would go to the wrong place or group: nothing is left out of what is not understood.
    if unknown := next((name for name in value if name not in _RAW_FIELDS), None):
        meant = nearest(unknown, _RAW_FIELDS)
        hint = f" (did you mean {meant}?)" if meant is not None else ""
        raise _RejectedError(f"raw has {_shown(unknown)}, which is not a field{hint}")
    headers = value.get("headers") or {}
    if not isinstance(headers, dict) or not all(isinstance(one, str) for one in headers.values()):
        raise _RejectedError("raw: headers must be an object with strings")
    mode = _text(value, "mode").upper()
    if mode and mode not in list(DispatchMode):
        raise _RejectedError(f"raw: mode is {_shown(mode)}, it must be {' or '.join(DispatchMode)}")
    try:
        raw = RawConfig(
            _text(value, "target"),
            _text(value, "pool") or DEFAULT_POOL,
            _text(value, "group") or BROKER,
            _text(value, "id") or BROKER,
            _one_of(value, "missing", Missing.REJECT),
            DispatchMode(mode) if mode else None,
            _text(value, "contentType") or JSON_TYPE,
            tuple(headers.items()),
        )
        raw.check()
    except (InvalidMessageError, _RejectedError) as error:
        raise _RejectedError(f"raw: {error}") from None
    return raw


def _text(entry: Entry, key: str) -> str:
    """Empty if it is missing, null or blank."""
    value = entry.get(key)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise _RejectedError(f"{key} is {_shown(value)}, it must be a string")
    return "" if value.isspace() else value


def _number(entry: Entry, key: str, most: int, least: int = 1) -> int | None:
    """None if it is missing or null. JSON knows no whole numbers, so 10.0 is 10; "10" is 10 too."""
    value = entry.get(key)
    if value is None:
        return None
    if (isinstance(value, str) and _DIGITS.fullmatch(value)) or (isinstance(value, float) and value.is_integer()):
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise _RejectedError(f"{key} is {_shown(value)}, it must be a whole number")
    if value < least:
        raise _RejectedError(f"{key} is {_shown(value)}, it must be at least {least}")
    if value > most:
        raise _RejectedError(f"{key} is {_shown(value)}, it must be at most {most}")
    return value


def _shown(value: object) -> str:
    """A value of JSON in a sentence, short whatever it is."""
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return "a list"
    if value is None or isinstance(value, bool):
        return msgspec.json.encode(value).decode()
    shown = repr(str(value)) if isinstance(value, str) else str(value)
    return shown if len(shown) <= _LONGEST_SHOWN else f"{shown[:_LONGEST_SHOWN]}..."


def _shortened(sentences: list[str], what: str) -> list[str]:
    if len(sentences) <= MAX_SENTENCES:
        return sentences
    return [*sentences[:MAX_SENTENCES], f"{len(sentences) - MAX_SENTENCES} more {what}"]
