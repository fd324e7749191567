"""The stream and the consumer at the server: made where that is asked for, else checked."""

from dataclasses import dataclass
from typing import Any, Final

from flowcatalyst.errors import QueueUnavailableError
from flowcatalyst.queues.address import NatsAddress
from flowcatalyst.queues.nats_link import NOT_FOUND, ApiError, Link

DUPLICATE_WINDOW_S: Final = 300.0
NANO: Final = 1_000_000_000
Json = dict[str, Any]


class SetupMissingError(QueueUnavailableError):
    """The stream or the consumer does not exist: nothing that came from it can be settled any more."""


@dataclass(slots=True, frozen=True)
class Stream:
    created: str  # tells a stream that was made again from the one before it
    subject: str  # where to publish
    keeps_acknowledged: bool  # a consumer that is made anew begins at its beginning
    advice: tuple[str, ...]


@dataclass(slots=True, frozen=True)
class Consumer:
    ack_wait_s: float
    max_batch: int  # that it allows a pull to ask for; 0: any
    max_expires_s: float  # that it allows a pull to wait; 0: any
    state: Json  # its counters and when it was made
    advice: tuple[str, ...]


@dataclass(slots=True, frozen=True)
class Wishes:
    """What a consumer has to fit."""

    ack_wait_s: float
    max_ack_pending: int


async def prepare_stream(link: Link, address: NatsAddress) -> Stream:
    try:
        info = await _stream_info(link, address)
    except ApiError as error:
        raise QueueUnavailableError(f"stream {address.stream}: {error}") from None
    config = info["config"]
    subject = address.subject or (config.get("subjects") or [f"{address.stream}.>"])[0]
    keeps_acknowledged = config.get("retention") == "limits"
    return Stream(info["created"], _concrete(subject), keeps_acknowledged, tuple(_stream_advice(config)))


async def prepare_consumer(link: Link, address: NatsAddress, wishes: Wishes) -> Consumer:
    try:
        info = await _consumer_info(link, address, wishes)
        if address.create and (changes := _changes(info["config"], wishes)):
            info = await _changed_consumer(link, address, info, changes)
    except ApiError as error:
        raise QueueUnavailableError(f"consumer {address.consumer} of stream {address.stream}: {error}") from None
    config = info["config"]
    if problem := _problem_with(config):
        raise QueueUnavailableError(
            f"consumer {address.consumer} of stream {address.stream} {problem}: "
            "delete it and let the option create=true make it anew, or name another one"
        )
    backoff = config.get("backoff")
    return Consumer(
        ack_wait_s=(min(backoff) if backoff else config["ack_wait"]) / NANO,
        max_batch=config.get("max_batch", 0),
        max_expires_s=config.get("max_expires", 0) / NANO,
        state=info,
        advice=tuple(_consumer_advice(config, address, wishes)),
    )


async def consumer_state(link: Link, address: NatsAddress) -> Json:
    """Its counters. Raises `ApiError`."""
    state: Json = await link.api(f"CONSUMER.INFO.{address.stream}.{address.consumer}")
    return state


async def _stream_info(link: Link, address: NatsAddress) -> Json:
    info: Json
    try:
        info = await link.api(f"STREAM.INFO.{address.stream}")
    except ApiError as error:
        if error.code != NOT_FOUND:
            raise
        if not address.create:
            raise SetupMissingError(
                f"stream {address.stream} does not exist: create it, or add create=true to the address"
            ) from None
        info = await link.api(f"STREAM.CREATE.{address.stream}", _new_stream(address))
    return info


async def _consumer_info(link: Link, address: NatsAddress, wishes: Wishes) -> Json:
    try:
        return await consumer_state(link, address)
    except ApiError as error:
        if error.code != NOT_FOUND:
            raise
        if not address.create:
            raise SetupMissingError(
                f"stream {address.stream} has no consumer {address.consumer}: "
                "create it, pull-based with explicit acks, or add create=true to the address"
            ) from None
        return await _write_consumer(link, address, _new_consumer(address, wishes))


async def _changed_consumer(link: Link, address: NatsAddress, info: Json, changes: Json) -> Json:
    """A consumer that cannot be changed stays as it is, and the advice tells in what it differs."""
    try:
        return await _write_consumer(link, address, info["config"] | changes)
    except ApiError:
        return info


async def _write_consumer(link: Link, address: NatsAddress, config: Json) -> Json:
    request = {"stream_name": address.stream, "config": config}
    state: Json = await link.api(f"CONSUMER.DURABLE.CREATE.{address.stream}.{address.consumer}", request)
    return state


def _new_stream(address: NatsAddress) -> Json:
    """A work queue: what is acknowledged is gone, so it does not grow for ever. It admits no second consumer of the
    same subjects; who wants one makes the stream himself, with the retention `limits`.
    """
    return {
        "name": address.stream,
        "subjects": [address.subject or f"{address.stream}.>"],
        "retention": "workqueue",
        "storage": "file",
        "duplicate_window": int(DUPLICATE_WINDOW_S * NANO),
    }


def _new_consumer(address: NatsAddress, wishes: Wishes) -> Json:
    config: Json = {
        "durable_name": address.consumer,
        "deliver_policy": "all",
        "ack_policy": "explicit",
        "ack_wait": int(wishes.ack_wait_s * NANO),
        "max_deliver": -1,
        "max_ack_pending": wishes.max_ack_pending,
    }
    return config | ({"filter_subject": address.subject} if address.subject else {})


def _changes(config: Json, wishes: Wishes) -> Json:
    """What to change in a consumer that we may change."""
    wanted: Json = {"ack_wait": int(wishes.ack_wait_s * NANO), "max_deliver": -1}
    if _too_small(config, wishes):
        wanted["max_ack_pending"] = wishes.max_ack_pending
    return {name: value for name, value in wanted.items() if config.get(name) != value}


def _too_small(config: Json, wishes: Wishes) -> bool:
    return bool(0 < config.get("max_ack_pending", 0) < wishes.max_ack_pending)


def _problem_with(config: Json) -> str:
    if config.get("deliver_subject"):
        return "pushes its messages, and the router pulls"
    if config.get("ack_policy") != "explicit":
        return f"has the ack policy {config.get('ack_policy')}, and the router needs explicit"
    if config.get("headers_only"):
        return "delivers headers without bodies"
    return ""


def _stream_advice(config: Json) -> list[str]:
    advice: list[str] = []
    if config.get("storage") == "memory":
        advice.append("the stream is kept in memory: its messages are lost when the server stops")
    limits = [name for name in ("max_age", "max_msgs", "max_bytes", "max_msgs_per_subject") if config.get(name, 0) > 0]
    if config.get("discard") == "new":
        limits = [name for name in limits if name == "max_age"]
    if limits:
        advice.append(f"the stream drops messages by its {', '.join(limits)}, whether they were delivered or not")
    if (window_s := config.get("duplicate_window", 0) / NANO) < DUPLICATE_WINDOW_S:
        advice.append(f"the stream notices duplicates for {window_s:g} s only: set its duplicate_window to 5 minutes")
    return advice


def _consumer_advice(config: Json, address: NatsAddress, wishes: Wishes) -> list[str]:
    advice: list[str] = []
    ack_wait_s = config["ack_wait"] / NANO
    if config.get("backoff"):
        advice.append("the consumer has a backoff, which shortens its leases: remove it")
    elif ack_wait_s != wishes.ack_wait_s:
        advice.append(f"the consumer has an ack_wait of {ack_wait_s:g} s, and that counts, not {wishes.ack_wait_s:g} s")
    if (most := config.get("max_deliver", -1)) > 0:
        advice.append(f"the consumer gives a message up after {most} deliveries: set its max_deliver to -1")
    if _too_small(config, wishes):
        advice.append(
            f"the consumer lets {config['max_ack_pending']} messages be in flight at once, and the router can have "
            f"{wishes.max_ack_pending}: raise its max_ack_pending"
        )
    if config.get("mem_storage"):
        advice.append("the consumer is kept in memory: what was acknowledged comes again when the server restarts")
    filtered = config.get("filter_subject") or None
    if address.subject is not None and filtered not in (None, address.subject):
        advice.append(f"the consumer filters by {filtered}, not by {address.subject} as the address says")
    return advice


def _concrete(subject: str) -> str:
    """A subject without wildcards that the one given matches."""
    return ".".join("messages" if token in ("*", ">") else token for token in subject.split("."))
