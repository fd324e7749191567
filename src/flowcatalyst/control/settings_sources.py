"""Who said what a setting is: default, file, environment or command line. Values are shown without secrets."""

import json
import os
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from pydantic import BaseModel, SecretStr

from flowcatalyst.control import environment
from flowcatalyst.control.config_source import masked
from flowcatalyst.control.settings import SQS_ENDPOINT_VARIABLE, Settings

HIDDEN: Final = "***"
# The names that operators know besides our own, which count more.
_OTHER_NAMES: Final = {
    "sync.config_url": environment.CONFIG_URL,
    "enabled": environment.ENABLED,
    "sqs.endpoint_override": SQS_ENDPOINT_VARIABLE,
}


class Origin(StrEnum):
    DEFAULT = "default"
    FILE = "file"
    ENVIRONMENT = "environment"
    COMMAND_LINE = "command line"
    SYNC = "sync"


def origin_of(settings: Settings, *path: str) -> Origin:
    """The kind of source alone, as the API tells it: `origin_of(settings, "embedded", "queues")`."""
    section: Any = settings
    of_file: Any = settings.of_file
    for part in path[:-1]:
        section, of_file = getattr(section, part), of_file.get(part, {})
    if path[-1] not in section.model_fields_set:
        return Origin.DEFAULT
    variables = environment.own_variables(os.environ)
    names = [environment.variable_of(".".join(path[:length])) for length in range(len(path), 0, -1)]
    if names[0] in variables:
        return Origin.ENVIRONMENT
    if path[-1] in of_file:
        return Origin.FILE
    return Origin.ENVIRONMENT if variables.keys() & set(names) else Origin.COMMAND_LINE


@dataclass(slots=True, frozen=True)
class SettingInForce:
    name: str
    value: object  # fit to be shown, and for JSON
    source: str  # default, or where it was set


def settings_in_force(settings: Settings, given: Collection[str], file: Path | None) -> Iterator[SettingInForce]:
    """Every setting but `pools` and `queues`, which are lists of their own. `given` are those of the command line."""
    variables = environment.own_variables(os.environ)
    for name, value, default in _leaves(settings):
        source = _source(name, given, variables, type(settings).of_file, file)
        if source == "default" and value != default:
            source = "default with auth.mode"  # egress.allow_private: the one that depends on another
        yield SettingInForce(name, _shown(name, value), source)


def source_of_list(name: str, settings: Settings, file: Path | None) -> str:
    """Where `pools` or `queues` come from, if from the settings."""
    return _source(name, (), environment.own_variables(os.environ), type(settings).of_file, file)


def _leaves(model: BaseModel, prefix: str = "") -> Iterator[tuple[str, object, object]]:
    for name, field in type(model).model_fields.items():
        value = getattr(model, name)
        if isinstance(value, BaseModel):
            yield from _leaves(value, f"{prefix}{name}.")
        elif name not in ("pools", "queues") or prefix:
            yield f"{prefix}{name}", value, field.get_default(call_default_factory=True)


def _source(
    name: str, given: Collection[str], variables: Collection[str], of_file: Mapping[str, Any], file: Path | None
) -> str:
    if name in given:
        return "command line"
    parts = name.split(".")
    for length in range(len(parts), 0, -1):  # a section may be one variable, as JSON
        variable = environment.variable_of(".".join(parts[:length]))
        if variable in variables and (length == len(parts) or _names(os.environ.get(variable, ""), parts[length:])):
            return f"variable {variable}"
    found: Any = of_file
    for part in parts:
        found = found.get(part) if isinstance(found, Mapping) else None
    if found is not None:
        return f"file {file}"
    other = _OTHER_NAMES.get(name)
    return f"variable {other}" if other and os.environ.get(other) else "default"


def _names(section: str, parts: list[str]) -> bool:
    """Whether a section given as JSON names this setting. The settings were loaded, so it can be read."""
    found: Any = json.loads(section or "{}")
    for part in parts:
        if not isinstance(found, dict) or part not in found:
            return False
        found = found[part]
    return True


def _shown(name: str, value: object) -> object:
    match value:
        case None | bool() | int() | float():
            return value
        case SecretStr():
            return HIDDEN
        case list() | set() | frozenset() | tuple():
            items = sorted(value) if isinstance(value, set | frozenset) else list(value)
            return [HIDDEN for _ in items] if name.startswith("auth.") else [str(item) for item in items]
    if name == "sync.config_url":
        return ", ".join(masked(part.strip()) for part in str(value).split(","))
    if name == "notifications.webhook_url":  # the path of one is often its password
        parts = urlsplit(str(value))
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}/{HIDDEN}"
    return str(value)
