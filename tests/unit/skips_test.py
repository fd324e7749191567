"""Skips and recent deliveries are remembered in the order of their latest mention, and no more than so many."""

import pytest
from structlog.testing import capture_logs

from flowcatalyst.router import skips as skips_module
from flowcatalyst.router.recent import RecentDeliveries
from flowcatalyst.router.skips import Skips
from tests.support.deliveries import delivery


@pytest.fixture
def skips(monkeypatch: pytest.MonkeyPatch) -> Skips:
    """Two at most."""
    monkeypatch.setattr(skips_module, "MOST_REMEMBERED", 2)
    return Skips()


def test_the_oldest_skip_is_forgotten_first_and_who_keeps_it_and_the_log_are_told(skips: Skips) -> None:
    over: list[str] = []
    skips.on_over = over.append
    with capture_logs() as logged:
        for name in ("b1", "b2", "b3"):
            skips.add(name, f"skipped by {name}")
    assert (over, len(skips)) == (["b1"], 2)
    assert [skips.find(name) for name in ("b1", "b2", "b3")] == ["", "skipped by b2", "skipped by b3"]
    [line] = logged
    assert (line["action"], line["broker_id"], line["reason"]) == ("skip_forgotten", "b1", "skipped by b1")
    assert line["log_level"] == "warning"


def test_a_skip_that_is_said_once_more_is_as_good_as_new(skips: Skips) -> None:
    for name, reason in (("b1", "skipped by ann"), ("b2", "skipped by ann"), ("b1", "skipped by bob"), ("b3", "")):
        skips.add(name, reason)
    assert [skips.find(name) for name in ("b1", "b2")] == ["skipped by bob", ""]


def test_a_skip_is_found_by_its_message_until_that_is_forgotten(skips: Skips) -> None:
    over: list[str] = []
    skips.on_over = over.append
    message, other = delivery("m1"), delivery("m2")
    skips.add(message.broker_id, "skipped by ann")
    for one in (message, other):
        skips.restore(one)
    assert (message.skip, other.skip) == ("skipped by ann", "")
    skips.forget(other)
    assert over == []
    skips.forget(message)
    assert (over, len(skips)) == ([message.broker_id], 0)


def test_the_delivery_that_is_longest_ago_is_forgotten_first() -> None:
    recent = RecentDeliveries(most=2)
    for at, name in enumerate(("m1", "m2", "m1", "m3")):
        recent.note(name, float(at))
    assert [recent.find(name) for name in ("m1", "m2", "m3")] == [2.0, None, 3.0]
