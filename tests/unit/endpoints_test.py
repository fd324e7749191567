"""Whether a pool may start another attempt: circuit breakers and shares together, and who goes when a gate opens."""

from collections.abc import Iterator

import pytest

from flowcatalyst.core.errors import ConnectError, RequestTimeoutError
from flowcatalyst.core.message import Outcome
from flowcatalyst.core.targets import endpoint_of, origin_of
from flowcatalyst.http.interpret import interpret, interpret_failure
from flowcatalyst.router.breaker import Breakers, BreakerState
from flowcatalyst.router.cause import Cause
from flowcatalyst.router.endpoints import GATES_LOOKED_AT, HANGS_S, Endpoints, Gate

SLOTS = 20
HOST = "http://host.test"
A, B, C = f"{HOST}/a", f"{HOST}/b", "http://other.test/c"
ORIGIN_A, ORIGIN_C = origin_of(A), origin_of(C)
OK = interpret(200, None, b"", 0.0)
ERROR_500 = interpret(500, None, b"", 0.0)
ERROR_503 = interpret(503, None, b"", 0.0)
TIMED_OUT = interpret_failure(RequestTimeoutError("900 s"))
REFUSED = interpret_failure(ConnectError("refused"))


def endpoints(breakers: Breakers | None = None) -> Endpoints:
    return Endpoints(Breakers() if breakers is None else breakers, endpoint_of, origin_of)


def attempt(table: Endpoints, target: str, outcome: Outcome | None, now: float = 0.0, took_s: float = 0.0) -> None:
    assert table.admit(target, SLOTS, now) is None
    table.end(target, now, now + took_s, outcome)


def start_all(table: Endpoints, target: str, now: float = 0.0) -> Gate:
    """Start as many attempts as may start; returns what stands in the way of one more."""
    for _ in range(SLOTS):
        gate = table.admit(target, SLOTS, now)
        if gate is not None:
            return gate
    raise AssertionError("nothing stands in the way")


class TestGates:
    def test_endpoint_without_answers_waits_for_itself_although_its_origin_has_no_more_than_it(self) -> None:
        assert start_all(endpoints(), A) == Gate(endpoint_of(A))

    def test_paths_of_one_host_share_what_their_origin_has_and_some_slots_more_for_paths_that_have_none(self) -> None:
        table = endpoints()
        start_all(table, A)
        assert table.admit(B, SLOTS, 0.0) is None
        assert table.admit(B, SLOTS, 0.0) == Gate(ORIGIN_A)
        for number in range(4):
            assert table.admit(f"{HOST}/{number}", SLOTS, 0.0) is None
        assert table.admit(f"{HOST}/last", SLOTS, 0.0) == Gate(ORIGIN_A)
        assert table.admit(C, SLOTS, 0.0) is None

    def test_host_that_timed_out_gets_one_slot_more_for_a_path_that_has_none(self) -> None:
        table = endpoints()
        attempt(table, A, TIMED_OUT)
        assert table.admit(A, SLOTS, 0.0) is None
        assert table.admit(B, SLOTS, 0.0) is None
        assert table.admit(f"{HOST}/third", SLOTS, 0.0) == Gate(ORIGIN_A)

    def test_last_slot_is_kept_for_other_hosts(self) -> None:
        table = endpoints()
        assert table.admit(A, 2, 0.0) is None
        assert table.admit(B, 2, 0.0) == Gate(ORIGIN_A)
        assert table.admit(C, 2, 0.0) is None

    def test_path_that_hangs_does_not_stop_another_of_its_host(self) -> None:
        table = endpoints()
        attempt(table, B, OK)
        assert start_all(table, A) == Gate(endpoint_of(A))
        assert table.admit(B, SLOTS, 0.0) is None

    def test_host_that_hangs_gets_no_share_for_each_of_its_paths(self) -> None:
        table = endpoints()
        started = sum(table.admit(f"{HOST}/orders/{number}", SLOTS, 0.0) is None for number in range(SLOTS))
        assert started == SLOTS // 2 + SLOTS // 4

    def test_open_breaker_is_a_gate_that_says_when_to_come_again(self) -> None:
        table = endpoints()
        for _ in range(10):
            attempt(table, A, REFUSED, now=100.0)
        assert table.admit(A, SLOTS, 101.0) == Gate(endpoint_of(A), probe_at=105.0)
        assert table.admit(B, SLOTS, 101.0) is None

    def test_attempt_that_is_not_admitted_counts_for_nothing(self) -> None:
        breakers = Breakers()
        table = endpoints(breakers)
        start_all(table, A)
        for _ in range(100):
            table.admit(A, SLOTS, 0.0)
        assert breakers.get(endpoint_of(A)).under_way == SLOTS // 2


class TestSilence:
    """All that an endpoint may have in flight hangs, and nobody knows whether it is well again."""

    def test_one_attempt_more_each_time_it_has_been_silent_twice_as_long(self) -> None:
        table = endpoints()
        start_all(table, A)
        asked = [now for now in range(1, 900) if table.admit(A, SLOTS, float(now)) is None]
        assert asked == [10, 20, 40, 80, 160, 320, 640]

    def test_such_an_attempt_hangs_for_a_minute_at_most(self) -> None:
        table = endpoints()
        start_all(table, A)
        assert table.timeout_s(A, 0.0) is None
        assert table.admit(A, SLOTS, 10.0) is None
        assert table.timeout_s(A, 10.0) == 60.0
        assert table.admit(C, SLOTS, 10.0) is None
        assert table.timeout_s(C, 10.0) is None

    def test_one_who_is_slow_is_given_twice_its_slowest_answer(self) -> None:
        table = endpoints()
        attempt(table, C, OK, took_s=30.0)
        table.admit(C, SLOTS, 300.0)
        start_all(table, C, 300.0)
        assert table.admit(C, SLOTS, 359.0) is not None
        assert table.admit(C, SLOTS, 360.0) is None

    def test_an_answer_begins_it_anew(self) -> None:
        table = endpoints()
        attempt(table, C, OK)
        assert table.admit(C, SLOTS, 0.0) is None
        start_all(table, A)
        assert [now for now in range(1, 40) if table.admit(A, SLOTS, float(now)) is None] == [10, 20]
        table.end(A, 39.9, 40.0, ERROR_500)
        start_all(table, A, 40.0)  # all but a tenth: two slots are left
        assert sum(share.in_flight for share, _ in table.shares(SLOTS, 40.0)) == SLOTS - 1
        table.end(C, 44.9, 45.0, OK)
        assert [now for now in range(46, 60) if table.admit(A, SLOTS, float(now)) is None] == [50]

    def test_the_last_slot_stays_for_others(self) -> None:
        table = endpoints()
        start_all(table, A)
        assert table.admit(A, SLOTS, 10.0) is None
        while table.admit(f"http://host{len(list(table.shares(SLOTS, 10.0)))}.test/", SLOTS, 10.0) is None:
            if sum(share.in_flight for share, _ in table.shares(SLOTS, 10.0)) == SLOTS - 1:
                break
        assert table.admit(A, SLOTS, 20.0) is not None
        assert table.admit(C, SLOTS, 20.0) is None

    def test_after_a_timeout_one_probe_at_a_time_goes_beside_those_that_still_hang(self) -> None:
        table = endpoints()
        table.admit(A, SLOTS, 0.0)
        start_all(table, A, 5.0)
        table.end(A, 0.0, 900.0, TIMED_OUT)
        assert table.admit(A, SLOTS, 900.0) is None
        assert table.timeout_s(A, 900.0) == 10.0
        assert table.admit(A, SLOTS, 910.0) is not None
        table.end(A, 900.0, 910.0, TIMED_OUT)
        assert table.admit(A, SLOTS, 910.0) is not None
        assert table.admit(A, SLOTS, 920.5) is None
        assert table.timeout_s(A, 920.5) == 20.0

    def test_the_gate_is_looked_at_again_although_nothing_ends(self) -> None:
        table = endpoints()
        gate = start_all(table, A)
        table.try_later(gate, 0.0)
        assert table.next_probe_at() == 5.0


class TestEnd:
    @pytest.mark.parametrize(
        ("outcome", "trips"), [(TIMED_OUT, True), (REFUSED, True), (ERROR_503, True), (ERROR_500, False), (OK, False)]
    )
    def test_ten_of_these_open_the_breaker_or_do_not(self, outcome: Outcome, trips: bool) -> None:
        breakers = Breakers()
        table = endpoints(breakers)
        for _ in range(10):
            attempt(table, A, outcome)
        assert (breakers.get(endpoint_of(A)).state is BreakerState.OPEN) is trips

    def test_attempt_that_was_cut_off_leaves_breaker_and_shares_as_they_were(self) -> None:
        breakers = Breakers()
        table = endpoints(breakers)
        for _ in range(30):
            attempt(table, A, None, took_s=900.0)
        assert repr(breakers.get(endpoint_of(A))) == "<Breaker CLOSED 0/0 failed>"
        assert (breakers.get(endpoint_of(A)).under_way, table.timeout_s(A, 0.0)) == (0, None)
        assert start_all(table, A, 900.0) == Gate(endpoint_of(A))

    def test_timeout_makes_the_deadline_of_the_next_attempt_short(self) -> None:
        table = endpoints()
        attempt(table, A, TIMED_OUT)
        assert table.timeout_s(A, 0.0) == 10.0
        assert table.admit(A, SLOTS, 0.0) is None
        assert table.admit(A, SLOTS, 0.0) == Gate(endpoint_of(A))

    @pytest.mark.parametrize(("took_s", "hung"), [(HANGS_S, True), (HANGS_S - 0.1, False)])
    def test_connection_that_took_long_to_fail_counts_like_a_timeout(self, took_s: float, hung: bool) -> None:
        table = endpoints()
        attempt(table, A, REFUSED, took_s=took_s)
        assert table.timeout_s(A, 0.0) == (10.0 if hung else None)

    def test_slow_answer_is_an_answer(self) -> None:
        table = endpoints()
        for _ in range(2):
            attempt(table, A, ERROR_500, took_s=800.0)
        assert table.timeout_s(A, 0.0) is None

    def test_probe_of_a_breaker_has_the_shorter_of_both_deadlines(self) -> None:
        breakers = Breakers()
        table = endpoints(breakers)
        for _ in range(10):
            attempt(table, A, REFUSED)
        assert table.admit(A, SLOTS, 5.0) is None
        assert table.timeout_s(A, 0.0) == 10.0
        table.end(A, 5.0, 15.0, TIMED_OUT)
        assert table.admit(A, SLOTS, 20.0) is None
        assert table.timeout_s(A, 0.0) == 10.0  # the share's: its first timeout; the breaker would give 20 s
        table.end(A, 20.0, 30.0, TIMED_OUT)
        assert table.admit(A, SLOTS, 35.0) is None
        assert table.timeout_s(A, 0.0) == 20.0


class TestProbes:
    def test_each_gate_is_due_once_when_its_breaker_lets_probes_through(self) -> None:
        table = endpoints()
        for number in range(50):
            table.try_later(Gate("a", probe_at=105.0), 100.0)
            table.try_later(Gate(f"b{number % 2}", probe_at=103.0 + number % 2), 100.0)
        table.try_later(Gate("full"), 101.0)
        assert table.next_probe_at() == 103.0
        assert list(table.due_probes(102.9)) == []
        assert list(table.due_probes(104.0)) == [("b0", 3), ("b1", 3)]
        assert list(table.due_probes(200.0)) == [("a", 3), ("full", 3)]  # whatever should have opened it did not
        assert table.next_probe_at() is None

    def test_earlier_probe_of_the_same_gate_counts(self) -> None:
        table = endpoints()
        table.try_later(Gate("a", probe_at=110.0), 100.0)
        table.try_later(Gate("a", probe_at=105.0), 100.0)
        assert table.next_probe_at() == 105.0


class TestOpenings:
    def test_end_of_an_attempt_lets_one_go_at_each_gate_that_it_stood_before(self) -> None:
        table = endpoints()
        attempt(table, C, OK)  # somebody else is known, so that a tenth stays free
        attempt(table, A, OK)
        assert start_all(table, A) == Gate(endpoint_of(A))
        table.end(A, 0.0, 1.0, OK)
        assert (ORIGIN_A, 1) in list(table.openings(A, [ORIGIN_A], SLOTS, 1.0))

    def test_first_answer_opens_the_gate_for_all_that_its_share_has_now(self) -> None:
        table = endpoints()
        start_all(table, A)
        table.end(A, 0.0, 1.0, OK)
        assert dict(table.openings(A, [ORIGIN_A], SLOTS, 1.0))[ORIGIN_A] == SLOTS - (SLOTS // 2 - 1)

    def test_full_gate_stays_shut(self) -> None:
        table = endpoints()
        start_all(table, A)
        for number in range(5):
            assert table.admit(f"{HOST}/{number}", SLOTS, 0.0) is None
        attempt(table, C, OK)
        assert dict(table.openings(C, [ORIGIN_A], SLOTS, 0.0)).get(ORIGIN_A, 0) == 0

    def test_gate_of_a_host_lets_one_go_for_a_path_that_may_have_nothing_yet(self) -> None:
        table = endpoints()
        start_all(table, A)
        assert dict(table.openings(A, [ORIGIN_A], SLOTS, 0.0))[ORIGIN_A] == 1

    def test_attempt_at_one_endpoint_lets_those_go_who_wait_at_another_with_slots_left(self) -> None:
        table = endpoints()
        attempt(table, A, OK)
        attempt(table, C, OK)
        assert (ORIGIN_C, SLOTS - 2) in list(table.openings(A, [ORIGIN_C], SLOTS, 0.0))

    def test_open_breaker_keeps_its_gate_shut_until_its_time_and_half_open_lets_three_go(self) -> None:
        table = endpoints()
        for _ in range(10):
            attempt(table, A, REFUSED)
        endpoint = endpoint_of(A)
        assert endpoint not in dict(table.openings(A, [endpoint], SLOTS, 0.0))
        attempt(table, A, OK, now=5.0)
        assert dict(table.openings(A, [endpoint], SLOTS, 5.0))[endpoint] == 3

    def test_only_a_few_of_many_gates_are_looked_at(self) -> None:
        looked_at: list[int] = []

        def gates() -> Iterator[str]:
            for number in range(1000):
                looked_at.append(number)
                yield f"http://h{number}.test"

        table = endpoints()
        attempt(table, A, OK)
        list(table.openings(A, gates(), SLOTS, 0.0))
        assert len(looked_at) <= GATES_LOOKED_AT


class TestExplanation:
    def test_gate_of_an_open_breaker_says_until_when(self) -> None:
        table = endpoints()
        for _ in range(10):
            attempt(table, A, REFUSED, now=100.0)
        gate = table.admit(A, SLOTS, 101.0)
        assert gate is not None
        table.try_later(gate, 101.0)
        assert table.explain(gate.name, SLOTS) == ("its endpoint, whose circuit breaker is open", 105.0, Cause.BREAKER)

    def test_gate_of_a_share_says_how_much_is_used(self) -> None:
        table = endpoints()
        gate = start_all(table, A)
        assert table.explain(gate.name, SLOTS) == (
            f"a slot for {A}, which has its share: 10 of 20",
            None,
            Cause.ENDPOINT_SHARE,
        )
