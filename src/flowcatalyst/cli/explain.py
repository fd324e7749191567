"""`flowcatalyst explain`: why a message, a group, a pool, a job or an event is where it is."""

import re
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Any, Final
from urllib.parse import unquote

import typer

from flowcatalyst.cli.router_api import AsJson, Key, Router, RouterApi
from flowcatalyst.cli.words import answer_in_words, command, duration, print_json, print_text
from flowcatalyst.core.words import count

EXIT_UNKNOWN: Final = 1
INDENT: Final = "  "
UNKNOWN: Final = "UNKNOWN"

_LABELS: Final = {
    "inRouterMs": "in the router",
    "failingMs": "failing for",
    "receives": "times received",
    "ahead": "ahead of it",
    "number": "dead letter",
}

# What a person types for what the API would do.
_COMMANDS: Final = (
    (re.compile(r"/monitoring/groups/([^/?]+)/(hold|release)"), ("groups", 2, 1)),
    (re.compile(r"/monitoring/groups/([^/?]+)/(retry|skip)-head"), ("groups", 2, 1)),
    (re.compile(r"/monitoring/messages/([^/?]+)/(retry|skip)"), (2, 1)),
    (re.compile(r"/monitoring/pools/([^/?]+)/(pause|resume)"), (2, "pool", 1)),
    (re.compile(r"/monitoring/endpoints/(pause|resume)\?endpoint=([^&]+)"), (1, "endpoint", 2)),
    (re.compile(r"/monitoring/dead-letters/([0-9]+)/(replay)"), (2, 1)),
)


class Kind(StrEnum):
    """What an id may be of."""

    MESSAGE = "message"
    JOB = "job"
    EVENT = "event"
    GROUP = "group"
    POOL = "pool"


def explain(
    name: Annotated[
        str, typer.Argument(metavar="ID", help="Of a message, a job or an event, or a group, or a pool code")
    ],
    kind: Annotated[
        Kind | None, typer.Option(help="What it is the id of  [default: each of them is looked for, in this order]")
    ] = None,
    router: Router = None,
    key: Key = None,
    as_json: AsJson = False,
) -> None:
    """Say why a message is not there yet, and what to do.

    It ends with 1 if the router knows nothing of such an id.
    """
    api = RouterApi(router, key)
    found = api.get("/monitoring/explain", name, query={"kind": None if kind is None else kind.name})
    if as_json:
        print_json(found)
    else:
        _print(found, [] if router is None else ["--router", api.url])
    if found["kind"] == UNKNOWN or found["state"] == "NEVER_SEEN":
        raise typer.Exit(EXIT_UNKNOWN)


def _print(found: Mapping[str, Any], router: Sequence[str]) -> None:
    print_text(found["summary"])
    for number, sentence in enumerate(found["chain"], 1):
        print_text(sentence, INDENT + "   ", f"{INDENT}{number}. ")
    print()
    place = ", ".join(f"{name} {found[name]}" for name in ("pool", "group", "queue") if found[name])
    facts = {
        "what": "" if found["kind"] == UNKNOWN else f"{found['kind'].lower()} {found['id']}",
        "state": found["state"] if found["cause"] in ("", found["state"]) else f"{found['state']} ({found['cause']})",
        "where": place,
        "head": _head(found),
        "last answer": _last_answer(found),
        "next attempt": "" if found["nextAttemptInMs"] is None else f"in {duration(found['nextAttemptInMs'])}",
        "estimate": _estimate(found),
        "safe to send again": found["sendAgainText"],
        **{_label(name): _fact(name, value) for name, value in found["facts"].items()},
        "looked in": "; ".join(found["looked"]),
    }
    width = max(len(name) for name, value in facts.items() if value) + 2
    for name, value in facts.items():
        if value:
            print_text(value, " " * width, f"{name}:".ljust(width))
    if found["actions"]:
        print("\nWhat you can do:")
    for action in found["actions"]:
        print_text(action["text"] or action["what"], INDENT)
        print(f"{INDENT}{INDENT}{command_of(action, router)}")


def command_of(action: Mapping[str, Any], router: Sequence[str] = ()) -> str:
    """The command that does the same as a request to the API; the request where there is none."""
    for pattern, words in _COMMANDS:
        if match := pattern.fullmatch(action["path"]):
            typed = [word if isinstance(word, str) else unquote(match[word]) for word in words]
            return command(*typed, options=router)
    return f"{action['method']} {action['path']}"


def _head(found: Mapping[str, Any]) -> str:
    head = found["head"]
    if head is None:
        return ""
    failed = f", failed {count(head['failures'], 'time')}" if head["failures"] else ""
    to = f", to {head['endpoint']}" if head["endpoint"] else ""
    return f"message {head['id']} ({head['where'].lower().replace('_', ' ')}{failed}{to})"


def _last_answer(found: Mapping[str, Any]) -> str:
    if (answer := found["lastAnswer"]) is None:
        return ""
    return f"{answer_in_words(answer)} ({duration(answer['agoMs'])} ago)"


def _estimate(found: Mapping[str, Any]) -> str:
    if found["estimateText"] or found["estimateInMs"] is None:
        return str(found["estimateText"] or "")
    return f"in about {duration(found['estimateInMs'])}"


def _label(name: str) -> str:
    return _LABELS.get(name) or re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name.removesuffix("Ms")).lower()


def _fact(name: str, value: object) -> str:
    match value:
        case None:
            return ""
        case bool():
            return "yes" if value else "no"
        case int() | float() if name.endswith("Ms"):
            return duration(value)
        case int():
            return f"{value:,}"
    return str(value)
