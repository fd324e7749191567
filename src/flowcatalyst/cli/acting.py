"""`flowcatalyst skip`, `retry`, `pause` and `resume`: acting on one message, pool or endpoint of a router that runs."""

from enum import StrEnum
from typing import Annotated, Any

import typer

from flowcatalyst.cli.groups import Yes, skip_head
from flowcatalyst.cli.router_api import Key, Router, RouterApi
from flowcatalyst.cli.words import confirm, print_text, said
from flowcatalyst.core.errors import FlowCatalystError
from flowcatalyst.core.words import count

MessageId = Annotated[str, typer.Argument(metavar="ID", help="Of the message: its sender's, or its broker's")]


class Pausable(StrEnum):
    POOL = "pool"
    ENDPOINT = "endpoint"


What = Annotated[Pausable, typer.Argument(metavar="pool|endpoint", help="What it is the name of")]
Name = Annotated[str, typer.Argument(metavar="NAME", help="Code of the pool, or URL of the endpoint")]


def retry(message: MessageId, router: Router = None, key: Key = None) -> None:
    """Start the next attempt at a message now."""
    said(RouterApi(router, key).post("/monitoring/messages", message, "retry"))


def skip(
    message: Annotated[
        str | None, typer.Argument(metavar="ID", help="Of the message: its sender's, or its broker's")
    ] = None,
    group: Annotated[str | None, typer.Option(metavar="GROUP", help="The head of this group instead")] = None,
    yes: Yes = False,
    router: Router = None,
    key: Key = None,
) -> None:
    """Skip one message into the dead letters.

    Those behind it go on. From there it can be replayed.
    """
    if (message is None) == (group is None):
        raise typer.BadParameter("name either the ID of a message, or a --group whose head is meant")
    api = RouterApi(router, key)
    if group is not None:
        skip_head(api, group, yes)
        return
    assert message is not None
    if not yes:
        found = api.get("/monitoring/explain", message, query={"kind": "MESSAGE"})
        if found["state"] in ("NEVER_SEEN", "DELIVERED", "DEAD_LETTER"):
            raise FlowCatalystError(f"there is nothing to skip: {found['summary']}")
        print_text(found["summary"])
    confirm(f"Skip message {message} into the dead letters?", yes)
    said(api.post("/monitoring/messages", message, "skip"))


def pause(what: What, name: Name, router: Router = None, key: Key = None) -> None:
    """Start nothing for a pool or an endpoint until it is resumed. No attempt is spent meanwhile."""
    _set(RouterApi(router, key), "pause", what, name)


def resume(what: What, name: Name, router: Router = None, key: Key = None) -> None:
    """Let a pool or an endpoint go on that was paused."""
    _set(RouterApi(router, key), "resume", what, name)


def _set(api: RouterApi, action: str, what: Pausable, name: str) -> None:
    if what is Pausable.POOL:
        view: Any = api.post("/monitoring/pools", name, action)
        if view is None:
            state = "is paused" if action == "pause" else "is not paused any more"
            print_text(f"Pool {name} {state}; this router has no such pool now.")
            return
        waiting = f"{count(view['queued'], 'message waits', 'messages wait')} in this router"
    else:
        view = api.post(f"/monitoring/endpoints/{action}", query={"endpoint": name})
        waiting = f"{count(view['waiting'], 'group waits', 'groups wait')} for it in this router"
    by = f" by {view['pausedBy']}" if view["pausedBy"] else ""
    state = f"is paused{by}" if view["pausedBy"] is not None else "is not paused any more"
    in_flight = f"{count(view['inFlight'], 'attempt is', 'attempts are')} in flight"
    print_text(f"{what.capitalize()} {name} {state}; {waiting}, {in_flight}.")
