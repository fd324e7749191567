"""Scenario: the file that `flowcatalyst simulate` reads. What arrives, where it goes, and what goes wrong when.

A time is a number of seconds, or text such as "250ms", "20m" or "1h30m". Times count from the start of the simulation.
"""

import re
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from flowcatalyst.control.pool_settings import PoolSettings, RetrySettings
from flowcatalyst.control.settings import HttpSettings
from flowcatalyst.core.errors import ConfigurationError
from flowcatalyst.core.message import DispatchMode
from flowcatalyst.router.group import FailureScope
from flowcatalyst.router.limits import LEAST, MAX_CONCURRENCY, NO_RATE, PoolLimits

MAX_MESSAGES: Final = 1_000_000  # more would fill the memory of a laptop
MAX_DURATION_S: Final = 30 * 86_400.0

_UNITS_S: Final = {"d": 86_400.0, "h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}
_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|d|h|m|s)\s*")
# It stands in a URL as the host.
_ENDPOINT_NAME: Final = r"^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$"


def parse_duration(value: object) -> object:
    """Seconds from a number or from text such as "1h30m"; anything else is left for pydantic to refuse."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError('should be a number of seconds or text such as "250ms", "20m" or "1h30m"')
    if not isinstance(value, str):
        return value
    parts = _DURATION.findall(value)
    if not parts or _DURATION.sub("", value).strip():
        raise ValueError(f'cannot be {value!r}: use a number of seconds or text such as "250ms", "20m" or "1h30m"')
    return sum(float(number) * _UNITS_S[unit] for number, unit in parts)


Time = Annotated[float, BeforeValidator(parse_duration), Field(ge=0, le=MAX_DURATION_S)]
Span = Annotated[float, BeforeValidator(parse_duration), Field(gt=0, le=MAX_DURATION_S)]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", populate_by_name=True, allow_inf_nan=False)


class QueueSection(_Section):
    """The queue all messages come from."""

    ordered: bool = Field(True, description="True: locks groups and redelivers in order, as SQS FIFO; false: neither")
    visibility_s: Span = Field(60.0, description="How long a received message stays hidden")
    max_batch: int = Field(10, ge=1, le=1000, description="Most messages one receive returns")


class Stream(_Section):
    """Messages of one kind."""

    name: str = Field("", pattern=r"^[\w.-]*$", description="Its groups are called after it; unset: its endpoint")
    pool: str = Field(description="Code of the pool its messages name")
    endpoint: str = Field(description="Name of the endpoint its messages go to")
    groups: int = Field(1, ge=1, le=1_000_000, description="Number of message groups")
    zipf: float | None = Field(
        None, gt=0, le=10, description="Exponent of group popularity: 1 is typical of customers; unset: all alike"
    )
    arrivals: Literal["steady", "poisson", "burst"] = Field("steady", description="How messages are spread over time")
    per_minute: float | None = Field(None, gt=0, description="Messages a minute, for steady and poisson")
    burst_size: int | None = Field(None, ge=1, description="Messages at once, for burst")
    every: Span | None = Field(None, description="Time from one burst to the next; unset: one burst only")
    start: Time = Field(0.0, description="Time of the first message or burst")
    end: Time | None = Field(None, description="No more messages from then on; unset: the end of `duration`")
    dispatch_mode: DispatchMode | None = Field(None, description="IMMEDIATE, NEXT_ON_ERROR or BLOCK_ON_ERROR")
    high_priority_share: float = Field(0.0, ge=0, le=1, description="Share of messages with high priority, 0 to 1")

    @model_validator(mode="after")
    def _has_what_its_arrivals_need(self) -> Self:
        burst = self.arrivals == "burst"
        needed, foreign = ("burst_size", ("per_minute",)) if burst else ("per_minute", ("burst_size", "every"))
        if getattr(self, needed) is None:
            raise ValueError(f'has arrivals = "{self.arrivals}" and needs {needed}')
        for name in foreign:
            if getattr(self, name) is not None:
                raise ValueError(f'has arrivals = "{self.arrivals}", which does not use {name}: remove it')
        if self.end is not None and self.end <= self.start:
            raise ValueError(f"ends at {self.end:g} s, not after its start at {self.start:g} s: correct start or end")
        return self


class Latency(_Section):
    """How long answers take: always the same, evenly between two times, or log-normal by median and 99th percentile."""

    fixed: Time | None = None
    uniform: tuple[Time, Time] | None = None
    median: Span | None = None
    p99: Span | None = None

    @model_validator(mode="after")
    def _is_of_one_kind(self) -> Self:
        given = [name for name in ("fixed", "uniform", "median", "p99") if getattr(self, name) is not None]
        if given not in (["fixed"], ["uniform"], ["median", "p99"]):
            raise ValueError("needs one of: fixed; uniform; median and p99 together")
        if self.uniform is not None and self.uniform[0] > self.uniform[1]:
            raise ValueError("has a uniform range that ends before it begins: put the smaller time first")
        if self.median is not None and self.p99 is not None and self.p99 < self.median:
            raise ValueError("has a p99 below its median: correct one of them")
        return self


class Outage(_Section):
    """A time in which an endpoint fails every request that begins in it."""

    begin: Time = Field(alias="from", description="When it begins")
    end: Time = Field(alias="to", description="When the endpoint is back")
    kind: Literal["refuse", "500", "hang", "429"] = Field("refuse", description="How it fails")
    retry_after: Span | None = Field(None, description="Retry-After of a 429; unset: none is sent")

    @field_validator("kind", mode="before")
    @classmethod
    def _may_be_a_number(cls, value: object) -> object:
        return str(value) if isinstance(value, int) else value

    @model_validator(mode="after")
    def _begins_before_it_ends(self) -> Self:
        if self.end <= self.begin:
            raise ValueError(f"ends at {self.end:g} s, not after it begins at {self.begin:g} s: correct from or to")
        if self.retry_after is not None and self.kind != "429":
            raise ValueError(f'has kind "{self.kind}", which sends no retry_after: remove it')
        return self


class Endpoint(_Section):
    """Something that messages are delivered to."""

    name: str = Field(pattern=_ENDPOINT_NAME, max_length=200, description="Lower-case letters, digits, dots, dashes")
    latency: Latency = Field(default_factory=lambda: Latency(fixed=0.1), description="How long its answers take")
    error_rate: float = Field(0.0, ge=0, le=1, description="Share of requests that fail outside outages, 0 to 1")
    error_status: int = Field(500, ge=201, le=599, description="HTTP status of these")
    outages: list[Outage] = Field(default_factory=list, description="When it fails every request")

    @field_validator("latency", mode="before")
    @classmethod
    def _may_be_one_time(cls, value: object) -> object:
        return {"fixed": value} if isinstance(value, int | float | str) else value


class Restart(_Section):
    """The router ends at a time and is started again after a while."""

    at: Time = Field(description="When it ends")
    kind: Literal["stop", "crash"] = Field("stop", description="stop drains in order, crash ends at once")
    down_for: Time = Field(0.0, description="Time until it is started again")


class PoolChange(_Section):
    """New limits for a pool while the router runs; what is not named stays. "none" takes a limit away."""

    at: Time = Field(description="When it is applied")
    pool: str = Field(description="Code of the pool")
    concurrency: int | None = Field(None, ge=LEAST["concurrency"], le=MAX_CONCURRENCY, description="As in pools")
    rate_limit_per_minute: int | Literal["none"] | None = Field(None, description='As in pools, or "none"')
    failure_scope: FailureScope | None = Field(None, description="As in pools")
    max_delivery_attempts: int | Literal["none"] | None = Field(None, description='As in pools, or "none"')
    capacity: int | Literal["none"] | None = Field(None, description='As in pools, or "none"')

    @field_validator("rate_limit_per_minute")
    @classmethod
    def _is_not_negative(cls, value: object) -> object:
        if isinstance(value, int) and value < NO_RATE:
            raise ValueError('should be at least 0; 0 and "none" mean no limit')
        return value

    @field_validator("max_delivery_attempts", "capacity")
    @classmethod
    def _is_large_enough(cls, value: object, info: ValidationInfo) -> object:
        least = LEAST[str(info.field_name)]
        if isinstance(value, int) and value < least:
            raise ValueError(f'should be at least {least}, or "none" for no limit')
        return value

    @model_validator(mode="after")
    def _changes_something(self) -> Self:
        if not self.model_fields_set - {"at", "pool"}:
            raise ValueError("changes nothing: name a limit, such as rate_limit_per_minute")
        return self

    def applied_to(self, settings: PoolSettings) -> PoolSettings:
        named = self.model_dump(include=self.model_fields_set - {"at", "pool"})
        return settings.model_copy(update={name: None if value == "none" else value for name, value in named.items()})


class Scenario(_Section):
    """Everything that happens in one simulation, but for its seed."""

    duration: Span = Field(description="How long messages arrive")
    drain_limit: Time = Field(4 * 3600.0, description="Longest time to wait after that until everything is done")
    request_timeout: Span = Field(
        HttpSettings().timeout_ms / 1000, description="Limit for a whole attempt, as mediator.http.timeout_ms"
    )
    queue: QueueSection = Field(default_factory=QueueSection)
    pools: list[PoolSettings] = Field(min_length=1, description="As in the settings of the router")
    endpoints: list[Endpoint] = Field(min_length=1)
    traffic: list[Stream] = Field(min_length=1)
    retry: RetrySettings = Field(default_factory=RetrySettings)
    restarts: list[Restart] = Field(default_factory=list)
    changes: list[PoolChange] = Field(default_factory=list)

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        pools = _unique("pools", "code", [pool.code for pool in self.pools])
        endpoints = _unique("endpoints", "name", [endpoint.name for endpoint in self.endpoints])
        self._name_streams()
        _unique("traffic", "name", [stream.name for stream in self.traffic])
        for number, stream in enumerate(self.traffic):
            _known(f"traffic.{number}.pool", stream.pool, pools, "pools")
            _known(f"traffic.{number}.endpoint", stream.endpoint, endpoints, "endpoints")
            if stream.start >= self.duration:
                raise ValueError(
                    f"traffic.{number} starts at {stream.start:g} s, but duration is {self.duration:g} s: "
                    "lengthen duration or start earlier"
                )
        for number, change in enumerate(self.changes):
            _known(f"changes.{number}.pool", change.pool, pools, "pools")
        end = self.duration + self.drain_limit
        sections: dict[str, Sequence[Restart | PoolChange]] = {"restarts": self.restarts, "changes": self.changes}
        for section, acts in sections.items():
            for number, act in enumerate(acts):
                if act.at >= end:
                    raise ValueError(
                        f"{section}.{number} is at {act.at:g} s, but the simulation ends at {end:g} s at the latest: "
                        "move it or lengthen duration"
                    )
        up_at = 0.0
        for restart in sorted(self.restarts, key=lambda one: one.at):
            if restart.at < up_at:
                raise ValueError(
                    f"restarts has one at {restart.at:g} s, when the router is still down until {up_at:g} s: "
                    "move it or shorten down_for"
                )
            up_at = restart.at + restart.down_for
        total = sum(expected_messages(stream, self.duration) for stream in self.traffic)
        if total > MAX_MESSAGES:
            raise ValueError(
                f"traffic adds up to about {total:,.0f} messages, more than {MAX_MESSAGES:,}: "
                "shorten duration or lower the rates"
            )
        return self

    def _name_streams(self) -> None:
        """A stream without a name is called after its endpoint, with a number where that is not enough."""
        taken = {stream.name for stream in self.traffic}
        for stream in self.traffic:
            if not stream.name:
                names = [stream.endpoint, *(f"{stream.endpoint}-{n}" for n in range(2, len(self.traffic) + 2))]
                stream.name = next(name for name in names if name not in taken)
                taken.add(stream.name)

    def limits(self) -> dict[str, PoolLimits]:
        return {pool.code: pool.limits() for pool in self.pools}


def expected_messages(stream: Stream, duration: float) -> float:
    """About how many messages a stream publishes."""
    seconds = min(duration, stream.end if stream.end is not None else duration) - stream.start
    if stream.per_minute is not None:
        return max(0.0, seconds) * stream.per_minute / 60
    bursts = 1 if stream.every is None else 1 + seconds // stream.every
    return bursts * (stream.burst_size or 0)


def _unique(where: str, key: str, names: list[str]) -> list[str]:
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"{where} has {key} {', '.join(twice)} twice: give each its own")
    return names


def _known(where: str, name: str, names: list[str], section: str) -> None:
    if name not in names:
        raise ValueError(f"{where} is {name!r}, which is not in {section} ({', '.join(names)}): add or correct it")


def load_scenario(file: Path) -> Scenario:
    """The scenario in a TOML file, or `ConfigurationError` with one sentence that says what to change."""
    try:
        if not file.is_file():
            what = "is a folder" if file.is_dir() else "does not exist"
            raise ConfigurationError(f"scenario {file} {what}: name a TOML file, such as those in examples/scenarios")
        return Scenario.model_validate(tomllib.loads(file.read_text(encoding="utf-8")))
    except ValidationError as error:
        problems = "; ".join(_problem(one) for one in error.errors(include_url=False))
        raise ConfigurationError(f"scenario {file} cannot be used: {problems}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"scenario {file} is not valid TOML: {error}") from None
    except OSError as error:
        raise ConfigurationError(f"scenario {file} cannot be read: {error.strerror}") from None


def _problem(one: Any) -> str:
    where = ".".join(str(part) for part in one["loc"] if part not in ("int", "float", "literal['none']"))
    said = _WORDS.get(one["type"]) or one["msg"].removeprefix("Value error, ").removeprefix("Input ")
    if one["type"] == "string_pattern_mismatch":
        letters = "letters" if where.startswith("traffic") else "lower-case letters"
        said = f"cannot be {one['input']!r}: use {letters}, digits, dots and dashes"
    return f"{where} {said}".strip()


_WORDS: Final = {
    "extra_forbidden": "is not a key of a scenario: docs/simulate.md lists them all",
    "missing": "is missing: add it",
    "int_parsing": "should be a whole number",
    "int_type": "should be a whole number",
    "int_from_float": "should be a whole number",
    "float_type": "should be a number",
    "list_type": "should be a list: write [[...]] with two brackets",
    "model_type": "should be a table",
    "too_short": "is empty: add at least one",
}
