"""Queue addresses: what a queueUri says. Pure."""

import re
from collections.abc import Collection
from dataclasses import dataclass, field
from ipaddress import IPv6Address
from typing import Final
from urllib.parse import parse_qsl, unquote

from flowcatalyst.core.errors import ConfigurationError

FORMS: Final = (
    "embedded:NAME",
    "https://sqs.REGION.amazonaws.com/ACCOUNT/QUEUE",
    "http://HOST:PORT/ACCOUNT/QUEUE",
    "sqs://QUEUE?region=REGION",
    "nats://HOST:PORT/STREAM?consumer=NAME",
    "tls://HOST:PORT/STREAM?consumer=NAME",
    "amqp://HOST:PORT/QUEUE",
    "amqps://HOST:PORT/QUEUE",
    "postgresql://HOST:PORT/DATABASE?queue=NAME",
    "postgres://HOST:PORT/DATABASE?queue=NAME",
)
DEFAULT_PORTS: Final = {"nats": 4222, "tls": 4222, "amqp": 5672, "amqps": 5671, "postgresql": 5432, "postgres": 5432}
_REGION: Final = r"[a-z]{2,4}(?:-[a-z]+)+-\d{1,2}"
_REGION_IN_HOST: Final = re.compile(rf"(?:^|\.)(?:sqs(?:-fips)?\.(?P<new>{_REGION})|(?P<old>{_REGION})\.queue)\.")
_AMAZON: Final = (".amazonaws.com", ".amazonaws.com.cn", ".amazonaws.eu", ".api.aws")
_FIRST_HOST: Final = "queue.amazonaws.com"  # from the time when there was one region
_FIRST_REGION: Final = "us-east-1"
_SQS_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,80}|[A-Za-z0-9_-]{1,75}\.fifo")
_WORD: Final = re.compile(r"[A-Za-z0-9_-]+")
_URI: Final = re.compile(r"[A-Za-z]+://(?P<authority>[^/?#]*)(?P<path>[^?#]*)(?:\?(?P<query>[^#]*))?")
_HOST: Final = re.compile(r"(?:\[(?P<ipv6>[0-9A-Fa-f:.]+)\]|(?P<name>[\w.-]+))(?::(?P<port>.*))?")
_OPTION_VALUES: Final = {
    "region": (re.compile(r"[a-z0-9-]{1,40}"), "a region, such as eu-west-1"),
    "consumer": (_WORD, "made of letters, digits, - and _"),
    "subject": (re.compile(r"(?:(?:\*|[^\s.*>]+)\.)*(?:>|\*|[^\s.*>]+)"), "a subject, such as orders.new or orders.>"),
    "groupHeader": (re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"), "the name of a header"),
    "groupToken": (re.compile(r"[1-9][0-9]?|all"), "the number of a subject's token, from 1 to 99, or all"),
    "create": (re.compile(r"true|false", re.IGNORECASE), "true or false"),
    "queue": (
        re.compile(r"\S(?:.{0,198}\S)?"),
        "a name of 1 to 200 characters that neither begins nor ends in a space",
    ),
    "schema": (re.compile(r"[a-z_][a-z0-9_]{0,39}"), "made of small letters, digits and _, up to 40 of them"),
    "sslmode": (
        re.compile(r"disable|prefer|require|verify-ca|verify-full"),
        "one of PostgreSQL's, such as verify-full",
    ),
}


_HIDDEN: Final = "***"
_LIKE_A_SECRET: Final = re.compile(r"key|token|secret|passw|pwd|sig|credential|auth", re.IGNORECASE)


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
    group_token: int | None = None  # the subject's token that names the group, from 1, where no header does; 0: all
    create: bool = False


@dataclass(slots=True, frozen=True)
class AmqpAddress:
    """A queue at an AMQP 1.0 broker."""

    hosts: tuple[tuple[str, int], ...]
    queue: str
    tls: bool = False


@dataclass(slots=True, frozen=True)
class PostgresAddress:
    """A queue in a PostgreSQL database."""

    hosts: tuple[tuple[str, int], ...]
    database: str
    queue: str
    schema: str | None = None  # of its tables; None: the default one
    sslmode: str | None = None  # None: TLS if the server has it, checked if we have a CA


@dataclass(slots=True, frozen=True)
class DatabaseUrl:
    """A PostgreSQL database, and who we are there. What is None is said elsewhere."""

    address: PostgresAddress  # of no queue
    user: str | None = None
    password: str | None = field(default=None, repr=False)


Address = EmbeddedAddress | SqsAddress | NatsAddress | AmqpAddress | PostgresAddress


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
                return _sqs_by_url(_split(uri, scheme))
            case "sqs":
                return _sqs_by_name(_split(uri, scheme))
            case "nats" | "tls":
                return _nats(_split(uri, scheme))
            case "amqp" | "amqps":
                return _amqp(_split(uri, scheme))
            case "postgresql" | "postgres":
                return _postgres(_split(uri, scheme))
    except ValueError as error:
        forms = " or ".join(form for form in FORMS if form.startswith(f"{scheme}:"))
        raise ConfigurationError(f"its queueUri {error}; its form is {forms}") from None
    raise ConfigurationError(f"its queueUri has no known scheme; the forms are {', '.join(FORMS)}")


def parse_database_url(url: str) -> DatabaseUrl:
    """What the URL of a database means, which may have credentials: a secret setting.

    Raises `ConfigurationError` with the end of a sentence that repeats nothing of the URL.
    """
    scheme, slashes, rest = url.partition("://")
    address_part, mark, query = rest.partition("?")
    userinfo, at, place = address_part.rpartition("@")
    user, colon, password = userinfo.partition(":")
    try:
        if scheme.lower() not in ("postgresql", "postgres") or not slashes:
            raise ValueError("has no known scheme")
        if at and not user:
            raise ValueError("has a password without a user")
        parts = _split(f"{scheme}://{place}{mark}{query}", scheme.lower())
        known = {"schema", "sslmode"}
        if not {name for name, _ in parse_qsl(parts.query, keep_blank_values=True)} <= known:
            raise ValueError("has an option other than schema and sslmode")  # perhaps the end of a password
        options = _options(parts, known)
        address = PostgresAddress(
            _hosts(parts), _name_in_path(parts, "database"), "", options.get("schema"), options.get("sslmode")
        )
    except ValueError as error:
        form = "postgresql://USER:PASSWORD@HOST:PORT/DATABASE?schema=NAME&sslmode=MODE"
        raise ConfigurationError(
            f"{error}; its form is {form}, and special characters of a password are written as %40"
        ) from None
    return DatabaseUrl(address, unquote(user) or None, unquote(password) if colon else None)


def shown_uri(uri: str) -> str:
    """A queueUri for people, also one that is refused: without user info and values that may be secrets."""
    scheme, slashes, rest = uri.partition("://")
    if slashes and "@" in rest:  # no address has one, so nobody can tell where a password begins
        uri = f"{scheme}://{_HIDDEN}@{rest.rpartition('@')[2]}"
    address, mark, query = uri.partition("#")[0].partition("?")
    return f"{address}{mark}{'&'.join(_shown_option(one) for one in query.split('&') if one)}"


def _shown_option(option: str) -> str:
    name, equals, value = option.partition("=")
    if name in _OPTION_VALUES and _OPTION_VALUES[name][0].fullmatch(unquote(value)):
        return option  # groupToken is none
    if equals and not _LIKE_A_SECRET.search(unquote(option)):
        return option
    return f"{name}={_HIDDEN}" if equals else _HIDDEN


@dataclass(slots=True, frozen=True)
class _Parts:
    scheme: str
    authority: str
    path: str
    query: str


def _split(uri: str, scheme: str) -> _Parts:
    """By hand: `urlsplit` knows one host only, and its errors repeat what is between // and /."""
    if any(character.isspace() or not character.isprintable() for character in uri):
        raise ValueError("contains a space or a control character")
    if "@" in uri:
        raise ValueError(
            "has an @. Credentials would be shown with it: put them into the settings or the environment. "
            "In a name it is written %40"
        )
    if "#" in uri:
        raise ValueError("has a fragment (#)")
    found = _URI.fullmatch(uri)
    if found is None:
        raise ValueError("has no // after its scheme")
    return _Parts(scheme, found["authority"], found["path"], found["query"] or "")


def _embedded(uri: str) -> EmbeddedAddress:
    name = uri.partition(":")[2].removeprefix("//")
    if not name or name.isspace():
        raise ValueError("has no queue name")
    if not name.isprintable():
        raise ValueError("has a control character in its queue name")
    return EmbeddedAddress(name)


def _sqs_by_url(parts: _Parts) -> SqsAddress:
    options = _options(parts, {"region", "create"})
    path = [part for part in parts.path.split("/") if part]
    if len(path) < 2 or not _SQS_NAME.fullmatch(path[-1]):
        raise ValueError("is not an SQS queue URL, which ends in /ACCOUNT/QUEUE")
    host, port = _host(parts.authority)
    server = f"{parts.scheme}://{_in_url(host)}{f':{port}' if port else ''}"
    found = _REGION_IN_HOST.search(host)
    in_host = _FIRST_REGION if host == _FIRST_HOST else found and (found["new"] or found["old"])
    return SqsAddress(
        queue_name=path[-1],
        queue_url=f"{server}/{'/'.join(path)}",
        region=options.get("region") or in_host,
        endpoint=None if host.endswith(_AMAZON) else server,
        create=_flag(options, "create"),
    )


def _sqs_by_name(parts: _Parts) -> SqsAddress:
    options = _options(parts, {"region", "create"})
    if not _SQS_NAME.fullmatch(parts.authority):
        raise ValueError("has an invalid SQS queue name")
    if parts.path.strip("/"):
        raise ValueError("has a path after the name of the queue")
    return SqsAddress(queue_name=parts.authority, region=options.get("region"), create=_flag(options, "create"))


def _nats(parts: _Parts) -> NatsAddress:
    options = _options(parts, {"consumer", "subject", "groupHeader", "groupToken", "create"})
    stream = _name_in_path(parts, "stream")
    if not _WORD.fullmatch(stream):
        raise ValueError("has an invalid stream name: use letters, digits, - and _")
    if "consumer" not in options:
        raise ValueError("has no consumer: add ?consumer=NAME, the durable consumer that all routers share")
    number = options.get("groupToken")
    return NatsAddress(
        servers=tuple(f"{parts.scheme}://{_in_url(host)}:{port}" for host, port in _hosts(parts)),
        stream=stream,
        consumer=options["consumer"],
        subject=options.get("subject"),
        group_header=options.get("groupHeader"),
        group_token=None if number is None else 0 if number == "all" else int(number),
        create=_flag(options, "create"),
    )


def _amqp(parts: _Parts) -> AmqpAddress:
    _options(parts, set())
    return AmqpAddress(_hosts(parts), _name_in_path(parts, "queue"), tls=parts.scheme == "amqps")


def _postgres(parts: _Parts) -> PostgresAddress:
    options = _options(parts, {"queue", "schema", "sslmode"})
    if "queue" not in options:
        raise ValueError("has no queue: add ?queue=NAME")
    database = _name_in_path(parts, "database")
    return PostgresAddress(_hosts(parts), database, options["queue"], options.get("schema"), options.get("sslmode"))


def _name_in_path(parts: _Parts, what: str) -> str:
    name = unquote(parts.path.removeprefix("/"))
    if not name or "/" in name:
        raise ValueError(f"has no {what} name: it ends in /{what.upper()}")
    if name.strip() != name or not name.isprintable() or "\ufffd" in name:
        raise ValueError(f"has an invalid {what} name: it ends in a space or contains undecodable characters")
    return name


def _hosts(parts: _Parts) -> tuple[tuple[str, int], ...]:
    """One or more, separated by commas: the others are tried when one is away."""
    found = [_host(one) for one in parts.authority.split(",")]
    return tuple((host, port or DEFAULT_PORTS[parts.scheme]) for host, port in found)


def _host(text: str) -> tuple[str, int | None]:
    """Host and port, None if there is none. An IPv6 address is without its brackets."""
    found = _HOST.fullmatch(text)
    if found is None:
        raise ValueError("has no host" if not text else "has an invalid host")
    if found["ipv6"]:
        try:
            IPv6Address(found["ipv6"])
        except ValueError:
            raise ValueError("has an invalid host") from None
    port = found["port"] or ""
    if port and not (re.fullmatch(r"[0-9]{1,5}", port) and 1 <= int(port) <= 65535):
        raise ValueError("has an invalid port")
    return (found["ipv6"] or found["name"]).lower(), int(port) if port else None


def _in_url(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _options(parts: _Parts, known: Collection[str]) -> dict[str, str]:
    """What stands after the ?. A value is never repeated, nor a name that does not look like one."""
    options: dict[str, str] = {}
    for name, value in parse_qsl(parts.query, keep_blank_values=True):
        if name not in known:
            shown = f"the option {name}" if value and _WORD.fullmatch(name) and len(name) <= 40 else "an option"
            takes = f"takes {', '.join(sorted(known))}" if known else "takes none"
            raise ValueError(f"has {shown}, but a queue of this kind {takes}")
        if not value or name in options:
            raise ValueError(f"has the option {name} without a value or twice")
        form, in_words = _OPTION_VALUES[name]
        if not form.fullmatch(value) or not value.isprintable():
            raise ValueError(f"has the option {name} with a value that is not {in_words}")
        options[name] = value
    return options


def _flag(options: dict[str, str], name: str) -> bool:
    return options.get(name, "false").lower() == "true"
