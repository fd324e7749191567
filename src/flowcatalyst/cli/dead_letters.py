"""`flowcatalyst dead-letters` and `flowcatalyst replay`: messages that were never delivered."""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any, Final

import typer

from flowcatalyst.cli.groups import PATH as GROUPS
from flowcatalyst.cli.groups import Yes
from flowcatalyst.cli.queue_access import counted
from flowcatalyst.cli.router_api import PAGE, AsJson, Key, Router, RouterApi
from flowcatalyst.cli.signals import signals_as_errors
from flowcatalyst.cli.words import (
    NOTHING,
    NotDoneError,
    command,
    confirm,
    number,
    print_json,
    print_table,
    print_text,
)
from flowcatalyst.core.clock import SystemClock
from flowcatalyst.core.errors import FlowCatalystError

PATH: Final = "/monitoring/dead-letters"
SHOWN: Final = 100
HEADER: Final = ("NUMBER", "RECORDED", "MESSAGE", "GROUP", "QUEUE", "STATUS", "FAILED", "REASON")
NUMBERS: Final = ("NUMBER", "STATUS", "FAILED")
_AGO: Final = re.compile(r"([0-9]{1,6})([smhd])")
_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}

Number = Annotated[int, typer.Argument(min=1, metavar="NUMBER", help="Of the dead letter")]
OfGroup = Annotated[str | None, typer.Option("--group", metavar="GROUP", help="Only those of this group")]
OfTarget = Annotated[str | None, typer.Option("--target", metavar="URL", help="Only those for this target")]
OfStatus = Annotated[
    int | None, typer.Option("--status", metavar="STATUS", help="Only those with this last HTTP status")
]
OfQueue = Annotated[str | None, typer.Option("--queue", metavar="NAME", help="Only those of this queue")]
Since = Annotated[
    str | None, typer.Option(metavar="TIME", help="Only newer ones: 2h, 30m, 7d, or as 2027-01-31T12:00:00Z")
]
Until = Annotated[str | None, typer.Option(metavar="TIME", help="Only older ones, in the same form")]


@dataclass(slots=True, frozen=True)
class _Chosen:
    """Which router, and which of its dead letters."""

    router: str | None
    key: str | None
    filters: Mapping[str, object]


dead_letters = typer.Typer(rich_markup_mode=None, invoke_without_command=True)


@dead_letters.callback()
def list_dead_letters(
    context: typer.Context,
    group: OfGroup = None,
    target: OfTarget = None,
    status: OfStatus = None,
    queue: OfQueue = None,
    since: Since = None,
    until: Until = None,
    limit: Annotated[int, typer.Option(min=1, metavar="N", help="Most to show")] = SHOWN,
    router: Router = None,
    key: Key = None,
    as_json: AsJson = False,
) -> None:
    """List dead letters, the oldest first, or act on some of them."""
    filters = _filters(group, target, status, queue, since, until)
    context.obj = _Chosen(router, key, filters)
    if context.invoked_subcommand is not None:
        if filters:
            raise typer.BadParameter("what is to be chosen is said behind the name of the action")
        return
    found: list[Any] = []
    more = False
    for letter in _letters(RouterApi(router, key), filters, limit + 1):
        more = len(found) == limit
        if more:
            break
        found.append(letter)
    if as_json:
        print_json(found)
        return
    if not found:
        _say_none(filters)
        return
    print_table(HEADER, [_row(letter) for letter in found], NUMBERS)
    if more:
        print(f"There are more than {limit}: choose with --group, --target, --status or --since, or show more.")


@dead_letters.command()
def show(
    context: typer.Context, letter: Number, router: Router = None, key: Key = None, as_json: AsJson = False
) -> None:
    """Show a dead letter.

    The message, why it ended here, and what its endpoint answered.
    """
    found = _api(context, router, key).get(PATH, str(letter))
    if as_json:
        print_json(found)
        return
    message = found.pop("message") or {}
    headers = message.pop("headers", None) or {}
    rows = {
        **{name: value for name, value in found.items() if name != "bodyTruncated"},
        **{name: value for name, value in message.items() if name != "id"},
        **{f"header {name}": value for name, value in headers.items()},
    }
    told = {name: str(value) for name, value in rows.items() if value not in (None, "", False)}
    width = max(map(len, told)) + 2
    for name, value in told.items():
        print_text(value, " " * width, f"{name}:".ljust(width))


@dead_letters.command()
def delete(
    context: typer.Context,
    letter: Annotated[int | None, typer.Argument(min=1, metavar="NUMBER", help="Of the dead letter")] = None,
    every: Annotated[bool, typer.Option("--all", help="All of them")] = False,
    yes: Yes = False,
    router: Router = None,
    key: Key = None,
) -> None:
    """Remove a dead letter, or all of them, for good."""
    if (letter is None) != every:
        raise typer.BadParameter("name either the NUMBER of a dead letter, or --all")
    api = _api(context, router, key)
    if letter is not None:
        confirm(f"Remove dead letter {letter} for good? Its message is gone then.", yes)
        api.delete(PATH, str(letter))
        print(f"Dead letter {letter} is removed.")
        return
    confirm("Remove all dead letters for good? Their messages are gone then.", yes)
    print(f"{counted(api.delete(PATH)['purged'], 'dead letter')} removed.")


def replay(
    context: typer.Context,
    letter: Annotated[int | None, typer.Argument(min=1, metavar="NUMBER", help="Of the dead letter")] = None,
    group: OfGroup = None,
    target: OfTarget = None,
    status: OfStatus = None,
    queue: OfQueue = None,
    since: Since = None,
    until: Until = None,
    every: Annotated[bool, typer.Option("--all", help="All dead letters")] = False,
    front: Annotated[bool, typer.Option("--front", help="In front of what its group holds now, not behind it")] = False,
    set_target: Annotated[str | None, typer.Option(metavar="URL", help="Send it there instead")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only count them")] = False,
    yes: Yes = False,
    router: Router = None,
    key: Key = None,
) -> None:
    """Put dead letters back into their queues.

    One by its number, or those that all the filters leave: the oldest first, so that a group keeps its order.
    """
    filters = _filters(group, target, status, queue, since, until)
    if [letter is not None, bool(filters), every].count(True) != 1:
        raise typer.BadParameter("name either the NUMBER of a dead letter, filters such as --group, or --all")
    api = _api(context, router, key)
    change: dict[str, Any] = {}
    if front:
        change["position"] = "FRONT"
    if set_target is not None:
        change["target"] = set_target
    where = f"{' in front' if front else ''}{f' to {set_target}' if set_target else ''}"
    if letter is not None:
        if dry_run:
            api.get(PATH, str(letter))
            print(f"Dead letter {letter} would be replayed.")
            return
        api.post(PATH, str(letter), "replay", body=change or None)
        print_text(f"Dead letter {letter} is replayed{where}.")
        return
    matching = _matching(api, filters)
    if not matching:
        _say_none(filters)
        return
    if dry_run:
        print(f"{counted(matching, 'dead letter')} would be replayed.")
        return
    confirm(f"Replay {counted(matching, 'dead letter')}{where}?", yes)
    replayed = _replay_each(api, filters, change) if change else api.post(f"{PATH}/replay", query=filters)["replayed"]
    print_text(f"{counted(replayed, 'dead letter')} replayed{where}.")


dead_letters.command()(replay)


def _matching(api: RouterApi, filters: Mapping[str, object]) -> int:
    found: int = api.post(f"{PATH}/replay", query={"dryRun": "true", **filters})["matching"]
    return found


def _say_none(filters: Mapping[str, object]) -> None:
    print("There are no such dead letters." if filters else "There are no dead letters.")


def _replay_each(api: RouterApi, filters: Mapping[str, object], change: Mapping[str, Any]) -> int:
    """One after the other; in front of their groups the newest first, which ends behind the older ones."""
    in_front = change.get("position") == "FRONT"
    letters = list(_letters(api, filters))
    of_groups: dict[str | None, list[int]] = {}
    for letter in letters:
        of_groups.setdefault(letter["group"] if in_front else None, []).append(letter["number"])
    done = 0
    try:
        with signals_as_errors():
            for group, numbers in of_groups.items():
                with nullcontext() if group is None or len(numbers) == 1 else _held(api, group):
                    for number_of_letter in reversed(numbers) if in_front else numbers:
                        api.post(PATH, str(number_of_letter), "replay", body=change)
                        done += 1
    except FlowCatalystError as error:
        raise NotDoneError(f"{error}; {done:,} of {len(letters):,} dead letters were replayed before that") from None
    return done


@contextmanager
def _held(api: RouterApi, group: str) -> Iterator[None]:
    """Nothing of the group starts within: a newer letter would go out before an older one is there. A group that
    somebody holds already stays held."""
    held = api.get("/monitoring/pauses", query={"kind": "GROUP", "name": group})
    if any((pause["kind"], pause["name"]) == ("GROUP", group) for pause in held):
        yield
        return
    api.post(GROUPS, group, "hold")
    try:
        yield
    except FlowCatalystError as error:
        _release(api, group, f"{error}; ")
        raise NotDoneError(f"{error}; group {group}, held for this, is released") from None
    except BaseException:
        _release(api, group)
        raise
    _release(api, group)


def _release(api: RouterApi, group: str, before: str = "") -> None:
    try:
        api.post(GROUPS, group, "release")
    except FlowCatalystError as error:
        how = command("groups", "release", group)
        raise NotDoneError(f"{before}group {group}, held for this, could not be released ({error}): {how}") from None


def _letters(api: RouterApi, filters: Mapping[str, object], most: int | None = None) -> Iterator[Any]:
    """Page by page. A page may be short, since answers are: only an empty one is the last."""
    after = 0
    while page := api.get(PATH, query={"limit": min(PAGE, most or PAGE), "after": after, **filters}):
        yield from page
        after = page[-1]["number"]


def _api(context: typer.Context, router: str | None, key: str | None) -> RouterApi:
    before: _Chosen = context.obj or _Chosen(None, None, {})
    return RouterApi(router or before.router, key or before.key)


def _filters(
    group: str | None,
    target: str | None,
    status: int | None,
    queue: str | None,
    since: str | None,
    until: str | None,
) -> dict[str, object]:
    given = {"group": group, "target": target, "status": status, "queue": queue}
    times = {"since": _time("--since", since), "until": _time("--until", until)}
    return {name: value for name, value in {**given, **times}.items() if value is not None}


def _time(option: str, text: str | None) -> str | None:
    """As the API takes it. Raises `typer.BadParameter`."""
    if text is None:
        return None
    if ago := _AGO.fullmatch(text):
        at = SystemClock().wall() - int(ago[1]) * _SECONDS[ago[2]]
        return datetime.fromtimestamp(at, UTC).isoformat().replace("+00:00", "Z")
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise typer.BadParameter(f"{option} is no time: give it as 2h, 30m, 7d or 2027-01-31T12:00:00Z") from None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).isoformat().replace("+00:00", "Z")


def _row(letter: Mapping[str, Any]) -> Sequence[str]:
    return (
        str(letter["number"]),
        letter["recordedAt"][:19].replace("T", " "),
        letter["messageId"] or NOTHING,
        letter["group"] or NOTHING,
        letter["queue"],
        NOTHING if letter["status"] is None else str(letter["status"]),
        number(letter["failures"]),
        letter["reason"],
    )
