"""`flowcatalyst keys`: API keys of a platform that runs, over its API.

Results go to standard output, a line each; explanations go to standard error, so that a pipe gets results only.
"""

import base64
import json
import os
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime
from http.client import HTTPException
from typing import Annotated, Any, Final
from urllib.parse import quote

import typer

from flowcatalyst.client.connections import Answer, Connections
from flowcatalyst.control import environment
from flowcatalyst.core.clock import SystemClock
from flowcatalyst.core.credentials import Scope
from flowcatalyst.core.errors import ConfigurationError, FlowCatalystError
from flowcatalyst.core.terminal import visible

DEFAULT_URL: Final = "http://127.0.0.1:8080"
PATIENCE_S: Final = 60.0
PATH: Final = "/api/api-keys"
ANONYMOUS: Final = "anonymous"  # whoever is not asked for credentials

Url = Annotated[str, typer.Option(metavar="URL", help="Address of the platform")]
Key = Annotated[
    str | None,
    typer.Option(metavar="KEY", help=f"An API key with the scope admin; better as variable {environment.API_KEY}"),
]
Id = Annotated[str, typer.Argument(metavar="ID", help="Of the key, as `keys list` shows it")]

keys = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Make, list, rotate and revoke API keys.")


@keys.command()
def create(
    name: Annotated[str, typer.Argument(metavar="NAME", help="What it is for")],
    scope: Annotated[list[Scope], typer.Option(help="What it may do; several times for several")],
    expires_at: Annotated[
        datetime | None, typer.Option(metavar="TIME", help="When it ends, in UTC, as 2027-01-31  [default: never]")
    ] = None,
    url: Url = DEFAULT_URL,
    key: Key = None,
) -> None:
    """Make an API key. The first line is the key, the second its id."""
    body: dict[str, Any] = {"name": name, "scopes": scope}
    if expires_at is not None:
        body["expiresAt"] = f"{expires_at.isoformat()}Z"
    made = _ask(url, key, "POST", PATH, body)
    _print_key(made)
    if made["createdBy"] == ANONYMOUS:
        text = (
            "This platform asks nobody for keys (auth.mode is none): whoever reaches it may do everything, without one."
        )
        print(f"{text} Set auth.mode to api_key.", file=sys.stderr)


@keys.command("list")
def list_keys(
    url: Url = DEFAULT_URL,
    key: Key = None,
    as_json: Annotated[bool, typer.Option("--json", help="For programs: all that there is, as JSON")] = False,
) -> None:
    """List all API keys but those of the settings, the oldest first."""
    page = _ask(url, key, "GET", PATH)
    items = page["items"]
    while page["next"] is not None:
        page = _ask(url, key, "GET", f"{PATH}?cursor={quote(page['next'], safe='')}")
        items += page["items"]
    if as_json:
        print(json.dumps(items, indent=2))
        return
    rows = [("ID", "NAME", "SCOPES", "STATE", "LAST USED"), *map(_row, items)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


@keys.command()
def rotate(
    key_id: Id,
    overlap: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="How long the one before is let in too  [default: a day]")
    ] = None,
    url: Url = DEFAULT_URL,
    key: Key = None,
) -> None:
    """Give an API key another value. The first line is the new key, the second its id."""
    body = {} if overlap is None else {"overlapSeconds": overlap}
    _print_key(_ask(url, key, "POST", f"{PATH}/{quote(key_id, safe='')}/rotate", body))


@keys.command()
def revoke(key_id: Id, url: Url = DEFAULT_URL, key: Key = None) -> None:
    """Let an API key in no more."""
    revoked = _ask(url, key, "DELETE", f"{PATH}/{quote(key_id, safe='')}")
    print(f"API key {visible(revoked['name'])} ({revoked['id']}) is revoked.")


def _print_key(made: Mapping[str, Any]) -> None:
    print(made["key"])
    print(made["id"])
    text = f"The first line is the key {visible(made['name'])}, shown this once: it may {', '.join(made['scopes'])}."
    print(f"{text} The second is its id.", file=sys.stderr)
    if made["previousUntil"]:
        print(f"The one before is let in until {made['previousUntil']}.", file=sys.stderr)


def _row(item: Mapping[str, Any]) -> Sequence[str]:
    state = "valid"
    if item["revokedAt"]:
        state = f"revoked {item['revokedAt']}"
    elif item["expiresAt"]:
        state = f"until {item['expiresAt']}"
    return item["id"], visible(item["name"]), ",".join(item["scopes"]), state, item["lastUsedAt"] or "never"


def _ask(url: str, key: str | None, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
    """What the platform answers. Raises `ConfigurationError` if it wants other credentials."""
    headers = {"Content-Type": "application/json", "Accept": "application/json"}
    if key := key or os.environ.get(environment.API_KEY):
        headers["X-API-Key"] = key
    if login := os.environ.get(environment.LOGIN):
        headers["Authorization"] = f"Basic {base64.b64encode(login.encode()).decode()}"
    if not all(value.isascii() and value.isprintable() for value in headers.values()):
        raise ConfigurationError("the API key may have printable ASCII characters only")
    try:
        connections = Connections(url, headers, PATIENCE_S, None, SystemClock())
        answer = connections.ask(method, path, None if body is None else json.dumps(body).encode())
    except ValueError:  # without the reason: it may quote a password
        raise ConfigurationError(f"--url is no address of a platform: give it as {DEFAULT_URL}") from None
    except (OSError, HTTPException) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error) or "it closed"
        raise FlowCatalystError(f"the platform at {url} did not answer: {why}") from None
    connections.close()
    if answer.status >= 300:
        raise _refusal(url, answer)
    return json.loads(answer.body)


def _refusal(url: str, answer: Answer) -> FlowCatalystError:
    try:
        detail = str(json.loads(answer.body)["detail"])
    except (ValueError, TypeError, KeyError):
        detail = "it seems to be no platform"
    said = f"the platform at {url} answered {answer.status}: {detail}"
    if answer.status in (401, 403):
        return ConfigurationError(f"{said}; set {environment.API_KEY} to an API key with the scope admin")
    return FlowCatalystError(said)
