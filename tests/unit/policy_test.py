"""What becomes of a message after an attempt: acked, retried, held, given back to its queue or rejected."""

from dataclasses import replace
from math import inf

import pytest

from flowcatalyst.core.errors import ConnectError, RequestTimeoutError, TargetRefusedError
from flowcatalyst.core.message import (
    ACK,
    Capabilities,
    DispatchMode,
    Nack,
    Outcome,
    Reject,
    Retry,
    Terms,
    Verdict,
)
from flowcatalyst.http.interpret import (
    DEFAULT_DELAY_S,
    interpret,
    interpret_failure,
)
from flowcatalyst.router.limits import PoolLimits
from flowcatalyst.router.policy import (
    DEFAULT_DELAYS,
    LONGEST_DELAY_S,
    Delays,
    by_its_own_terms,
    decide,
    wait_before_next_attempt,
)
from tests.support.deliveries import ORDERED, UNORDERED, delivery, failed

NOW = 1_700_000_000.0  # wall time of every response here
PLAIN = PoolLimits(concurrency=1)


def at_most(attempts: int | None) -> PoolLimits:
    return PoolLimits(concurrency=1, max_delivery_attempts=attempts)


SERVER_ERROR = interpret(500, None, b"", NOW)
NO_CONNECTION = interpret_failure(ConnectError("refused"))
TIMED_OUT = interpret_failure(RequestTimeoutError("900 s"))
RATE_LIMITED = interpret(429, "120", b"", NOW)
NOT_ACKED = interpret(200, None, b'{"ack": false}', NOW)
NOT_ACKED_WITH_DELAY = interpret(200, None, b'{"ack": false, "delaySeconds": 300}', NOW)
retryable = pytest.mark.parametrize(
    "outcome", [SERVER_ERROR, NO_CONNECTION, TIMED_OUT], ids=["500", "connection", "timeout"]
)
patience = pytest.mark.parametrize(
    ("outcome", "delay_s"),
    [(RATE_LIMITED, 120.0), (NOT_ACKED, 30.0), (NOT_ACKED_WITH_DELAY, 300.0)],
    ids=["429", "ack=false", "ack=false with delay"],
)
any_queue = pytest.mark.parametrize("queue", [ORDERED, UNORDERED], ids=["ordered", "unordered"])
not_blocking = pytest.mark.parametrize("mode", [DispatchMode.NEXT_ON_ERROR, DispatchMode.IMMEDIATE])


class TestDecide:
    @any_queue
    def test_success_is_acked(self, queue: Capabilities) -> None:
        assert decide(interpret(200, None, b"", NOW), failed(0), queue, PLAIN) == ACK

    @any_queue
    def test_success_is_acked_even_after_more_failures_than_allowed(self, queue: Capabilities) -> None:
        assert decide(interpret(200, None, b"", NOW), failed(9), queue, at_most(3)) == ACK

    @any_queue
    @pytest.mark.parametrize("status", [400, 401, 404, 418, 499, 501])
    def test_configuration_errors_are_rejected_at_the_first_attempt(self, status: int, queue: Capabilities) -> None:
        assert decide(interpret(status, None, b"", NOW), failed(1), queue, PLAIN) == Reject(f"HTTP {status}")

    @any_queue
    def test_refused_target_is_rejected(self, queue: Capabilities) -> None:
        outcome = interpret_failure(TargetRefusedError("10.0.0.1 is private"))
        assert decide(outcome, failed(1), queue, PLAIN) == Reject("10.0.0.1 is private")

    @retryable
    @any_queue
    @pytest.mark.parametrize("mode", [None, *DispatchMode])
    def test_first_two_failures_are_retried_after_1_and_2_seconds(
        self, outcome: Outcome, queue: Capabilities, mode: DispatchMode | None
    ) -> None:
        assert decide(outcome, failed(1, mode), queue, PLAIN) == Retry(1.0)
        assert decide(outcome, failed(2, mode), queue, PLAIN) == Retry(2.0)

    @retryable
    def test_third_failure_goes_back_to_a_queue_that_keeps_its_order(self, outcome: Outcome) -> None:
        assert decide(outcome, failed(3), ORDERED, PLAIN) == Nack(30.0)

    @retryable
    def test_third_failure_is_held_in_place_where_followers_would_pass_it(self, outcome: Outcome) -> None:
        assert decide(outcome, failed(3), UNORDERED, PLAIN) == Retry(30.0)

    @retryable
    def test_each_further_failure_waits_twice_as_long_up_to_five_minutes(self, outcome: Outcome) -> None:
        waits = [30.0, 60.0, 120.0, 240.0, 300.0, 300.0]
        assert [decide(outcome, failed(n), ORDERED, PLAIN) for n in range(3, 9)] == [Nack(wait_s) for wait_s in waits]
        assert [decide(outcome, failed(n), UNORDERED, PLAIN) for n in range(3, 9)] == [
            Retry(wait_s) for wait_s in waits
        ]

    @retryable
    def test_message_that_comes_back_has_no_quick_retries_left(self, outcome: Outcome) -> None:
        """Whatever the number of tries since its latest receive: what counts is how often it failed."""
        assert decide(outcome, failed(12), ORDERED, PLAIN) == Nack(LONGEST_DELAY_S)

    @patience
    @pytest.mark.parametrize("failures", [0, 1, 2, 3, 50])
    def test_patience_is_never_retried_inside_the_router_and_waits_no_longer_for_failures_before(
        self, outcome: Outcome, delay_s: float, failures: int
    ) -> None:
        assert decide(outcome, failed(failures), ORDERED, PLAIN) == Nack(delay_s)
        assert decide(outcome, failed(failures), UNORDERED, PLAIN) == Retry(delay_s)

    @patience
    @any_queue
    def test_asking_for_patience_never_ends_a_message(
        self, outcome: Outcome, delay_s: float, queue: Capabilities
    ) -> None:
        verdict = decide(outcome, failed(100), queue, at_most(5))
        assert verdict in (Nack(delay_s), Retry(delay_s))

    @not_blocking
    @any_queue
    def test_message_that_blocks_nobody_goes_back_even_to_an_unordered_queue(
        self, mode: DispatchMode, queue: Capabilities
    ) -> None:
        assert decide(SERVER_ERROR, failed(3, mode), queue, PLAIN) == Nack(30.0)
        assert decide(RATE_LIMITED, failed(1, mode), queue, PLAIN) == Nack(120.0)

    def test_explicit_block_on_error_waits_like_an_absent_mode(self) -> None:
        assert decide(SERVER_ERROR, failed(3, DispatchMode.BLOCK_ON_ERROR), UNORDERED, PLAIN) == Retry(30.0)

    @pytest.mark.parametrize(
        ("queue", "setting", "failures", "rejected"),
        [
            (ORDERED, None, 20, False),
            (ORDERED, None, 1_000_000, False),
            (UNORDERED, None, 19, False),
            (UNORDERED, None, 20, True),
            (UNORDERED, None, 21, True),
            (ORDERED, 5, 4, False),
            (ORDERED, 5, 5, True),
            (UNORDERED, 5, 4, False),
            (UNORDERED, 5, 5, True),
            (UNORDERED, 50, 20, False),
            (UNORDERED, 50, 50, True),
            (ORDERED, 1, 1, True),
        ],
    )
    def test_attempts_are_limited_by_the_setting_else_to_20_where_the_queue_is_unordered(
        self, queue: Capabilities, setting: int | None, failures: int, rejected: bool
    ) -> None:
        verdict = decide(SERVER_ERROR, failed(failures), queue, at_most(setting))
        assert isinstance(verdict, Reject) is rejected

    def test_last_allowed_failure_is_not_retried_inside_the_router(self) -> None:
        assert decide(SERVER_ERROR, failed(5), ORDERED, at_most(5)) == Reject(
            "gave up after 5 failed attempts; last: HTTP 500"
        )

    @not_blocking
    def test_attempts_are_limited_for_messages_that_block_nobody_too(self, mode: DispatchMode) -> None:
        assert isinstance(decide(SERVER_ERROR, failed(20, mode), UNORDERED, PLAIN), Reject)


class TestRetryStatuses:
    LENIENT = PoolLimits(concurrency=1, retry_statuses=frozenset({404, 501}))

    @any_queue
    @pytest.mark.parametrize("status", [404, 501])
    def test_status_of_the_setting_is_retried_like_a_500(self, status: int, queue: Capabilities) -> None:
        outcome = interpret(status, None, b"", NOW)
        for failures in (1, 2, 3, 4, 19):
            usual = decide(SERVER_ERROR, failed(failures), queue, PLAIN)
            assert decide(outcome, failed(failures), queue, self.LENIENT) == usual

    @any_queue
    @pytest.mark.parametrize("status", [400, 403, 410])
    def test_other_statuses_are_rejected_as_ever(self, status: int, queue: Capabilities) -> None:
        assert decide(interpret(status, None, b"", NOW), failed(1), queue, self.LENIENT) == Reject(f"HTTP {status}")

    @any_queue
    def test_refused_target_has_no_status_and_is_rejected(self, queue: Capabilities) -> None:
        outcome = interpret_failure(TargetRefusedError("10.0.0.1 is private"))
        assert isinstance(decide(outcome, failed(1), queue, self.LENIENT), Reject)

    def test_retries_of_such_a_status_are_limited_too(self) -> None:
        outcome = interpret(404, None, b"", NOW)
        assert decide(outcome, failed(20), UNORDERED, self.LENIENT) == Reject(
            "gave up after 20 failed attempts; last: HTTP 404"
        )

    @pytest.mark.parametrize("status", [200, 302, 399, 429, 500, 502, 600])
    def test_only_those_are_a_choice_that_would_become_dead_letters(self, status: int) -> None:
        with pytest.raises(
            ValueError, match=f"retry_statuses has {status}: only 400 to 499 except 429, and 501 are allowed"
        ):
            PoolLimits(concurrency=1, retry_statuses=frozenset({404, status}))


class TestConfiguredDelays:
    DELAYS = Delays(backoff_s=(0.5, 4.0, 9.0), nack_delay_s=77.0)

    def test_defaults_are_those_of_002(self) -> None:
        assert Delays() == Delays(backoff_s=(1.0, 2.0), nack_delay_s=30.0, follower_s=10.0, longest_s=300.0)

    def test_every_pause_of_the_backoff_is_one_retry_inside_the_router(self) -> None:
        verdicts = [decide(SERVER_ERROR, failed(failures), ORDERED, PLAIN, self.DELAYS) for failures in (1, 2, 3, 4)]
        assert verdicts == [Retry(0.5), Retry(4.0), Retry(9.0), Nack(77.0)]

    def test_wait_grows_from_the_first_one_after_the_backoff(self) -> None:
        assert [self.DELAYS.after(failures) for failures in range(1, 9)] == [77.0] * 4 + [154.0, 300.0, 300.0, 300.0]

    @pytest.mark.parametrize("failures", [100, 10_000, 10**9])
    def test_wait_of_a_message_that_fails_for_ever_stays_the_longest(self, failures: int) -> None:
        assert Delays().after(failures) == 300.0

    def test_longest_wait_below_the_first_one_means_that_it_does_not_grow(self) -> None:
        delays = Delays(nack_delay_s=30.0, longest_s=5.0)
        assert [delays.after(failures) for failures in (3, 4, 50)] == [30.0] * 3

    def test_no_backoff_means_no_retry_inside_the_router(self) -> None:
        assert decide(SERVER_ERROR, failed(1), ORDERED, PLAIN, Delays(backoff_s=())) == Nack(30.0)

    def test_delay_the_endpoint_asked_for_wins(self) -> None:
        assert decide(RATE_LIMITED, failed(1), ORDERED, PLAIN, self.DELAYS) == Nack(120.0)
        assert decide(NOT_ACKED, failed(1), ORDERED, PLAIN, self.DELAYS) == Nack(77.0)


class TestWaits:
    @pytest.mark.parametrize(
        ("mode", "queue", "verdict"),
        [
            (None, ORDERED, Nack(77.0)),
            (DispatchMode.BLOCK_ON_ERROR, ORDERED, Nack(77.0)),
            (None, UNORDERED, Retry(77.0)),
            (DispatchMode.BLOCK_ON_ERROR, UNORDERED, Retry(77.0)),
            (DispatchMode.NEXT_ON_ERROR, UNORDERED, Nack(77.0)),
            (DispatchMode.IMMEDIATE, UNORDERED, Nack(77.0)),
        ],
    )
    def test_long_wait_is_spent_in_the_queue_unless_followers_would_pass(
        self, mode: DispatchMode | None, queue: Capabilities, verdict: Verdict
    ) -> None:
        assert wait_before_next_attempt(77.0, delivery("m1", mode=mode), queue) == verdict

    def test_default_delay_is_thirty_seconds(self) -> None:
        assert DEFAULT_DELAY_S == 30.0


class TestOwnTerms:
    """What follows from a failure of a dispatch job, which has a schedule of its own: retries after 1 s and 5 s."""

    TERMS = Terms(30.0, 2, (1.0, 5.0))
    ONE_DELAY = Terms(30.0, 100, (7.0,))
    NO_RETRY = Terms(30.0, 0, (1.0,))
    FOREVER = Nack(inf)  # it waits for a person

    @pytest.mark.parametrize(
        ("outcome", "failures", "terms", "verdict"),
        [
            (SERVER_ERROR, 1, TERMS, Nack(1.0)),
            (NO_CONNECTION, 2, TERMS, Nack(5.0)),
            (TIMED_OUT, 2, TERMS, Nack(5.0)),
            (SERVER_ERROR, 3, TERMS, FOREVER),
            (SERVER_ERROR, 1, NO_RETRY, FOREVER),
            (SERVER_ERROR, 100, ONE_DELAY, Nack(7.0)),
            (SERVER_ERROR, 101, ONE_DELAY, FOREVER),
            (interpret(404, None, b"", NOW), 1, TERMS, FOREVER),
            (interpret(501, None, b"", NOW), 1, TERMS, FOREVER),
            (interpret_failure(TargetRefusedError("10.0.0.1 is private")), 1, TERMS, FOREVER),
        ],
        ids=str,
    )
    def test_failed_attempt_follows_the_schedule_until_its_retries_are_used_up(
        self, outcome: Outcome, failures: int, terms: Terms, verdict: Verdict
    ) -> None:
        assert by_its_own_terms(outcome, failures, terms, PLAIN, DEFAULT_DELAYS) == verdict

    @pytest.mark.parametrize("terms", [TERMS, NO_RETRY], ids=["retries", "none"])
    @patience
    @pytest.mark.parametrize("failures", [0, 1, 2, 50])
    def test_patience_lasts_as_long_as_asked_for_whatever_the_schedule_and_is_never_the_end(
        self, outcome: Outcome, delay_s: float, failures: int, terms: Terms
    ) -> None:
        assert by_its_own_terms(outcome, failures, terms, PLAIN, DEFAULT_DELAYS) == Nack(delay_s)

    @pytest.mark.parametrize(("asked_s", "delay_s"), [(None, 5.0), (2.0, 5.0), (60.0, 60.0)])
    def test_failure_waits_for_the_longer_of_what_was_asked_for_and_its_schedule(
        self, asked_s: float | None, delay_s: float
    ) -> None:
        outcome = replace(SERVER_ERROR, delay_s=asked_s)
        assert by_its_own_terms(outcome, 2, self.TERMS, PLAIN, DEFAULT_DELAYS) == Nack(delay_s)
        assert by_its_own_terms(outcome, 3, self.TERMS, PLAIN, DEFAULT_DELAYS) == self.FOREVER

    @pytest.mark.parametrize("status", [404, 501])
    def test_status_that_its_pool_retries_follows_the_schedule(self, status: int) -> None:
        outcome, lenient = interpret(status, None, b"", NOW), TestRetryStatuses.LENIENT
        verdicts = [by_its_own_terms(outcome, n, self.TERMS, lenient, DEFAULT_DELAYS) for n in (1, 2, 3)]
        assert verdicts == [Nack(1.0), Nack(5.0), self.FOREVER]

    @any_queue
    def test_terms_of_its_own_replace_the_schedule_and_the_limits_of_the_pool(self, queue: Capabilities) -> None:
        job = failed(1, DispatchMode.BLOCK_ON_ERROR)
        job.terms = self.TERMS
        assert decide(SERVER_ERROR, job, queue, at_most(1)) == Nack(1.0)
