"""`flowcatalyst groups`: which groups are blocked, and what to do about one."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final

import typer

from flowcatalyst.cli.router_api import AsJson, Key, Router, RouterApi
from flowcatalyst.cli.words import (
    NOTHING,
    answer_in_words,
    blocked_for,
    confirm,
    duration,
    number,
    print_json,
    print_table,
    print_text,
    said,
    why_blocked,
)
from flowcatalyst.core.words import count

PATH: Final = "/monitoring/groups"
SHOWN: Final = 100
HEADER: Final = ("GROUP", "STATE", "FOR", "POOL", "HEAD", "FAILED", "BEHIND", "NEXT", "ANSWER")
NUMBERS: Final = ("FOR", "FAILED", "BEHIND", "NEXT")

Group = Annotated[str, typer.Argument(metavar="GROUP", help="Its name")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before")]


@dataclass(slots=True, frozen=True)
class _Where:
    """What was said before the name of the action."""

    router: str | None
    key: str | None


groups = typer.Typer(rich_markup_mode=None, invoke_without_command=True)


@groups.callback()
def list_groups(
    context: typer.Context,
    blocked: Annotated[bool, typer.Option("--blocked", help="Only those that are blocked or held")] = False,
    pool: Annotated[str | None, typer.Option(metavar="CODE", help="Only those of this pool")] = None,
    queue: Annotated[str | None, typer.Option(metavar="NAME", help="Only those of this queue")] = None,
    endpoint: Annotated[str | None, typer.Option(metavar="URL", help="Only those that wait for this endpoint")] = None,
    prefix: Annotated[str | None, typer.Option(metavar="TEXT", help="Only those whose names begin so")] = None,
    limit: Annotated[int, typer.Option(min=1, metavar="N", help="Most to show")] = SHOWN,
    router: Router = None,
    key: Key = None,
    as_json: AsJson = False,
) -> None:
    """List groups, the longest blocked first, or act on one."""
    context.obj = _Where(router, key)
    if context.invoked_subcommand is not None:
        return
    api = RouterApi(router, key)
    filters = {"pool": pool, "queue": queue, "endpoint": endpoint, "prefix": prefix}
    items, more = api.listed(PATH, limit=limit, query={"blocked": "true" if blocked else None, **filters})
    if as_json:
        print_json(items)
        return
    if not items:
        print(f"No group is {'blocked or held' if blocked else 'known'} there.")
        return
    print_table(HEADER, [_row(item) for item in items], NUMBERS)
    if more:
        print(f"There are more than {limit}: name others with --prefix or --pool, or show more with --limit.")


@groups.command()
def show(context: typer.Context, group: Group, router: Router = None, key: Key = None, as_json: AsJson = False) -> None:
    """Show one group."""
    found = _api(context, router, key).get(PATH, group)
    if as_json:
        print_json(found)
        return
    print_table(HEADER, [_row(found)], NUMBERS)
    print_text(found["waitsFor"])


@groups.command()
def hold(context: typer.Context, group: Group, router: Router = None, key: Key = None) -> None:
    """Start nothing of a group until it is released. What is in flight ends as it ends."""
    said(_api(context, router, key).post(PATH, group, "hold"))


@groups.command()
def release(context: typer.Context, group: Group, router: Router = None, key: Key = None) -> None:
    """Let a group go on that was held."""
    said(_api(context, router, key).post(PATH, group, "release"))


@groups.command()
def retry(context: typer.Context, group: Group, router: Router = None, key: Key = None) -> None:
    """Start the next attempt at the head of a group now."""
    said(_api(context, router, key).post(PATH, group, "retry-head"))


@groups.command()
def skip(context: typer.Context, group: Group, yes: Yes = False, router: Router = None, key: Key = None) -> None:
    """Skip the head of a group into the dead letters.

    Those behind it go on. From there it can be replayed.
    """
    skip_head(_api(context, router, key), group, yes)


def skip_head(api: RouterApi, group: str, yes: bool) -> None:
    """The head that is shown is the one that is skipped: another may be there by then, which nobody meant."""
    found = api.get(PATH, group)
    head = found["head"]
    if head is None:
        confirm(f"Skip the head of group {group} into the dead letters?", yes)
        said(api.post(PATH, group, "skip-head"))
        return
    answer = answer_in_words(found["lastAnswer"])
    last = f", last answer: {answer}" if answer else ""
    behind = f"{found['waitingBehind']:,} {'' if found['waitingBehindExact'] else 'or more '}wait behind it"
    what = f"message {head['id']} of group {group} (failed {count(head['failures'], 'time')}{last}; {behind})"
    confirm(f"Skip {what} into the dead letters?", yes)
    said(api.post("/monitoring/messages", head["brokerId"], "skip"))


def _api(context: typer.Context, router: str | None, key: str | None) -> RouterApi:
    before: _Where = context.obj
    return RouterApi(router or before.router, key or before.key)


def _row(item: Mapping[str, Any]) -> Sequence[str]:
    head = item["head"]
    behind = f"{number(item['waitingBehind'])}{'' if item['waitingBehindExact'] else '+'}"
    return (
        item["group"],
        item["state"],
        blocked_for(item),
        item["pool"],
        NOTHING if head is None else head["id"],
        NOTHING if head is None else number(head["failures"]),
        behind,
        "held" if item["state"] == "HELD" else duration(item["nextAttemptInMs"]),
        why_blocked(item) or NOTHING,
    )
