import pytest

from flowcatalyst.sandbox.order_judge import SHOWN_VIOLATIONS, OrderJudge, SeededId


def deliver(judge: OrderJudge, *positions: int, run: str = "r", group: str = "g") -> None:
    for position in positions:
        judge.arrived("fast", f"{run}.{group}.{position}")
        judge.answered("fast", f"{run}.{group}.{position}", 200, for_good=True)


def test_messages_in_order_are_no_violation() -> None:
    judge = OrderJudge()
    deliver(judge, 1, 2, 3)
    assert (judge.requests, judge.order_violations, judge.duplicates, judge.groups) == (3, 0, 0, 1)


def test_a_message_that_overtakes_its_predecessor_is_a_violation() -> None:
    judge = OrderJudge()
    deliver(judge, 1, 3)
    assert judge.order_violations == 1
    assert list(judge.last_violations) == ["r.g.3 came before position 2 was settled (fast)"]


def test_a_message_that_starts_while_its_predecessor_runs_is_a_violation() -> None:
    judge = OrderJudge()
    judge.arrived("slow", "r.g.1")
    judge.arrived("slow", "r.g.2")
    assert judge.order_violations == 1


def test_a_message_that_starts_after_its_predecessor_failed_is_a_violation() -> None:
    judge = OrderJudge()
    judge.arrived("fail", "r.g.1")
    judge.answered("fail", "r.g.1", 500, for_good=False)
    judge.arrived("fast", "r.g.2")
    assert judge.order_violations == 1


def test_a_retry_of_a_failed_message_is_neither_violation_nor_duplicate() -> None:
    judge = OrderJudge()
    for status in (500, 500):
        judge.arrived("fail", "r.g.1")
        judge.answered("fail", "r.g.1", status, for_good=False)
    deliver(judge, 1, 2)
    assert (judge.requests, judge.order_violations, judge.duplicates) == (4, 0, 0)


def test_a_message_from_before_the_first_one_seen_came_late() -> None:
    judge = OrderJudge()
    deliver(judge, 5, 4)
    assert list(judge.last_violations) == ["r.g.4 came late: position 5 was seen before it (fast)"]


def test_a_settled_message_that_comes_again_is_a_duplicate() -> None:
    judge = OrderJudge()
    deliver(judge, 1, 2, 2, 1)
    assert (judge.order_violations, judge.duplicates) == (0, 2)


def test_runs_and_groups_are_judged_apart() -> None:
    judge = OrderJudge()
    deliver(judge, 1, 2)
    deliver(judge, 7, 8, run="other")
    deliver(judge, 3, group="h")
    assert (judge.order_violations, judge.groups) == (0, 3)


def test_one_group_is_judged_over_all_receivers() -> None:
    judge = OrderJudge()
    judge.arrived("slow", "r.g.1")
    judge.arrived("fast", "r.g.2")
    assert judge.by_receiver["fast"].order_violations == 1
    assert judge.by_receiver["slow"].order_violations == 0


@pytest.mark.parametrize("message_id", ["", "plain", "a.b", "a..1", ".g.1", "r.g.", "r.g.x", "r.g.-1", "r.g.²", "r.1"])
def test_ids_without_a_place_are_counted_but_not_judged(message_id: str) -> None:
    judge = OrderJudge()
    judge.arrived("fast", message_id)
    judge.answered("fast", message_id, 200, for_good=True)
    assert (judge.requests, judge.groups, judge.order_violations) == (1, 0, 0)
    assert judge.by_receiver["fast"].statuses == {200: 1}


def test_a_group_name_may_have_dots() -> None:
    assert SeededId.parse("run.a.b.c.12") == SeededId("run", "a.b.c", 12)
    assert str(SeededId("run", "a.b.c", 12)) == "run.a.b.c.12"


def test_the_group_that_was_quiet_longest_is_forgotten_first() -> None:
    judge = OrderJudge(max_groups=2)
    deliver(judge, 1, group="a")
    deliver(judge, 1, group="b")
    deliver(judge, 2, group="a")
    deliver(judge, 1, group="c")
    assert judge.groups == 2
    deliver(judge, 4, group="a")
    assert judge.order_violations == 1, "group a is still known"
    deliver(judge, 9, group="b")
    assert judge.order_violations == 1, "group b starts anew"


def test_only_the_last_violations_are_kept_in_words() -> None:
    judge = OrderJudge()
    deliver(judge, 1, *range(3, 103, 2))
    assert judge.order_violations == 50
    assert len(judge.last_violations) == SHOWN_VIOLATIONS


def test_reset_forgets_everything() -> None:
    judge = OrderJudge()
    deliver(judge, 1, 3, 3)
    judge.reset()
    assert (judge.requests, judge.order_violations, judge.duplicates, judge.groups) == (0, 0, 0, 0)
    assert not judge.last_violations
