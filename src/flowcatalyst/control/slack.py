"""Warnings as a message of Slack, for an incoming webhook. Other chats understand its `text` too."""

from collections.abc import Sequence
from typing import Final

import msgspec

from flowcatalyst.core.warnings import Warning  # noqa: A004

MOST_NAMED: Final = 20  # of a batch; of the others it says how many they are
MOST_CHARS: Final = 600  # of a warning's text, before it is escaped: then it is 3,000 at most, which is Slack's limit
_ESCAPED: Final = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;"})


class _Text(msgspec.Struct):
    text: str
    type: str = "mrkdwn"
    verbatim: bool = True  # no names and addresses are made links


class _Section(msgspec.Struct):
    text: _Text
    type: str = "section"


class _Message(msgspec.Struct):
    text: str  # for notifications, and where no blocks are shown
    blocks: list[_Section]


def slack_message(router: str, warnings: Sequence[Warning]) -> bytes:
    """The body of a POST. What an endpoint or a sender had a hand in can address nobody there and links nowhere."""
    count = "a warning" if len(warnings) == 1 else f"{len(warnings)} warnings"
    title = f"FlowCatalyst router {escaped(router)}: {count}"
    named = [_in_words(one) for one in warnings[:MOST_NAMED]]
    if more := len(warnings) - len(named):
        named.append(f"and {more} more: see /monitoring/warnings of the router")
    text = "\n".join([title, *named])
    return msgspec.json.encode(_Message(text, [_Section(_Text(one)) for one in (title, *named)]))


def escaped(text: str) -> str:
    short = text if len(text) <= MOST_CHARS else f"{text[: MOST_CHARS - 1]}…"
    return short.translate(_ESCAPED)


def _in_words(warning: Warning) -> str:
    return f"*{warning.severity} {warning.code}* {escaped(warning.message)}"
