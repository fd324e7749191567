"""Every setting, in one place, with its default.

A setting comes from the command line, else from the environment (`FLOWCATALYST_PORT`, nested ones with two
underscores: `FLOWCATALYST_MEDIATOR__HTTP__VERSION`), else from `flowcatalyst.toml`, else it is the default here.
"""

import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from ipaddress import ip_network
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    Field,
    SecretStr,
    TypeAdapter,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic_core import from_json
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    InitSettingsSource,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
)

from flowcatalyst.control import environment
from flowcatalyst.control.platform_settings import PlatformSettings
from flowcatalyst.control.pool_settings import PoolSettings, RetrySettings
from flowcatalyst.control.settings_words import in_words
from flowcatalyst.core.credentials import Account, KeyEntry, read_accounts, read_keys
from flowcatalyst.core.errors import ConfigurationError, TargetRefusedError
from flowcatalyst.core.hosts import is_loopback, problem_with_host
from flowcatalyst.core.message import DEFAULT_POOL
from flowcatalyst.core.settings import Section
from flowcatalyst.core.targets import parse_target
from flowcatalyst.queues.settings import (
    ActiveMqSettings,
    EmbeddedSettings,
    NatsSettings,
    PostgresSettings,
    QueueSettings,
    RawSettings,
    SqsSettings,
)

DEFAULT_FILE = Path("flowcatalyst.toml")
SQS_ENDPOINT_VARIABLE = "SQS_ENDPOINT_OVERRIDE"


class HttpSettings(Section):
    """How messages are delivered."""

    version: Literal["HTTP_1_1", "HTTP_2"] = Field(
        "HTTP_1_1", description="HTTP_2 offers HTTP/2 to https targets (an extra: pip install '.[http2]')"
    )
    timeout_ms: int = Field(900_000, ge=1, description="Limit for a whole attempt: connect, request and response")
    connect_timeout_ms: int = Field(30_000, ge=1, description="Limit for opening a connection")
    max_connections_per_origin: int = Field(1024, ge=1, description="Most connections to one scheme, host and port")
    ca_file: Path | None = Field(None, description="Certificates to trust for https targets besides the system's")


class MediatorSettings(Section):
    http: HttpSettings = Field(default_factory=HttpSettings)


class EgressSettings(Section):
    """Which addresses messages may be delivered to."""

    allow_private: bool = Field(
        True,
        description="Allow loopback, private and other special addresses as targets; unset and with access control "
        "(auth.mode): false",
    )
    allowed_networks: list[str] = Field(
        default_factory=list, description="Networks that are allowed although private ones are not, as 10.1.0.0/16"
    )

    @field_validator("allowed_networks")
    @classmethod
    def _are_networks(cls, value: list[str]) -> list[str]:
        return [str(ip_network(network)) for network in value]


class SyncSettings(Section):
    """Where pools and queues come from, if not from these settings."""

    config_url: str | None = Field(
        None,
        description="URL of the router configuration, or several separated by commas, or a file path; also as "
        "MESSAGE_ROUTER_CONFIG_URL. Unset: the pools and queues of these settings",
    )
    interval_s: float = Field(300.0, gt=0, description="How often the configuration is fetched again")
    attempts: int = Field(12, ge=1, description="Attempts of one sync")
    attempt_pause_s: float = Field(5.0, ge=0, description="Pause between these attempts")
    timeout_s: float = Field(10.0, gt=0, description="Limit for fetching one source")
    max_pools: int = Field(10_000, ge=1, description="Most pools; what is above is not made, with a warning")
    pool_warning_threshold: int = Field(5_000, ge=1, description="Number of pools above which there is a warning")


class StandbySettings(Section):
    """Hot standby: of several routers, only the one that holds a lock in Redis works."""

    redis_url: SecretStr | None = Field(
        None,
        description="redis:// or rediss:// URL of the lock, with its credentials. Unset: no standby, always at work",
    )
    lock_key: str = Field("flowcatalyst:router:primary", min_length=1, description="Name of the lock")
    ttl_s: float = Field(30.0, ge=1, description="How long the lock holds without a refresh")
    refresh_s: float = Field(10.0, gt=0, description="How often the primary refreshes it, and a standby asks for it")

    @model_validator(mode="after")
    def _refreshes_in_time(self) -> Self:
        if self.refresh_s * 2 > self.ttl_s:
            raise ValueError("has a refresh_s of more than half of ttl_s: one lost refresh would lose the lock")
        return self


class AuthSettings(Section):
    """Who may use the API."""

    mode: Literal["none", "api_key", "basic"] = Field(
        "none", description="none (on loopback only), api_key (header X-API-Key or Bearer) or basic"
    )
    admin: Annotated[list[str], NoDecode] = Field(
        default_factory=list,
        description="Who may read and change: hashes made by `flowcatalyst hash-key`; with basic, name:hash",
    )
    read_only: Annotated[list[str], NoDecode] = Field(
        default_factory=list, description="Who may only read, in the same form"
    )
    open_probes: bool = Field(True, description="Answer health probes and metrics without credentials")

    @field_validator("admin", "read_only", mode="before")
    @classmethod
    def _splits_a_variable(cls, value: object) -> object:
        """A variable of the environment holds a JSON list like all others, or entries separated by commas."""
        if not isinstance(value, str):
            return value
        if value.lstrip().startswith("["):
            try:
                return from_json(value)
            except ValueError:
                raise ValueError("begins like a JSON list but is none") from None
        return [entry.strip() for entry in value.split(",") if entry.strip()]

    @model_validator(mode="after")
    def _entries_can_be_read(self) -> Self:
        if self.mode == "none":
            return self
        if not self.admin:
            raise ValueError(f"has mode {self.mode} but no admin: add an entry, `flowcatalyst hash-key` makes one")
        _ = self.keys() if self.mode == "api_key" else self.accounts()
        return self

    def keys(self) -> list[KeyEntry]:
        return read_keys(self.admin, self.read_only)

    def accounts(self) -> list[Account]:
        return read_accounts(self.admin, self.read_only)


class NotificationSettings(Section):
    """Where warnings are sent."""

    webhook_url: str | None = Field(None, description="URL that gets new warnings as JSON; unset: nobody is told")
    format: Literal["json", "slack"] = Field(
        "json", description="json: as docs/operations.md says; slack: as an incoming webhook of Slack takes it"
    )
    batch_s: float = Field(60.0, gt=0, description="How long warnings are collected; CRITICAL ones are sent at once")
    min_severity: Literal["WARN", "ERROR", "CRITICAL"] = Field("WARN", description="The least that is sent")


class HealthSettings(Section):
    """When the router says that somebody should look."""

    endpoint_down_s: float = Field(
        60.0, gt=0, description="How long the attempts at an endpoint fail, or hang, before it counts as down"
    )
    group_blocked_s: float = Field(
        900.0, gt=0, description="How long a group waits for a message that fails before it counts as blocked"
    )
    dead_letters_s: float = Field(900.0, gt=0, description="How long a dead letter counts as new")


class DeadLetterSettings(Section):
    """How long dead letters are kept that nobody replays or removes."""

    max_age_days: float = Field(90.0, ge=0, description="Dead letters older than this are dropped; 0: none is")
    max_count: int = Field(
        1_000_000, ge=0, description="Most dead letters; beyond it the oldest are dropped, with a warning; 0: no bound"
    )


class TracingSettings(Section):
    """Spans of messages and attempts, for OpenTelemetry."""

    enabled: bool = Field(
        False, description="Send traces to an OpenTelemetry collector (an extra: pip install '.[otel]')"
    )
    endpoint: str | None = Field(
        None,
        description="OTLP/HTTP URL of the collector; one without a path gets /v1/traces. Unset: as "
        "OTEL_EXPORTER_OTLP_ENDPOINT says, else http://localhost:4318",
    )
    sample_ratio: float | None = Field(
        None,
        ge=0,
        le=1,
        description="Share of the traces that begin here which are recorded, from 0 to 1; who brings a traceparent has "
        "decided already. Unset: as OTEL_TRACES_SAMPLER says, else all",
    )
    service_name: str | None = Field(
        None,
        min_length=1,
        description="Name of this service in traces. Unset: as OTEL_SERVICE_NAME says, else flowcatalyst",
    )

    @field_validator("endpoint")
    @classmethod
    def _is_a_url(cls, value: str | None) -> str | None:
        if value is None:
            return None
        try:
            target = parse_target(value)
        except TargetRefusedError as error:
            raise ValueError(f"cannot be called: {str(error).replace('target', 'it', 1)}") from None
        return f"{value.rstrip('/')}/v1/traces" if target.path == "/" else value


def in_small_letters(value: Any) -> Any:
    return value.lower() if isinstance(value, str) else value


class LogSettings(Section):
    level: Annotated[Literal["debug", "info", "warning", "error"], BeforeValidator(in_small_letters)] = Field(
        "info",
        description="info logs every attempt, warning only those that failed, debug also polls, where each message "
        "goes and the start of attempts",
    )
    format: Literal["auto", "json", "console"] = Field("auto", description="auto: for people on a terminal, else JSON")
    file: Path | None = Field(None, description="File to append to instead of standard error")


class Settings(BaseSettings):
    """All settings of a FlowCatalyst process."""

    model_config = SettingsConfigDict(env_prefix="FLOWCATALYST_", env_nested_delimiter="__", extra="forbid")
    of_file: ClassVar[Mapping[str, Any]] = {}

    enabled: bool = Field(
        True,
        description="Master switch; also as MESSAGE_ROUTER_ENABLED. false: it polls nothing and fetches no "
        "configuration, but the API answers",
    )
    host: str = Field("127.0.0.1", description="Address of the API")
    port: int = Field(8080, ge=0, le=65535, description="Port of the API; 0 takes a free one")
    api_connections: int = Field(
        512, ge=4, description="Most connections to the API; never more than a quarter of the files it may open"
    )
    data_dir: Path = Field(Path("data"), description="Folder for the embedded queue and the dead letters")
    pools: list[PoolSettings] = Field(
        default_factory=lambda: [
            PoolSettings(code=DEFAULT_POOL, concurrency=20),
            PoolSettings(code="POOL-HIGH", concurrency=10),
            PoolSettings(code="POOL-MEDIUM", concurrency=5),
            PoolSettings(code="POOL-LOW", concurrency=2),
        ],
        description="Processing pools",
    )
    embedded: EmbeddedSettings = Field(default_factory=EmbeddedSettings)
    queues: list[QueueSettings] = Field(
        default_factory=list, description="Queues of brokers, read beside those of embedded.queues"
    )
    sqs: SqsSettings = Field(default_factory=SqsSettings)
    nats: NatsSettings = Field(default_factory=NatsSettings)
    activemq: ActiveMqSettings = Field(default_factory=ActiveMqSettings)
    postgres: PostgresSettings = Field(default_factory=PostgresSettings)
    mediator: MediatorSettings = Field(default_factory=MediatorSettings)
    retry: RetrySettings = Field(default_factory=RetrySettings)
    egress: EgressSettings = Field(default_factory=EgressSettings)
    sync: SyncSettings = Field(default_factory=SyncSettings)
    standby: StandbySettings = Field(default_factory=StandbySettings)
    auth: AuthSettings = Field(default_factory=AuthSettings)
    notifications: NotificationSettings = Field(default_factory=NotificationSettings)
    health: HealthSettings = Field(default_factory=HealthSettings)
    dead_letters: DeadLetterSettings = Field(default_factory=DeadLetterSettings)
    platform: PlatformSettings = Field(default_factory=PlatformSettings)
    tracing: TracingSettings = Field(default_factory=TracingSettings)
    log: LogSettings = Field(default_factory=LogSettings)

    @model_validator(mode="after")
    def _names_are_unique(self) -> Self:
        queues = [*self.embedded.queues, *(queue.name for queue in self.queues)]
        if not queues and self.platform.enabled is False:
            raise ValueError("have no queue: name one in embedded.queues or queues, or leave platform.enabled out")
        for kind, names in (("pool", [pool.code for pool in self.pools]), ("queue", queues)):
            if twice := sorted({name for name in names if names.count(name) > 1}):
                raise ValueError(f"name {kind} {', '.join(twice)} twice")
        uris = [*(f"embedded:{name}" for name in self.embedded.queues), *(queue.uri for queue in self.queues)]
        if len(set(uris)) < len(uris):  # two consumers would take turns at its groups
            raise ValueError("name one queue twice: two entries have the same uri")
        return self

    @model_validator(mode="after")
    def _is_safe_to_reach_from_elsewhere(self) -> Self:
        """Where somebody needs credentials, others send messages too, and a message makes the router call any URL."""
        if problem := problem_with_host(self.host):
            raise ValueError(f"have an {problem}")
        if self.auth.mode == "none":
            if is_loopback(self.host):
                return self
            raise ValueError(
                "have a host that others can reach but no access control yet: set auth.mode to api_key or basic and "
                "auth.admin to what `flowcatalyst hash-key` prints, or host to 127.0.0.1"
            )
        if "allow_private" not in self.egress.model_fields_set:
            self.egress = self.egress.model_copy(update={"allow_private": False})
        return self

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        assert isinstance(env_settings, EnvSettingsSource)
        ours = environment.own_variables(os.environ)
        env_settings.env_vars = {name.lower(): value for name, value in ours.items()}
        return (init_settings, env_settings, InitSettingsSource(settings_cls, dict(cls.of_file)))


@dataclass(slots=True, frozen=True)
class SettingInfo:
    """A setting as the documentation shows it."""

    name: str
    default: str
    description: str


def describe_settings(model: type[BaseModel] = Settings, prefix: str = "") -> Iterator[SettingInfo]:
    """Every setting with its default, in the order of this file. `pools[].code` is a field of each pool."""
    for name, field in model.model_fields.items():
        default = field.get_default(call_default_factory=True)
        if isinstance(default, BaseModel):
            yield from describe_settings(type(default), f"{prefix}{name}.")
        elif name == "pools":
            pools = ", ".join(f"{pool.code} {pool.concurrency}" for pool in default)
            yield SettingInfo(f"{prefix}{name}", pools, field.description or "")
            yield from describe_settings(PoolSettings, f"{prefix}{name}[].")
        elif field.annotation == list[QueueSettings]:
            yield SettingInfo(f"{prefix}{name}", "none", field.description or "")
            yield from describe_settings(QueueSettings, f"{prefix}{name}[].")
        elif field.annotation == RawSettings | None:
            yield SettingInfo(f"{prefix}{name}", "unset", field.description or "")
            yield from describe_settings(RawSettings, f"{prefix}{name}.")
        else:
            shown = "required" if field.is_required() else value_in_words(default)
            yield SettingInfo(f"{prefix}{name}", shown, field.description or "")


def value_in_words(value: object) -> str:
    """A value as people write it into a settings file."""
    match value:
        case None:
            return "unset"
        case bool():
            return "true" if value else "false"
        case list() | set():
            return ", ".join(map(str, value)) or "none"
    return str(value)


def load_settings(file: Path | None = None, **given: Any) -> Settings:
    """Settings from all sources; `given` ones that are None count as not given. Raises `ConfigurationError`."""
    names = [setting.name for setting in describe_settings()]
    variables = environment.own_variables(os.environ)
    others = environment.own_variables(os.environ, environment.OTHER_PREFIX)
    if wrong := environment.complaints([*variables, *others], [name for name in names if "[]" not in name]):
        raise ConfigurationError(f"wrong settings (environment): {'; '.join(wrong)}")
    source = file or (DEFAULT_FILE if DEFAULT_FILE.is_file() else None)
    written = {} if source is None else _read_toml(source)
    settings_of_file = type("Settings", (Settings,), {"of_file": written})
    given = {name: value for name, value in given.items() if value is not None}
    try:
        settings: Settings = settings_of_file(**given)
    except ValidationError as error:
        said = ["environment"] * bool(variables) + [str(source)] * bool(source) + ["command line"] * bool(given)
        from_variables = [name for name in variables if name not in map(environment.variable_of, given)]
        problems = [in_words(one, names, from_variables, written) for one in error.errors(include_url=False)]
        raise ConfigurationError(f"wrong settings ({', '.join(said)}): {'; '.join(problems)}") from None
    except SettingsError as error:  # names the field, not its value
        found = re.search('"([a-z_]+)"', str(error))
        like = environment.variable_of(found[1]) if found else environment.PREFIX
        named = " or ".join(name for name in variables if name.startswith(like))
        raise ConfigurationError(
            f"wrong settings (environment): variable {named} cannot be read; write lists and objects as JSON"
        ) from None
    if "enabled" not in settings.model_fields_set and (given_switch := others.get(environment.ENABLED)):
        try:
            settings.enabled = TypeAdapter(bool).validate_python(given_switch)
        except ValidationError:
            what = f"{environment.ENABLED} should be true or false, not {given_switch[:60]!r}"
            raise ConfigurationError(f"wrong settings (environment): {what}") from None
    if settings.sync.config_url is None:
        settings.sync.config_url = others.get(environment.CONFIG_URL) or None
    if settings.sqs.endpoint_override is None:
        try:
            settings.sqs.endpoint_override = SqsSettings.is_a_server(os.environ.get(SQS_ENDPOINT_VARIABLE) or None)
        except ValueError as error:
            raise ConfigurationError(f"wrong settings (environment): {SQS_ENDPOINT_VARIABLE} {error}") from None
    return settings


def _read_toml(file: Path) -> dict[str, Any]:
    """The settings of a file, or of what reads like one: a pipe, or /dev/null, which says nothing."""
    try:
        return tomllib.loads(file.read_bytes().decode())
    except FileNotFoundError:
        what = "does not exist"
    except IsADirectoryError:
        what = "is a folder"
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{file} is not valid TOML: {error}") from None
    except OSError as error:
        raise ConfigurationError(f"{file} cannot be read: {error.strerror}") from None
    raise ConfigurationError(f"settings file {file} {what}: name a TOML file with --config")
