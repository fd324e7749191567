"""The stream and the consumer at the server: made where that is asked for, else checked."""

from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from flowcatalyst.core.errors import QueueUnavailableError
from flowcatalyst.queues.address import NatsAddress
from flowcatalyst.queues.nats.link import NOT_FOUND, ApiError, Link

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
    setup_warnings: tuple[str, ...]


@dataclass(slots=True, frozen=True)
class Consumer:
    ack_wait_s: float
    max_batch: int  # that it allows a pull to ask for; 0: any
    max_expires_s: float  # that it allows a pull to wait; 0: any
    state: Json  # its counters and when it was made
    setup_warnings: tuple[str, ...]


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
    # One without wildcards that it matches.
    subject = ".".join("messages" if token in ("*", ">") else token for token in subject.split("."))
    return Stream(info["created"], subject, keeps_acknowledged, tuple(_stream_warnings(config)))


async def prepare_consumer(link: Link, address: NatsAddress, wishes: Wishes) -> Consumer:
    try:
        info = await _consumer_info(link, address, wishes)
        wanted: Json = {"ack_wait": int(wishes.ack_wait_s * NANO), "max_deliver": -1}
        if _too_small(info["config"], wishes):
            wanted["max_ack_pending"] = wishes.max_ack_pending
        changes = {name: value for name, value in wanted.items() if info["config"].get(name) != value}
        if address.create and changes:
            with suppress(ApiError):  # one that cannot be changed stays as it is, and the advice tells how it differs
                info = await _write_consumer(link, address, info["config"] | changes)
    except ApiError as error:
        raise QueueUnavailableError(f"consumer {address.consumer} of stream {address.stream}: {error}") from None
    config = info["config"]
    if problem := _problem_with(config):
        raise QueueUnavailableError(
            f"consumer {address.consumer} of stream {address.stream} {problem}: "
            "delete it and let the option create=true create it again, or name another one"
        )
    backoff = config.get("backoff")
    return Consumer(
        ack_wait_s=(min(backoff) if backoff else config["ack_wait"]) / NANO,
        max_batch=config.get("max_batch", 0),
        max_expires_s=config.get("max_expires", 0) / NANO,
        state=info,
        setup_warnings=tuple(_consumer_warnings(config, address, wishes)),
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
        # A work queue: what is acknowledged is gone, so it does not grow for ever. It admits no second consumer of the
        # same subjects; who wants one makes the stream himself, with the retention `limits`.
        config = {
            "name": address.stream,
            "subjects": [address.subject or f"{address.stream}.>"],
            "retention": "workqueue",
            "storage": "file",
            "duplicate_window": int(DUPLICATE_WINDOW_S * NANO),
        }
        info = await link.api(f"STREAM.CREATE.{address.stream}", config)
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
        config: Json = {
            "durable_name": address.consumer,
            "deliver_policy": "all",
            "ack_policy": "explicit",
            "ack_wait": int(wishes.ack_wait_s * NANO),
            "max_deliver": -1,
            "max_ack_pending": wishes.max_ack_pending,
        }
        if address.subject:
            config["filter_subject"] = address.subject
        return await _write_consumer(link, address, config)


async def _write_consumer(link: Link, address: NatsAddress, config: Json) -> Json:
    request = {"stream_name": address.stream, "config": config}
    state: Json = await link.api(f"CONSUMER.DURABLE.CREATE.{address.stream}.{address.consumer}", request)
    return state


def _too_small(config: Json, wishes: Wishes) -> bool:
    return bool(0 < config.get("max_ack_pending", 0) < wishes.max_ack_pending)


def _problem_with(config: Json) -> str:
    if config.get("deliver_subject"):
        return "is a push consumer, and the router needs a pull consumer"
    if config.get("ack_policy") != "explicit":
        return f"has the ack policy {config.get('ack_policy')}, and the router needs explicit"
    if config.get("headers_only"):
        return "delivers headers without bodies"
    return ""


def _stream_warnings(config: Json) -> list[str]:
    found: list[str] = []
    if config.get("storage") == "memory":
        found.append("the stream is stored in memory: its messages are lost when the server stops")
    limits = [name for name in ("max_age", "max_msgs", "max_bytes", "max_msgs_per_subject") if config.get(name, 0) > 0]
    if config.get("discard") == "new":
        limits = [name for name in limits if name == "max_age"]
    if limits:
        found.append(f"the stream drops messages by its {', '.join(limits)}, whether they were delivered or not")
    if (window_s := config.get("duplicate_window", 0) / NANO) < DUPLICATE_WINDOW_S:
        found.append(f"the stream notices duplicates for {window_s:g} s only: set its duplicate_window to 5 minutes")
    return found


def _consumer_warnings(config: Json, address: NatsAddress, wishes: Wishes) -> list[str]:
    found: list[str] = []
    ack_wait_s = config["ack_wait"] / NANO
    if config.get("backoff"):
        found.append("the consumer has a backoff, which shortens its leases: remove it")
    elif ack_wait_s != wishes.ack_wait_s:
        found.append(f"the consumer has an ack_wait of {ack_wait_s:g} s, used instead of {wishes.ack_wait_s:g} s")
    if (most := config.get("max_deliver", -1)) > 0:
        found.append(f"the consumer drops a message after {most} deliveries: set its max_deliver to -1")
    if _too_small(config, wishes):
        found.append(
            f"the consumer lets {config['max_ack_pending']} messages be in flight, and the router can have "
            f"{wishes.max_ack_pending}: raise its max_ack_pending"
        )
    if config.get("mem_storage"):
        found.append("the consumer is stored in memory: a restart of the server delivers acknowledged messages again")
    filtered = config.get("filter_subject") or None
    if address.subject is not None and filtered not in (None, address.subject):
        found.append(f"the consumer filters by {filtered}, not by {address.subject} as the address says")
    return found
