"""What an answer of an endpoint means, as a table, and however hostile it is; and how long it asks to wait."""

import time
from collections.abc import Iterable
from email.utils import formatdate
from itertools import chain

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowcatalyst.core.errors import ConnectError, ConnectionBrokenError, RequestTimeoutError, TargetRefusedError, plain
from flowcatalyst.core.message import (
    ErrorKind,
    Outcome,
    Result,
    Retry,
    Severity,
)
from flowcatalyst.http.contract import WHOLE, Content
from flowcatalyst.http.interpret import (
    EXCERPT_CHARS,
    MAX_DELAY_S,
    clamp_delay,
    interpret,
    interpret_failure,
    parse_retry_after,
)
from flowcatalyst.router.limits import PoolLimits, Success
from flowcatalyst.router.policy import by_the_rule_of_a_pool, decide
from tests.support.deliveries import ORDERED, failed

NOW = 1_700_000_000.0  # wall time of every response here
IN_90_S = formatdate(NOW + 90, usegmt=True)
AN_HOUR_AGO = formatdate(NOW - 3600, usegmt=True)
Meaning = tuple[Result, ErrorKind, bool, float | None, Severity | None]  # with retryable, delay_s, warning
SUCCESS: Meaning = (Result.SUCCESS, ErrorKind.NONE, False, None, None)
CONFIG: Meaning = (Result.ERROR_CONFIG, ErrorKind.HTTP_ERROR, False, None, Severity.ERROR)
CRITICAL: Meaning = (Result.ERROR_CONFIG, ErrorKind.HTTP_ERROR, False, None, Severity.CRITICAL)
PROCESS: Meaning = (Result.ERROR_PROCESS, ErrorKind.HTTP_ERROR, True, None, None)


def not_acked(delay_s: float | None) -> Meaning:
    return Result.ERROR_PROCESS, ErrorKind.NOT_ACKED, False, delay_s, None


def rate_limited(delay_s: float) -> Meaning:
    return Result.ERROR_PROCESS, ErrorKind.RATE_LIMITED, False, delay_s, None


def meaning(outcome: Outcome) -> Meaning:
    return outcome.result, outcome.error, outcome.retryable, outcome.delay_s, outcome.warning


OTHER_4XX = [status for status in range(401, 500) if status not in (404, 429)]
OTHER_5XX = [status for status in range(500, 600) if status != 501]
SUCCESSFUL = range(200, 300)
UNEXPECTED = [*range(200), *range(300, 400), *range(600, 1000)]
# The response table: condition, statuses, Retry-After, body, meaning.
RESPONSE_TABLE: list[tuple[str, Iterable[int], str | None, bytes, Meaning]] = [
    ("ack=true", [200], None, b'{"ack": true}', SUCCESS),
    ("ack=true with delay", [200], None, b'{"ack": true, "delaySeconds": 60}', SUCCESS),
    ("ack=false with delay", [200], None, b'{"ack": false, "delaySeconds": 60}', not_acked(60)),
    ("ack=false with delay 0", [200], None, b'{"ack": false, "delaySeconds": 0}', not_acked(None)),
    ("ack=false with delay null", [200], None, b'{"ack": false, "delaySeconds": null}', not_acked(None)),
    ("ack=false without delay", [200], None, b'{"ack": false}', not_acked(None)),
    ("ack=false with a message", [200], None, b'{"ack": false, "message": "busy"}', not_acked(None)),
    ("not JSON", [200], None, b"<html>OK</html>", SUCCESS),
    ("not UTF-8", [200], None, b"\xff\xfe\x00", SUCCESS),
    ("JSON without ack", [200], None, b'{"status": "done"}', SUCCESS),
    ("empty body", [200], None, b"", SUCCESS),
    ("any 2xx", SUCCESSFUL, None, b"", SUCCESS),
    ("any 2xx that acks", SUCCESSFUL, None, b'{"ack":true}', SUCCESS),
    ("any 2xx that refuses", SUCCESSFUL, None, b'{"ack": false, "delaySeconds": 60}', not_acked(60)),
    ("bad request", [400], None, b"", CONFIG),
    ("client error", OTHER_4XX, None, b"", CONFIG),
    ("client error with Retry-After", [403], "7", b"", CONFIG),
    ("not found", [404], None, b"", CONFIG),
    ("429 with seconds", [429], "7", b"", rate_limited(7)),
    ("429 with padded seconds", [429], " 7 ", b"", rate_limited(7)),
    ("429 with zero", [429], "0", b"", rate_limited(30)),
    ("429 with too many seconds", [429], "86400", b"", rate_limited(43_200)),
    ("429 with absurdly many seconds", [429], "9" * 400, b"", rate_limited(43_200)),
    ("429 with a future date", [429], IN_90_S, b"", rate_limited(90)),
    ("429 with a past date", [429], AN_HOUR_AGO, b"", rate_limited(1)),
    ("429 with a date in 9999", [429], "Fri, 31 Dec 9999 23:59:59 GMT", b"", rate_limited(43_200)),
    ("429 with garbage", [429], "soon", b"", rate_limited(30)),
    ("429 with an impossible date", [429], "Fri, 99 Foo 2030 99:99:99 GMT", b"", rate_limited(30)),
    ("429 with a negative number", [429], "-5", b"", rate_limited(30)),
    ("429 with a fraction", [429], "1.5", b"", rate_limited(30)),
    ("429 with digits that are not ASCII", [429], "²", b"", rate_limited(30)),
    ("429 with an empty header", [429], "", b"", rate_limited(30)),
    ("429 without header", [429], None, b"", rate_limited(30)),
    ("429 with an ack body", [429], None, b'{"ack": true}', rate_limited(30)),
    ("not implemented", [501], None, b"", CRITICAL),
    ("server error", OTHER_5XX, None, b"", PROCESS),
    ("server error with Retry-After", [503], "7", b"", PROCESS),
    ("server error with an ack body", [500], None, b'{"ack": true}', PROCESS),
    ("unexpected", UNEXPECTED, None, b"", PROCESS),
    ("unexpected with an ack body", [302], None, b'{"ack": true}', PROCESS),
]
DEEP = b"[" * 20_000
# Ways to refuse that were once taken for success: the body, what is said about it, what it means.
REFUSALS: list[tuple[str, bytes, Content, Meaning]] = [
    ("a string", b'{"ack": "no"}', WHOLE, not_acked(None)),
    ("even the string true", b'{"ack": "true"}', WHOLE, not_acked(None)),
    ("null", b'{"ack": null}', WHOLE, not_acked(None)),
    ("zero", b'{"ack": 0, "delaySeconds": "7"}', WHOLE, not_acked(7)),
    ("one", b'{"ack": 1}', WHOLE, not_acked(None)),
    ("an object", b'{"ack": {}}', WHOLE, not_acked(None)),
    ("a delay that is NaN", b'{"ack": false, "delaySeconds": NaN}', WHOLE, not_acked(30)),
    ("a delay that is Infinity", b'{"ack": false, "delaySeconds": Infinity}', WHOLE, not_acked(30)),
    ("a delay that is no number", b'{"ack": false, "delaySeconds": "soon"}', WHOLE, not_acked(None)),
    ("a delay that is a list", b'{"ack": false, "delaySeconds": [5]}', WHOLE, not_acked(None)),
    ("a delay beyond all numbers", b'{"ack": false, "delaySeconds": 1%s}' % (b"0" * 400), WHOLE, not_acked(None)),
    ("a byte order mark", b'\xef\xbb\xbf{"ack": false, "delaySeconds": 9}', WHOLE, not_acked(9)),
    ("UTF-16 with a mark", '{"ack": false, "delaySeconds": 9}'.encode("utf-16"), WHOLE, not_acked(9)),
    ("UTF-16 big-endian", '{"ack": false}'.encode("utf-16-be"), Content("x/json; charset=utf-16"), not_acked(None)),
    ("UTF-16 undeclared", '{"ack": false}'.encode("utf-16-le"), WHOLE, not_acked(None)),
    ("latin-1", b'{"ack": false, "why": "\xe9"}', Content('x/json; charset="iso-8859-1"'), not_acked(None)),
    ("an ack twice", b'{"ack": false, "ack": true}', WHOLE, not_acked(None)),
    ("an ack twice in disguise", b'{"\\u0061ck": false, "ack": true}', WHOLE, not_acked(None)),
    ("trailing bytes", b'{"ack": false} \0', WHOLE, PROCESS),
    ("two objects", b'{"ack": true}\n{"ack": false}', WHOLE, PROCESS),
    ("20,000 levels behind it", b'{"ack": false, "x": ' + DEEP, WHOLE, PROCESS),
    ("20,000 levels before it", b'{"x": ' + DEEP + b"]" * 20_000 + b', "ack": false}', WHOLE, PROCESS),
    ("latin-1 called UTF-8", b'{"ack": false, "why": "\xe9"}', Content("x/json; charset=utf-8"), not_acked(None)),
    ("broken off", b'{"ack": fal', WHOLE, PROCESS),
    ("broken off, true so far", b'{"ack": tru', WHOLE, PROCESS),
    ("a guard against scripts before it", b')]}\'\n{"ack": false}', WHOLE, PROCESS),
    ("too long", b'{"x": "' + b"x" * 65_529, Content(truncated=True), PROCESS),
    ("too long, whatever it is", b"<html>", Content("text/html", truncated=True), PROCESS),
    ("compressed", b"\x1f\x8b\x08", Content("application/json", "gzip"), PROCESS),
    ("compressed, perhaps", b'{"ack": true, "x": 1}', Content("application/json", "br"), PROCESS),
    ("an unknown charset", b"\xc0\x7f\x81", Content("x/json; charset=ebcdic-cp-us"), PROCESS),
    ("a codec that is no charset", b"\x81", Content("x/json; charset=punycode"), PROCESS),
    ("cut by the end of its connection", b'{"message": "not now", "a', Content(framed=False), PROCESS),
    ("cut before its first byte", b"", Content("application/json", framed=False), PROCESS),
]
# Bodies that hold no refusal: successes.
SUCCESSES: list[tuple[str, bytes, Content]] = [
    ("nothing, from an old server", b"", Content(framed=False)),
    ("a word, from an old server", b"OK", Content("text/plain", framed=False)),
    ("JSON, from an old server", b'{"ack": true, "x": 1}', Content("application/json", framed=False)),
    ("nothing, called compressed", b"", Content("application/json", "gzip")),
    ("a true ack after a mark", b'\xef\xbb\xbf{"ack": true}', WHOLE),
    ("a true ack in UTF-16", '{"ack": true}'.encode("utf-16"), WHOLE),
    ("a true ack with trailing bytes", b'{"ack": true}\0', WHOLE),
    ("an ack deeper down", b'{"ack": true, "data": {"ack": false}}', WHOLE),
    ("a list", b'[{"ack": false}]', Content("application/json")),
    ("a number", b"17", Content("application/json")),
    ("JSON in a charset nobody knows, which can be read", b'{"ack": true, "x": 1}', Content("x/json; charset=moon")),
    ("JSON without ack in 20,000 levels", b'{"x": ' + DEEP, WHOLE),
]


class TestResponses:
    @pytest.mark.parametrize(("body", "content", "expected"), [pytest.param(*row, id=name) for name, *row in REFUSALS])
    def test_what_could_be_a_refusal_is_no_success(self, body: bytes, content: Content, expected: Meaning) -> None:
        outcome = interpret(200, None, body, NOW, content)
        assert meaning(outcome) == expected
        assert outcome.detail.startswith("HTTP 200 ")

    @pytest.mark.parametrize(("body", "content"), [pytest.param(*row, id=name) for name, *row in SUCCESSES])
    def test_what_cannot_be_a_refusal_stays_a_success(self, body: bytes, content: Content) -> None:
        outcome = interpret(200, None, body, NOW, content)
        assert meaning(outcome) == SUCCESS
        assert outcome.note == ""

    @pytest.mark.parametrize("declared", ["application/json", "application/problem+json; charset=utf-8"])
    def test_success_that_is_no_json_although_it_says_so_carries_a_note(self, declared: str) -> None:
        outcome = interpret(200, None, b"fine", NOW, Content(declared))
        assert meaning(outcome) == SUCCESS
        assert "no" in outcome.note
        assert interpret(200, None, b"fine", NOW, Content("text/plain; json=no")).note == ""

    @pytest.mark.parametrize(
        ("status", "why"), [(302, "redirects are not followed"), (101, "not expected"), (600, "not expected")]
    )
    def test_what_is_retried_without_being_an_error_carries_a_note(self, status: int, why: str) -> None:
        assert why in interpret(status, None, b"", NOW).note
        assert f"HTTP {status} is retried" in interpret(status, None, b"", NOW).note
        assert "coded (gzip)" in interpret(204, None, b"x", NOW, Content(coding="gzip")).note

    @pytest.mark.parametrize("status", [400, 404, 429, 500, 501, 503, 599])
    def test_an_error_says_enough_by_itself(self, status: int) -> None:
        assert interpret(status, None, b"", NOW).note == ""

    @pytest.mark.parametrize("status", range(200, 300))
    def test_a_pool_may_take_only_200_for_a_success(self, status: int) -> None:
        delivered = interpret(status, None, b"", NOW)
        strict = PoolLimits(concurrency=1, success=Success.ONLY_200)
        outcome = by_the_rule_of_a_pool(delivered, strict)
        assert by_the_rule_of_a_pool(delivered, PoolLimits(concurrency=1)) is delivered
        assert meaning(outcome) == PROCESS
        assert outcome.status == status
        assert 'success = "200"' in outcome.note
        assert isinstance(decide(outcome, failed(1), ORDERED, strict), Retry)

    @pytest.mark.parametrize("status", [302, 400, 404, 429, 500, 501])
    def test_a_pool_that_takes_only_200_changes_nothing_about_failures(self, status: int) -> None:
        outcome = interpret(status, None, b"", NOW)
        assert by_the_rule_of_a_pool(outcome, PoolLimits(concurrency=1, success=Success.ONLY_200)) is outcome

    @given(st.binary(max_size=200), st.text(max_size=40), st.booleans())
    def test_no_body_and_no_declaration_raises(self, body: bytes, declared: str, framed: bool) -> None:
        assert interpret(200, None, body, NOW, Content(declared, framed=framed)).status == 200

    @pytest.mark.parametrize(
        ("statuses", "retry_after", "body", "expected"),
        [pytest.param(*row, id=condition) for condition, *row in RESPONSE_TABLE],
    )
    def test_response_means_what_the_table_of_002_says(
        self, statuses: Iterable[int], retry_after: str | None, body: bytes, expected: Meaning
    ) -> None:
        for status in statuses:
            outcome = interpret(status, retry_after, body, NOW)
            assert meaning(outcome) == expected, status
            assert outcome.status == status

    def test_table_of_002_covers_every_status(self) -> None:
        covered = set(chain.from_iterable(statuses for _, statuses, *_ in RESPONSE_TABLE))
        assert covered == set(range(1000))

    def test_only_answers_of_a_gateway_that_reaches_nobody_trip_the_breaker(self) -> None:
        assert [status for status in range(1000) if interpret(status, None, b"", NOW).trips_breaker] == [502, 503, 504]

    @pytest.mark.parametrize(
        ("error", "result", "kind", "retryable", "warning", "trips_breaker"),
        [
            (ConnectError("refused"), Result.ERROR_CONNECTION, ErrorKind.NETWORK_ERROR, True, None, True),
            (ConnectionBrokenError("reset"), Result.ERROR_CONNECTION, ErrorKind.NETWORK_ERROR, True, None, True),
            (RequestTimeoutError("900 s"), Result.ERROR_PROCESS, ErrorKind.TIMEOUT, True, None, True),
            (TargetRefusedError("private"), Result.ERROR_CONFIG, ErrorKind.NETWORK_ERROR, False, Severity.ERROR, False),
            (OSError("any other"), Result.ERROR_PROCESS, ErrorKind.NETWORK_ERROR, True, None, False),
            (TimeoutError("any other"), Result.ERROR_PROCESS, ErrorKind.NETWORK_ERROR, True, None, False),
            (KeyError("any other"), Result.ERROR_PROCESS, ErrorKind.NETWORK_ERROR, True, None, False),
        ],
        ids=lambda value: type(value).__name__ if isinstance(value, Exception) else None,
    )
    def test_attempt_without_a_response_means_what_the_table_of_002_says(
        self,
        error: Exception,
        result: Result,
        kind: ErrorKind,
        retryable: bool,
        warning: Severity | None,
        trips_breaker: bool,
    ) -> None:
        outcome = interpret_failure(error)
        assert meaning(outcome) == (result, kind, retryable, None, warning)
        assert outcome.trips_breaker is trips_breaker
        assert outcome.status is None
        assert outcome.detail == plain(error)

    def test_error_derived_from_a_known_one_means_the_same(self) -> None:
        class TlsError(ConnectError):
            """The certificate is not for this host."""

        assert interpret_failure(TlsError()).result is Result.ERROR_CONNECTION

    @pytest.mark.parametrize(
        ("outcome", "counts"),
        [
            (interpret(200, None, b"", NOW), False),
            (interpret(200, None, b'{"ack": false}', NOW), False),
            (interpret(429, None, b"", NOW), False),
            (interpret(400, None, b"", NOW), True),
            (interpret(500, None, b"", NOW), True),
            (interpret(302, None, b"", NOW), True),
            (interpret_failure(ConnectError()), True),
            (interpret_failure(RequestTimeoutError()), True),
            (interpret_failure(ValueError()), True),
        ],
    )
    def test_only_failures_count_and_asking_for_patience_is_none(self, outcome: Outcome, counts: bool) -> None:
        assert outcome.counts is counts

    def test_outcome_keeps_the_beginning_of_the_body(self) -> None:
        outcome = interpret(500, None, b"\xff" + "ä".encode() * 1_000_000, NOW)
        assert outcome.excerpt == "\ufffd" + "ä" * (EXCERPT_CHARS - 1)
        assert outcome.detail == "HTTP 500"


class TestHostileAnswers:
    """A 200 whose body tries to break the parser."""

    @pytest.mark.parametrize(
        ("body", "expected"),
        [
            (b'{"ack": false, "delaySeconds": -5}', not_acked(1)),
            (b'{"ack": false, "delaySeconds": 0.25}', not_acked(1)),
            (b'{"ack": false, "delaySeconds": 1.5}', not_acked(2)),
            (b'{"ack": false, "delaySeconds": 43201}', not_acked(43_200)),
            (b'{"ack": false, "delaySeconds": 1e308}', not_acked(43_200)),
            (b'{"ack": false, "delaySeconds": 123456789012345678901234567890}', not_acked(43_200)),
            (b'{"ack": false, "delaySeconds": -1e308}', not_acked(1)),
            (b'{"ack": false, "delaySeconds": 1e-400}', not_acked(None)),
            (b'{"ack": false, "nested": {"ack": true, "delaySeconds": 9}}', not_acked(None)),
            (b'{"ack": true, "ack": false}', not_acked(None)),
            (b'{"nested": {"ack": false}}', SUCCESS),
            (b'[{"ack": false}]', SUCCESS),
            (b"false", SUCCESS),
            (b"null", SUCCESS),
            (b'{"ack": "false"}', not_acked(None)),
            (b'{"ack": 0}', not_acked(None)),
            (b'{"ack": true, "delaySeconds": "soon"}', SUCCESS),
        ],
    )
    def test_odd_answer_has_a_defined_meaning(self, body: bytes, expected: Meaning) -> None:
        assert meaning(interpret(200, None, body, NOW)) == expected

    @pytest.mark.parametrize(
        "delay", ['"soon"', '"30"', "1e400", "-1e400", "9" * 400, "true", "[]", "{}"], ids=lambda text: text[:8]
    )
    def test_ack_false_is_never_taken_for_success_because_its_delay_is_unusable(self, delay: str) -> None:
        outcome = interpret(200, None, f'{{"ack": false, "delaySeconds": {delay}}}'.encode(), NOW)
        assert (outcome.result, outcome.error) == (Result.ERROR_PROCESS, ErrorKind.NOT_ACKED)

    def test_deeply_nested_answer_is_an_outcome_not_an_exception(self) -> None:
        body = b'{"x": ' + b"[" * 20_000 + b"]" * 20_000 + b"}"
        assert meaning(interpret(200, None, body, NOW)) == SUCCESS

    @settings(deadline=None)
    @given(st.integers(0, 999), st.none() | st.text(), st.binary() | st.text().map(str.encode))
    def test_whatever_an_endpoint_answers_is_an_outcome_with_a_delay_every_queue_accepts(
        self, status: int, retry_after: str | None, body: bytes
    ) -> None:
        outcome = interpret(status, retry_after, body, NOW)
        assert outcome.status == status
        assert outcome.delay_s is None or 1 <= outcome.delay_s <= MAX_DELAY_S


class TestDelays:
    @pytest.mark.parametrize(
        ("asked", "used"),
        [
            (1, 1),
            (7, 7),
            (7.01, 8),
            (0.001, 1),
            (43_200, 43_200),
            (43_200.5, 43_200),
            (-1, 1),
            (0, 30),
            (-0.0, 30),
            (float("inf"), 30),
            (float("-inf"), 30),
            (float("nan"), 30),
        ],
    )
    def test_delay_is_clamped_to_what_queues_accept_and_nonsense_is_the_default(
        self, asked: float, used: float
    ) -> None:
        assert clamp_delay(asked) == used

    @settings(deadline=None)
    @given(st.floats())
    def test_every_delay_is_a_whole_number_of_seconds_that_queues_accept(self, asked: float) -> None:
        delay_s = clamp_delay(asked)
        assert 1 <= delay_s <= MAX_DELAY_S
        assert delay_s.is_integer()

    @pytest.mark.parametrize(
        "date",
        ["Tue, 14 Nov 2023 22:14:50 GMT", "Tuesday, 14-Nov-23 22:14:50 GMT", "Tue Nov 14 22:14:50 2023"],
        ids=["IMF-fixdate", "RFC 850", "asctime"],
    )
    @pytest.mark.parametrize("timezone", ["UTC0", "WEST+5", "EAST-9"])
    def test_every_form_of_an_http_date_is_read_as_utc_wherever_the_router_runs(
        self, date: str, timezone: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with monkeypatch.context() as elsewhere:
            elsewhere.setenv("TZ", timezone)
            time.tzset()
            try:
                assert parse_retry_after(date, NOW) == 90.0
            finally:
                elsewhere.undo()
                time.tzset()

    @settings(deadline=None)
    @given(st.integers(0, MAX_DELAY_S), st.sampled_from(["", " ", "\t"]))
    def test_whole_seconds_are_read_as_they_are(self, seconds: int, padding: str) -> None:
        assert parse_retry_after(f"{padding}{seconds}{padding}", NOW) == seconds

    def test_leading_zeros_do_not_change_a_number_of_seconds(self) -> None:
        assert parse_retry_after("000000000045", NOW) == 45.0

    @settings(deadline=None)
    @given(st.lists(st.sampled_from(["Fri,", "31", "Dec", "2030", "23:59:59", "GMT", "-0000", ":", "+99999", "-"])))
    def test_header_that_is_almost_a_date_is_a_number_or_nothing(self, words: list[str]) -> None:
        seconds = parse_retry_after(" ".join(words), NOW)
        assert seconds is None or seconds >= 0

    def test_no_header_asks_for_nothing(self) -> None:
        assert parse_retry_after(None, NOW) is None
