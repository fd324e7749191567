"""Queue addresses: what a queueUri says. Pure."""

import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from flowcatalyst.errors import ConfigurationError

FORMS: Final = (
    "embedded:NAME",
    "https://sqs.REGION.amazonaws.com/ACCOUNT/QUEUE",
    "sqs://QUEUE?region=REGION",
    "nats://HOST:PORT/STREAM?consumer=NAME",
    "amqp://HOST:PORT/QUEUE",
)
DEFAULT_PORTS: Final = {"nats": 4222, "tls": 4222, "amqp": 5672, "amqps": 5671}
_REGION_IN_HOST: Final = re.compile(
    r"(?:^|\.)(?:sqs(?:-fips)?\.(?P<new>[a-z]{2}(?:-[a-z]+)+-\d)|(?P<old>[a-z]{2}(?:-[a-z]+)+-\d)\.queue)\."
)
_WORD: Final = re.compile(r"[A-Za-z0-9_-]+")


@dataclass(slots=True, frozen=True)
class EmbeddedAddress:
    """A queue of the embedded store."""

    name: str


@dataclass(slots=True, frozen=True)
class SqsAddress:
    """An SQS queue, by its URL or by its name."""

    queue_name: str
    queue_url: str | None = None  # None: SQS is asked for it
    region: str | None = None  # None: from the settings or the environment
    endpoint: str | None = None  # scheme, host and port of an SQS that is not Amazon's; None: Amazon's, or the settings
    create: bool = False

    @property
    def fifo(self) -> bool:
        return self.queue_name.endswith(".fifo")


@dataclass(slots=True, frozen=True)
class NatsAddress:
    """A JetStream stream and the durable consumer that the router is."""

    servers: tuple[str, ...]  # nats://host:port
    stream: str
    consumer: str
    subject: str | None = None  # what to consume and to publish to; None: consume all, publish to the stream's first
    group_header: str | None = None  # None: the header that our publisher sets
    group_token: int | None = None  # number of the subject's token that names the group, from 1, where no header does
    create: bool = False


@dataclass(slots=True, frozen=True)
class AmqpAddress:
    """A queue at an AMQP 1.0 broker."""

    hosts: tuple[tuple[str, int], ...]
    queue: str
    tls: bool = False


Address = EmbeddedAddress | SqsAddress | NatsAddress | AmqpAddress


def parse_queue_uri(uri: str) -> Address:
    """What a queueUri means.

    Raises `ConfigurationError` with a sentence that does not repeat the URI, which may hold secrets.
    """
    scheme = uri.partition(":")[0].lower()
    try:
        match scheme:
            case "embedded":
                return _embedded(uri)
            case "http" | "https":
                return _sqs_by_url(_split(uri))
            case "sqs":
                return _sqs_by_name(_split(uri))
            case "nats" | "tls":
                return _nats(_split(uri))
            case "amqp" | "amqps":
                return _amqp(_split(uri))
    except ValueError as error:
        raise ConfigurationError(f"its queueUri {error}; {_FORMS_IN_WORDS}") from None
    raise ConfigurationError(f"its queueUri has no known scheme; {_FORMS_IN_WORDS}")


_FORMS_IN_WORDS: Final = f"the forms are {', '.join(FORMS)}"


def _split(uri: str) -> SplitResult:
    if any(character.isspace() or not character.isprintable() for character in uri):
        raise ValueError("has a blank or a control character")
    parts = urlsplit(uri)
    if "@" in parts.netloc:
        raise ValueError("has credentials, which are shown with it: put them into the settings or the environment")
    if parts.fragment:
        raise ValueError("has a # part")
    return parts


def _embedded(uri: str) -> EmbeddedAddress:
    name = uri.partition(":")[2].removeprefix("//")
    if not name:
        raise ValueError("names no queue")
    return EmbeddedAddress(name)


def _sqs_by_url(parts: SplitResult) -> SqsAddress:
    options = _options(parts, {"region", "create"})
    path = [part for part in parts.path.split("/") if part]
    if not parts.hostname or len(path) < 2:
        raise ValueError("is no SQS queue URL, which ends in /ACCOUNT/QUEUE")
    found = _REGION_IN_HOST.search(parts.hostname)
    amazon = parts.hostname.endswith((".amazonaws.com", ".amazonaws.com.cn"))
    _port(parts)
    return SqsAddress(
        queue_name=path[-1],
        queue_url=f"{parts.scheme}://{parts.netloc}{parts.path}",
        region=options.get("region") or (found and (found["new"] or found["old"])) or None,
        endpoint=None if amazon else f"{parts.scheme}://{parts.netloc}",
        create=_flag(options, "create"),
    )


def _sqs_by_name(parts: SplitResult) -> SqsAddress:
    options = _options(parts, {"region", "create"})
    name = parts.netloc
    if not re.fullmatch(r"[A-Za-z0-9_-]{1,80}|[A-Za-z0-9_-]{1,75}\.fifo", name):
        raise ValueError("names no queue that SQS could have")
    if parts.path.strip("/"):
        raise ValueError("has a path after the name of the queue")
    return SqsAddress(queue_name=name, region=options.get("region"), create=_flag(options, "create"))


def _nats(parts: SplitResult) -> NatsAddress:
    options = _options(parts, {"consumer", "subject", "groupHeader", "groupToken", "create"})
    stream, consumer = _name_in_path(parts, "stream"), options.get("consumer", "")
    if not _WORD.fullmatch(stream):
        raise ValueError("names a stream with other characters than letters, digits, - and _")
    if not consumer:
        raise ValueError("has no consumer: add ?consumer=NAME, the durable consumer that all routers share")
    if not _WORD.fullmatch(consumer):
        raise ValueError("names a consumer with other characters than letters, digits, - and _")
    token = options.get("groupToken")
    if token is not None and not (token.isascii() and token.isdigit() and 1 <= int(token) <= 100):
        raise ValueError("has a groupToken that is no number of a subject's token, from 1 on")
    return NatsAddress(
        servers=tuple(f"{parts.scheme}://{_host_in_url(host)}:{port}" for host, port in _hosts(parts)),
        stream=stream,
        consumer=consumer,
        subject=options.get("subject"),
        group_header=options.get("groupHeader"),
        group_token=None if token is None else int(token),
        create=_flag(options, "create"),
    )


def _amqp(parts: SplitResult) -> AmqpAddress:
    _options(parts, set())
    return AmqpAddress(_hosts(parts), _name_in_path(parts, "queue"), tls=parts.scheme == "amqps")


def _name_in_path(parts: SplitResult, what: str) -> str:
    name = unquote(parts.path.removeprefix("/"))
    if not name or "/" in name.strip("/") or name.strip("/") != name:
        raise ValueError(f"names no {what}: it ends in /{what.upper()}")
    return name


def _hosts(parts: SplitResult) -> tuple[tuple[str, int], ...]:
    """One or more, separated by commas: the others are tried when one is away."""
    hosts: list[tuple[str, int]] = []
    for netloc in parts.netloc.split(","):
        one = urlsplit(f"//{netloc}")
        if not one.hostname:
            raise ValueError("names no host")
        hosts.append((one.hostname, _port(one) or DEFAULT_PORTS[parts.scheme]))
    return tuple(hosts)


def _port(parts: SplitResult) -> int | None:
    try:
        return parts.port
    except ValueError:
        raise ValueError("has a port that is none") from None


def _host_in_url(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _options(parts: SplitResult, known: Collection[str]) -> dict[str, str]:
    options: dict[str, str] = {}
    for name, value in parse_qsl(parts.query, keep_blank_values=True):
        if name not in known:
            takes = f"takes {', '.join(sorted(known))}" if known else "takes none"
            raise ValueError(f"has the option {name[:40]!r}, but a queue of this kind {takes}")
        if not value or name in options:
            raise ValueError(f"has the option {name} without a value or twice")
        options[name] = value
    return options


def _flag(options: dict[str, str], name: str) -> bool:
    value = options.get(name, "false").lower()
    if value not in ("true", "false"):
        raise ValueError(f"has a {name} that is neither true nor false")
    return value == "true"
