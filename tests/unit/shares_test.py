"""How a pool divides its slots: always one for everybody, never all of them for one who may hang."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowcatalyst.router import shares
from flowcatalyst.router.shares import ANSWERS_COUNT_S, OTHERS_COUNT_S, Share, SlotShares, probe_timeout_s

SLOTS = 20


class Table(SlotShares):
    """With the attempts that its pool has in flight."""

    in_flight = 0

    def start(self, share: Share, now: float) -> None:
        share.in_flight += 1
        share.used_at = now
        self.in_flight += 1

    def end(self, share: Share, now: float, started_at: float, timed_out: bool | None) -> None:
        """None: it was cut off."""
        share.in_flight -= 1
        self.in_flight -= 1
        if timed_out:
            share.hung(now, started_at)
        elif timed_out is not None:
            share.answered(now, now - started_at)

    def share_of(self, name: str, slots: int, now: float) -> int:
        return self.limit(self.of(name, now), slots, self.in_flight, now)


def answer(table: Table, name: str, now: float = 0.0, took_s: float = 0.1) -> None:
    """One attempt that is answered at `now`."""
    table.start(share := table.of(name, now), now - took_s)
    table.end(share, now, now - took_s, timed_out=False)


def time_out(table: Table, name: str, now: float = 0.0) -> None:
    table.start(share := table.of(name, now), now)
    table.end(share, now, now, timed_out=True)


def may_start(table: Table, name: str, slots: int, now: float) -> bool:
    share = table.of(name, now)
    return not share.in_flight or share.in_flight < table.limit(share, slots, table.in_flight, now)


def start_all(table: Table, name: str, now: float = 0.0, slots: int = SLOTS) -> int:
    """Start as many attempts as it may have; returns how many it has then."""
    share = table.of(name, now)
    while may_start(table, name, slots, now):
        assert share.in_flight < slots, "more attempts than slots"
        table.start(share, now)
    return share.in_flight


def proven(*names: str, at: float = 0.0) -> Table:
    table = Table()
    for name in names:
        answer(table, name, at)
    return table


class TestUnknown:
    def test_one_who_never_answered_gets_half_of_the_slots(self) -> None:
        assert start_all(Table(), "new") == SLOTS // 2

    def test_each_further_one_gets_half_of_what_the_others_leave_free(self) -> None:
        table = Table()
        assert [start_all(table, name) for name in "abcdef"] == [10, 5, 2, 1, 1, 1]

    def test_one_slot_can_always_be_had(self) -> None:
        table = Table()
        for number in range(SLOTS * 2):
            assert start_all(table, f"e{number}") >= 1

    @pytest.mark.parametrize("slots", [1, 2, 3])
    def test_small_pool_gives_one(self, slots: int) -> None:
        assert start_all(Table(), "new", slots=slots) == 1

    def test_one_that_answered_too_long_ago_counts_as_unknown(self) -> None:
        table = proven("a")
        assert table.share_of("a", SLOTS, ANSWERS_COUNT_S) == SLOTS
        assert table.share_of("a", SLOTS, ANSWERS_COUNT_S + 0.1) == SLOTS // 2

    def test_slow_one_is_trusted_for_twice_its_slowest_answer(self) -> None:
        table = Table()
        answer(table, "slow", now=400.0, took_s=400.0)
        assert table.share_of("slow", SLOTS, 400.0 + 800.0) == SLOTS
        assert table.share_of("slow", SLOTS, 400.0 + 800.1) == SLOTS // 2

    def test_attempt_that_was_cut_off_proves_nothing(self) -> None:
        table = Table()
        table.start(table.of("a", 0.0), 0.0)
        table.end(table.of("a", 0.0), 1.0, 0.0, timed_out=None)
        assert (table.of("a", 0.0).in_flight, table.share_of("a", SLOTS, 1.0)) == (0, SLOTS // 2)


class TestProven:
    def test_alone_it_gets_all_slots(self) -> None:
        assert start_all(proven("a"), "a") == SLOTS

    @pytest.mark.parametrize(("slots", "most"), [(1, 1), (2, 2), (3, 3), (4, 3), (5, 4), (10, 9), (20, 18), (200, 180)])
    def test_beside_others_a_tenth_stays_free_for_them_unless_the_pool_is_very_small(
        self, slots: int, most: int
    ) -> None:
        assert start_all(proven("a", "b"), "a", slots=slots) == most

    def test_others_that_nobody_used_for_an_hour_keep_nothing_free(self) -> None:
        table = proven("old", "a")
        answer(table, "a", now=OTHERS_COUNT_S - 0.2)
        assert table.share_of("a", SLOTS, OTHERS_COUNT_S - 0.2) == SLOTS - 2
        answer(table, "a", now=OTHERS_COUNT_S + 1.0)
        shares = [table.share_of("a", SLOTS, OTHERS_COUNT_S + 1.0) for _ in range(2)]  # they are looked at in turn
        assert shares[-1] == SLOTS
        assert len(table) == 1

    def test_one_with_attempts_in_flight_is_never_forgotten(self) -> None:
        table = Table()
        table.start(table.of("hangs", 0.0), 0.0)
        answer(table, "a", now=OTHERS_COUNT_S * 2)
        assert table.share_of("a", SLOTS, OTHERS_COUNT_S * 2) == SLOTS - 2
        assert table.of("hangs", 0.0).in_flight == 1

    def test_proven_one_that_falls_silent_leaves_slots_to_another(self) -> None:
        table = proven("silent", "other")
        start_all(table, "silent")
        assert may_start(table, "other", SLOTS, 0.0)


class TestSilent:
    def test_timeout_leaves_one_slot_and_a_short_deadline(self) -> None:
        table = proven("a")
        time_out(table, "a")
        assert (start_all(table, "a"), table.of("a", 0.0).timeout_s) == (1, 10.0)

    def test_attempts_that_hung_together_count_as_one_timeout(self) -> None:
        table = Table()
        for _ in range(10):
            table.start(table.of("a", 0.0), 0.0)
        for number in range(10):
            table.end(table.of("a", 0.0), 900.0 + number / 1000, 0.0, timed_out=True)
        assert table.of("a", 0.0).timeout_s == 10.0

    def test_deadline_doubles_with_each_further_timeout(self) -> None:
        table, deadlines = Table(), []
        for _ in range(7):
            time_out(table, "a")
            deadlines.append(table.of("a", 0.0).timeout_s)
        assert deadlines == [10.0, 20.0, 40.0, 80.0, 160.0, 320.0, 640.0]

    def test_answer_gives_back_all_of_it(self) -> None:
        table = Table()
        for _ in range(9):
            time_out(table, "a")
        answer(table, "a")
        assert (table.of("a", 0.0).timeout_s, start_all(table, "a")) == (None, SLOTS)

    def test_answer_between_two_timeouts_begins_anew(self) -> None:
        table = Table()
        time_out(table, "a")
        answer(table, "a")
        time_out(table, "a")
        assert table.of("a", 0.0).timeout_s == 10.0

    def test_attempt_that_was_cut_off_changes_nothing(self) -> None:
        table = Table()
        time_out(table, "a")
        table.start(table.of("a", 0.0), 1.0)
        table.end(table.of("a", 0.0), 2.0, 1.0, timed_out=None)
        assert (table.of("a", 0.0).timeout_s, table.share_of("a", SLOTS, 2.0)) == (10.0, 1)

    def test_deadline_is_twice_the_slowest_answer_where_that_is_longer(self) -> None:
        table = Table()
        answer(table, "slow", now=60.0, took_s=60.0)
        time_out(table, "slow", 60.0)
        assert table.of("slow", 0.0).timeout_s == 120.0

    def test_one_that_is_not_known_has_the_usual_deadline(self) -> None:
        assert Table().of("new", 0.0).timeout_s is None

    def test_deadline_of_a_probe_does_not_grow_without_end(self) -> None:
        assert probe_timeout_s(0.0, 10) == probe_timeout_s(0.0, 1000) == 10_240.0


class TestMemory:
    def test_1000_are_remembered_and_those_used_longest_ago_go_first(self) -> None:
        assert shares.MOST_REMEMBERED == 1000
        table = Table()
        for number in range(3000):
            answer(table, f"/orders/{number}", float(number))
        assert len(table) == 1000
        assert table.find("/orders/1999") is None
        assert table.find("/orders/2000") is not None

    def test_memory_grows_no_further_than_what_is_in_flight(self) -> None:
        table = Table()
        for number in range(1500):
            table.start(table.of(f"/orders/{number}", 0.0), 0.0)
        assert sum(table.of(f"/orders/{number}", 0.0).in_flight for number in range(1500)) == 1500
        for number in range(1500):
            table.end(table.of(f"/orders/{number}", 0.0), 1.0, 0.0, timed_out=False)
        for number in range(3000):
            answer(table, f"/bills/{number}", 2.0)
        assert len(table) <= 1500

    def test_repr_says_who_has_how_many(self) -> None:
        table = Table()
        table.start(table.of("a", 0.0), 0.0)
        table.start(table.of("a", 0.0), 0.0)
        table.start(table.of("b", 0.0), 0.0)
        assert repr(table) == "<SlotShares a=2 b=1>"


EVENTS = ("start", "start", "answer", "timeout", "cut")
histories = st.lists(st.tuples(st.sampled_from("abcd"), st.sampled_from(EVENTS)), max_size=80)


@settings(deadline=None)
@given(histories, st.integers(1, 30))
def test_whatever_happens_attempts_are_counted_and_somebody_new_or_idle_may_start(
    history: list[tuple[str, str]], slots: int
) -> None:
    table, started, now = Table(), dict.fromkeys("abcd", 0), 0.0
    for name, event in history:
        now += 1.0
        if event == "start":
            if sum(started.values()) < slots and may_start(table, name, slots, now):
                table.start(table.of(name, 0.0), now)
                started[name] += 1
        elif started[name]:
            started[name] -= 1
            table.end(table.of(name, 0.0), now, now - 1.0, {"answer": False, "timeout": True, "cut": None}[event])
        assert {name: table.of(name, 0.0).in_flight for name in "abcd"} == started
        idle = [name for name, count in started.items() if not count]
        assert all(may_start(table, name, slots, now) for name in ("new", *idle))
