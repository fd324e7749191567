"""Which queues there are, and how their brokers are reached."""

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, Self

from pydantic import Field, SecretStr, field_validator, model_validator

from flowcatalyst.core.errors import ConfigurationError, InvalidMessageError
from flowcatalyst.core.message import DEFAULT_POOL, DispatchMode
from flowcatalyst.core.payload import JSON_TYPE
from flowcatalyst.core.settings import Section
from flowcatalyst.queues.address import parse_queue_uri
from flowcatalyst.queues.raw import BROKER, Missing, RawConfig


@dataclass(slots=True, frozen=True)
class QueueConfig:
    """One queue to take messages from."""

    name: str
    uri: str = field(repr=False)  # may hold credentials
    connections: int = 1
    visibility_s: float | None = None  # None: the default of the broker's adapter
    raw: RawConfig | None = None  # None: its bodies are pointers
    polled: bool = True  # by this process; else it is for routers elsewhere


class EmbeddedSettings(Section):
    """The embedded queue."""

    queues: list[str] = Field(
        default_factory=lambda: ["default", "high", "medium", "low"], description="Names of the queues"
    )
    visibility_s: float = Field(
        60.0, ge=1, description="How long a received message stays hidden; extended while the router works on it"
    )


class RawSettings(Section):
    """What becomes of the messages of a raw queue."""

    target: str = Field(description="URL that its bodies are sent to, as they are")
    pool: str = Field(DEFAULT_POOL, description="Pool that delivers them")
    group: str = Field(BROKER, description="What names a message's group: broker, or a path such as $.order.id")
    id: str = Field(BROKER, description="What names the message: broker, or a path into the body")
    missing: Missing = Field(
        Missing.REJECT, description="Where a path finds nothing: reject (dead letter), or default (group and id)"
    )
    mode: DispatchMode | None = Field(None, description="What a failure means for its group; unset: BLOCK_ON_ERROR")
    content_type: str = Field(JSON_TYPE, description="Content-Type that they are sent with")
    headers: dict[str, SecretStr] = Field(default_factory=dict, description="Headers that they are sent with")

    @model_validator(mode="after")
    def _can_be_used(self) -> Self:
        try:
            self.config().check()
        except InvalidMessageError as error:
            raise ValueError(f"is wrong: {error}") from None
        return self

    def config(self) -> RawConfig:
        return RawConfig(
            self.target,
            self.pool,
            self.group,
            self.id,
            self.missing,
            self.mode,
            self.content_type,
            tuple((name, value.get_secret_value()) for name, value in self.headers.items()),
        )


class QueueSettings(Section):
    """One queue of a broker."""

    name: str = Field(min_length=1, description="Name that operators see")
    uri: str = Field(min_length=1, description="Where it is: see docs/queues.md for the forms")
    connections: int = Field(1, ge=1, le=1_000, description="Polls at a time, where the broker locks groups")
    visibility_s: float | None = Field(
        None, ge=1, le=43_200, description="How long a received message stays hidden; unset: 60"
    )
    raw: RawSettings | None = Field(None, description="Its bodies are sent as they are; unset: they are messages")
    poll: bool = Field(
        True, description="Take messages from it; false: it is only published to, for routers on other machines"
    )

    @field_validator("uri")
    @classmethod
    def _is_a_queue_uri(cls, value: str) -> str:
        try:
            parse_queue_uri(value)
        except ConfigurationError as error:
            raise ValueError(f"is wrong: {str(error).replace('its queueUri', 'it', 1)}") from None
        return value

    def config(self) -> QueueConfig:
        raw = None if self.raw is None else self.raw.config()
        return QueueConfig(self.name, self.uri, self.connections, self.visibility_s, raw, self.poll)


class SqsSettings(Section):
    """Amazon SQS. Credentials come from where every AWS tool finds them."""

    endpoint_override: str | None = Field(
        None, description="URL of another SQS server; also as SQS_ENDPOINT_OVERRIDE. Unset: Amazon's"
    )
    region: str | None = Field(None, description="Region of queues whose queueUri names none; unset: AWS_REGION")
    wait_time_s: int = Field(20, ge=1, le=20, description="How long a poll waits; a stop has to wait for it too")
    max_messages: int = Field(10, ge=1, le=10, description="Most messages of one poll")

    @field_validator("endpoint_override")
    @classmethod
    def is_a_server(cls, value: str | None) -> str | None:
        if value is not None and not re.fullmatch(r"https?://[^/\s@]+/?", value):
            raise ValueError("should be http:// or https://, a host and a port")
        return value


class NatsSettings(Section):
    """NATS servers."""

    user: str | None = Field(None, description="User name")
    password: SecretStr | None = Field(None, description="Password of the user")
    token: SecretStr | None = Field(None, description="Token, instead of user and password")
    credentials_file: Path | None = Field(None, description="File with a JWT and its key, instead of the others")
    ca_file: Path | None = Field(None, description="Certificates to trust for tls:// besides the system's")


class ActiveMqSettings(Section):
    """ActiveMQ and other AMQP 1.0 brokers."""

    user: str | None = Field(None, description="User name; unset: anonymous")
    password: SecretStr | None = Field(None, description="Password of the user")
    ca_file: Path | None = Field(None, description="Certificates to trust for amqps:// besides the system's")


class PostgresSettings(Section):
    """PostgreSQL servers. What is unset comes from where libpq finds it: PGUSER, PGPASSWORD, ~/.pgpass."""

    user: str | None = Field(None, description="User name; unset: PGUSER, or that of the process")
    password: SecretStr | None = Field(None, description="Password of the user; unset: PGPASSWORD or ~/.pgpass")
    ca_file: Path | None = Field(None, description="Certificates to trust; the server's is checked against them")


class BrokerSettings(Protocol):
    """The settings that queues are made with."""

    embedded: EmbeddedSettings
    sqs: SqsSettings
    nats: NatsSettings
    activemq: ActiveMqSettings
    postgres: PostgresSettings
