"""Warnings: counted, acknowledged, forgotten after a while, and never more than there is room for."""

import re
from collections.abc import Callable

import pytest

from flowcatalyst.core.message import Severity
from flowcatalyst.core.warnings import (
    KEEP_S,
    MAX_MESSAGE_CHARS,
    MAX_OF_A_KIND,
    MAX_WARNINGS,
    Warning,  # noqa: A004
    WarningCode,
    WarningFilter,
    WarningLog,
)
from tests.support.clocks import SetClock

WARN, ERROR, CRITICAL = Severity
CODES_OF_002 = """
    CONFIG_SYNC_FAILED ROUTING QUEUE_FULL POOL_LIMIT PIPELINE_MAP_LEAK CONSUMER_RESTART CONSUMER_RESTART_FAILED
    SHUTDOWN_CLEANUP_ERRORS GROUP_THREAD_RESTART GROUP_THREAD_EXIT_WITH_MESSAGES SEMAPHORE_RELEASE_FAILED
    MEDIATOR_NULL_RESULT PROCESSING CONFIGURATION
"""


@pytest.fixture
def clock() -> SetClock:
    return SetClock()


@pytest.fixture
def log(clock: SetClock) -> WarningLog:
    return WarningLog(clock)


def add(log: WarningLog, message: str, severity: Severity = WARN) -> None:
    log.add(WarningCode.PROCESSING, severity, message, "pool")


def fill(log: WarningLog, count: int, severity: Severity = WARN, sources: int = 1) -> None:
    """So many warnings, from so many sources in turn."""
    for number in range(count):
        source = f"pool {number % sources}" if sources > 1 else "pool"
        log.add(WarningCode.PROCESSING, severity, f"{severity} {number}", source)


def messages(log: WarningLog, wanted: WarningFilter | None = None) -> list[str]:
    return [warning.message for warning in (log.recent() if wanted is None else log.recent(wanted))]


def test_every_code_of_002_is_known() -> None:
    assert set(CODES_OF_002.split()) <= set(WarningCode)


def test_a_repeat_counts_up_and_keeps_its_id_and_its_beginning(log: WarningLog, clock: SetClock) -> None:
    began = clock.now
    add(log, "a")
    clock.now += 60
    add(log, "b")
    clock.now += 60
    add(log, "a")
    a, b = log.recent()
    assert (a.message, a.id, a.count, a.first_at, a.last_at) == ("a", 1, 2, began, clock.now)
    assert (b.message, b.id, b.count) == ("b", 2, 1)


@pytest.mark.parametrize(
    "other",
    [
        (WarningCode.ROUTING, WARN, "text", "pool"),
        (WarningCode.PROCESSING, ERROR, "text", "pool"),
        (WarningCode.PROCESSING, WARN, "other text", "pool"),
        (WarningCode.PROCESSING, WARN, "text", "consumer"),
    ],
)
def test_only_the_very_same_warning_is_a_repeat(log: WarningLog, other: tuple[WarningCode, Severity, str, str]) -> None:
    log.add(WarningCode.PROCESSING, WARN, "text", "pool")
    log.add(*other)
    assert [warning.count for warning in log.recent()] == [1, 1]


def test_an_endless_message_is_cut(log: WarningLog) -> None:
    add(log, "x" * 1_000_000)
    add(log, "x" * 999_999)
    [warning] = log.recent()
    assert (len(warning.message), warning.count) == (MAX_MESSAGE_CHARS, 2)


# Forgetting


def test_a_warning_is_forgotten_eight_hours_after_its_last_repeat(log: WarningLog, clock: SetClock) -> None:
    add(log, "a")
    clock.now += KEEP_S - 1
    add(log, "a")
    clock.now += KEEP_S - 1
    assert messages(log) == ["a"]
    clock.now += 1
    assert messages(log) == []
    assert log.open_by_severity() == {WARN: 0, ERROR: 0, CRITICAL: 0}
    assert log.acknowledge(1) is None
    assert not log.delete(1)


def test_a_forgotten_warning_that_comes_again_is_a_new_one(log: WarningLog, clock: SetClock) -> None:
    add(log, "a")
    clock.now += KEEP_S
    add(log, "a")
    [warning] = log.recent()
    assert (warning.id, warning.count, warning.first_at) == (2, 1, clock.now)


def test_acknowledged_warnings_are_forgotten_too_in_whatever_order_they_were_acknowledged(
    log: WarningLog, clock: SetClock
) -> None:
    add(log, "old")
    clock.now += 100
    add(log, "new")
    log.acknowledge(2)
    log.acknowledge(1)
    clock.now += KEEP_S - 100
    assert messages(log) == ["new"]


# Room


MANY = 20  # sources: far fewer than a hundred warnings each


@pytest.mark.parametrize("severity", Severity)
def test_made_up_texts_push_out_only_others_of_their_code_and_source(log: WarningLog, severity: Severity) -> None:
    log.add(WarningCode.STANDBY, WARN, "the lock cannot be reached", "standby")
    log.add(WarningCode.ROUTING, WARN, "another source", "consumer")
    log.add(WarningCode.QUEUE_FULL, WARN, "another code", "router")
    for number in range(10 * MAX_WARNINGS):
        log.add(WarningCode.ROUTING, severity, f"no pool {number}", "router")
    found = messages(log)
    assert found[-3:] == ["another code", "another source", "the lock cannot be reached"]
    assert found[0] == f"no pool {10 * MAX_WARNINGS - 1}"
    assert len(found) == MAX_OF_A_KIND + 3


def test_within_a_code_and_source_the_acknowledged_and_then_the_least_severe_make_room(log: WarningLog) -> None:
    add(log, "acknowledged", CRITICAL)
    log.acknowledge(1)
    add(log, "mild", WARN)
    fill(log, MAX_OF_A_KIND - 2, ERROR)
    for gone in ("acknowledged", "mild", "ERROR 0"):
        assert gone in messages(log)
        add(log, f"instead of {gone}", ERROR)
        assert gone not in messages(log)
    add(log, "not kept", WARN)
    assert "not kept" not in messages(log)
    assert len(log.recent()) == MAX_OF_A_KIND


def test_a_thousand_warnings_are_kept_and_then_the_oldest_goes(log: WarningLog) -> None:
    fill(log, MAX_WARNINGS, sources=MANY)
    assert len(log.recent()) == MAX_WARNINGS
    add(log, "one more")
    found = messages(log)
    assert len(found) == MAX_WARNINGS
    assert found[0] == "one more"
    assert "WARN 0" not in found
    assert "WARN 1" in found


def test_a_repeated_warning_is_not_the_oldest_any_more(log: WarningLog, clock: SetClock) -> None:
    fill(log, MAX_WARNINGS, sources=MANY)
    clock.now += 1
    log.add(WarningCode.PROCESSING, WARN, "WARN 0", "pool 0")
    add(log, "one more")
    found = messages(log)
    assert "WARN 0" in found
    assert "WARN 1" not in found


def test_acknowledged_warnings_make_room_first_however_severe(log: WarningLog, clock: SetClock) -> None:
    add(log, "old", CRITICAL)
    clock.now += 1
    add(log, "older than most", CRITICAL)
    fill(log, MAX_WARNINGS - 2, sources=MANY)
    log.acknowledge(2)
    log.acknowledge(1)  # later, but it is the older one
    add(log, "one more")
    assert "old" not in messages(log)
    assert "older than most" in messages(log)
    add(log, "another")
    assert "older than most" not in messages(log)
    add(log, "a third")
    assert "WARN 0" not in messages(log)


def test_then_the_least_severe_make_room(log: WarningLog) -> None:
    add(log, "critical", CRITICAL)
    add(log, "error", ERROR)
    add(log, "first", WARN)
    add(log, "second", WARN)
    fill(log, MAX_WARNINGS - 4, CRITICAL, sources=MANY)
    for number, gone in enumerate(["first", "second", "error", "critical"]):
        assert gone in messages(log)
        add(log, f"one more {number}", CRITICAL)
        assert gone not in messages(log)
    assert len(log.recent()) == MAX_WARNINGS


def test_a_warning_never_pushes_out_a_more_severe_one(log: WarningLog) -> None:
    told: list[Warning] = []
    log.on_new = told.append
    fill(log, MAX_WARNINGS, ERROR, sources=MANY)
    add(log, "not kept", WARN)
    assert len(log.recent(WarningFilter(severity=ERROR))) == MAX_WARNINGS
    assert messages(log, WarningFilter(severity=WARN)) == []
    assert len(told) == MAX_WARNINGS


def test_expired_warnings_take_no_room(log: WarningLog, clock: SetClock) -> None:
    fill(log, MAX_WARNINGS, ERROR, sources=MANY)
    clock.now += KEEP_S
    add(log, "a")
    assert messages(log) == ["a"]


# Filters


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        (WarningFilter(), "dcba"),
        (WarningFilter(severity=CRITICAL), "d"),
        (WarningFilter(code=WarningCode.ROUTING), "ba"),
        (WarningFilter(source="pool"), "dc"),
        (WarningFilter(acknowledged=True), "b"),
        (WarningFilter(acknowledged=False), "dca"),
        (WarningFilter(text="STRASSE"), "c"),
        (WarningFilter(text="message"), "dcba"),
        (WarningFilter(since=1_000_020.0), "dc"),
        (WarningFilter(since=1_000_020.1), "d"),
        (WarningFilter(code=WarningCode.ROUTING, acknowledged=False), "a"),
        (WarningFilter(code=WarningCode.ROUTING, severity=CRITICAL), ""),
    ],
)
def test_filters_leave_those_that_match_all_of_them_newest_first(
    log: WarningLog, clock: SetClock, wanted: WarningFilter, found: str
) -> None:
    log.add(WarningCode.ROUTING, WARN, "message a", "router")
    clock.now += 10
    log.add(WarningCode.ROUTING, WARN, "message b", "router")
    log.acknowledge(2)
    clock.now += 10
    log.add(WarningCode.PROCESSING, ERROR, "Message c from the Straße", "pool")
    clock.now += 10
    log.add(WarningCode.PROCESSING, CRITICAL, "message d", "pool")
    letters = [re.sub("(?i)message (.).*", r"\1", message) for message in messages(log, wanted)]
    assert "".join(letters) == found


# Acknowledging and deleting


def test_an_acknowledged_warning_stays_listed_and_no_longer_counts_as_open(log: WarningLog) -> None:
    add(log, "a", ERROR)
    add(log, "b", ERROR)
    add(log, "c", CRITICAL)
    warning = log.acknowledge(1)
    assert warning is not None
    assert (warning.message, warning.acknowledged) == ("a", True)
    assert messages(log) == ["c", "b", "a"]
    assert log.open_by_severity() == {WARN: 0, ERROR: 1, CRITICAL: 1}
    assert log.acknowledge(1) is warning  # twice does no harm
    assert log.open_by_severity() == {WARN: 0, ERROR: 1, CRITICAL: 1}


def test_a_repeat_takes_the_acknowledgement_back(log: WarningLog) -> None:
    add(log, "a", ERROR)
    log.acknowledge(1)
    add(log, "a", ERROR)
    [warning] = log.recent()
    assert (warning.id, warning.count, warning.acknowledged) == (1, 2, False)
    assert log.open_by_severity()[ERROR] == 1


def test_all_that_match_are_acknowledged_and_those_that_were_already_are_not_counted(log: WarningLog) -> None:
    fill(log, 3, WARN)
    fill(log, 2, ERROR)
    log.acknowledge(1)
    assert log.acknowledge_all(WarningFilter(severity=WARN)) == 2
    assert log.open_by_severity() == {WARN: 0, ERROR: 2, CRITICAL: 0}
    assert log.acknowledge_all() == 2
    assert log.acknowledge_all() == 0


@pytest.mark.parametrize("prepare", [lambda log: None, lambda log: log.acknowledge(1)], ids=["open", "acknowledged"])
def test_a_deleted_warning_is_gone_and_new_if_it_comes_again(
    log: WarningLog, prepare: Callable[[WarningLog], object]
) -> None:
    add(log, "a")
    prepare(log)
    assert log.delete(1)
    assert log.recent() == []
    assert not log.delete(1)
    add(log, "a")
    [warning] = log.recent()
    assert (warning.id, warning.count, warning.acknowledged) == (2, 1, False)


def test_all_that_match_are_deleted(log: WarningLog) -> None:
    fill(log, 3, WARN)
    fill(log, 2, ERROR)
    log.acknowledge_all(WarningFilter(text="ERROR 1"))
    assert log.delete_all(WarningFilter(severity=ERROR)) == 2
    assert log.delete_all() == 3
    assert log.recent() == []


def test_an_unknown_id_changes_nothing(log: WarningLog) -> None:
    add(log, "a")
    assert log.acknowledge(7) is None
    assert not log.delete(7)
    assert log.open_by_severity()[WARN] == 1


# Telling


def test_the_subscriber_hears_of_new_warnings_not_of_repeats_but_of_those_that_come_back(log: WarningLog) -> None:
    told: list[str] = []
    log.on_new = lambda warning: told.append(f"{warning.message} {warning.count}")
    add(log, "a")
    add(log, "a")
    assert told == ["a 1"]
    log.acknowledge(1)
    add(log, "a")
    add(log, "a")
    assert told == ["a 1", "a 3"]
    log.delete(1)
    add(log, "a")
    assert told == ["a 1", "a 3", "a 1"]


def test_the_subscriber_may_warn_itself(log: WarningLog) -> None:
    def complain(warning: Warning) -> None:
        if warning.severity is not CRITICAL:
            add(log, f"cannot tell of {warning.message}", CRITICAL)

    log.on_new = complain
    fill(log, MAX_OF_A_KIND, ERROR)
    assert len(log.recent()) == MAX_OF_A_KIND
    assert log.open_by_severity() == {WARN: 0, ERROR: 0, CRITICAL: MAX_OF_A_KIND}


def test_the_end_of_a_state_acknowledges_its_warnings_and_is_told_each_time(log: WarningLog) -> None:
    told: list[WarningCode] = []
    log.on_new = lambda warning: told.append(warning.code)
    down, recovered = WarningCode.ENDPOINT_DOWN, WarningCode.ENDPOINT_RECOVERED
    for _ in range(2):
        log.add(down, Severity.ERROR, "one way", "a")
        log.add(down, Severity.ERROR, "the other", "a")
        log.add(down, Severity.ERROR, "elsewhere", "b")
        assert [one.acknowledged for one in log.recent(WarningFilter(code=recovered))] in ([], [True])
        log.end(down, "it is back", "a")
        assert [one.message for one in log.recent(WarningFilter(code=down, acknowledged=False))] == ["elsewhere"]
        [over] = log.recent(WarningFilter(code=recovered))
        assert (over.severity, over.source, over.acknowledged) == (Severity.WARN, "a", True)
    assert told == [down, down, down, recovered, down, down, recovered]
