"""Warnings as a message of Slack: within its limits, whatever a sender or an endpoint put into them."""

import json

from flowcatalyst.control.slack import MOST_CHARS, MOST_NAMED, slack_message
from flowcatalyst.core.message import Severity
from flowcatalyst.core.warnings import Warning, WarningCode  # noqa: A004

MOST_SECTION_CHARS, MOST_BLOCKS = 3000, 50  # what Slack takes


def warnings(count: int, text: str = "a test") -> list[Warning]:
    code, severity = WarningCode.PROCESSING, Severity.ERROR
    return [Warning(number, code, severity, text, "test", first_at=1.0, last_at=1.0) for number in range(count)]


def test_no_batch_and_no_text_is_too_long_for_slack() -> None:
    message = json.loads(slack_message("host", warnings(1000, "<&>" * 10_000)))
    assert len(message["blocks"]) <= MOST_BLOCKS
    assert all(len(block["text"]["text"]) <= MOST_SECTION_CHARS for block in message["blocks"])
    assert message["blocks"][-1]["text"]["text"].startswith(f"and {1000 - MOST_NAMED} more")


def test_a_text_that_is_cut_says_so_and_no_character_is_cut_in_two() -> None:
    [_, block] = json.loads(slack_message("host", warnings(1, "&" * (MOST_CHARS + 1))))["blocks"]
    assert block["text"]["text"] == "*ERROR PROCESSING* " + "&amp;" * (MOST_CHARS - 1) + "…"
