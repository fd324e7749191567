"""The router configuration: what is read from a document, what is rejected, and how sources are merged."""

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from flowcatalyst.control.router_config import (
    MAX_SENTENCES,
    Difference,
    InvalidConfigError,
    RouterConfig,
    changes_in_words,
    difference,
    limit_pools,
    merge,
    parse,
)
from flowcatalyst.core.message import DispatchMode, Severity
from flowcatalyst.queues.raw import Missing, RawConfig
from flowcatalyst.queues.settings import QueueConfig
from flowcatalyst.router.group import FailureScope
from flowcatalyst.router.limits import PoolLimits, Success

SOURCE = "http://config.test/"


def read(**document: Any) -> tuple[RouterConfig, list[str]]:
    return parse(json.dumps(document).encode(), SOURCE)


def read_pool(**fields: Any) -> tuple[PoolLimits | None, list[str]]:
    config, problems = read(processingPools=[{"code": "A", **fields}])
    return config.pools.get("A"), problems


def read_queue(**fields: Any) -> tuple[QueueConfig | None, list[str]]:
    config, problems = read(queues=[{"queueName": "q", **fields}])
    return config.queues.get("q"), problems


def config_of(pools: dict[str, int] | None = None, queues: dict[str, str] | None = None) -> RouterConfig:
    return RouterConfig(
        {code: PoolLimits(concurrency) for code, concurrency in (pools or {}).items()},
        {name: QueueConfig(name, uri) for name, uri in (queues or {}).items()},
    )


def test_a_document_of_002_becomes_pools_and_queues() -> None:
    config, problems = read(
        queues=[
            {"queueName": "orders", "queueUri": "https://sqs/1/orders.fifo", "connections": 2, "visibilityTimeout": 30}
        ],
        connections=1,
        processingPools=[{"code": "POOL-HIGH", "concurrency": 10, "rateLimitPerMinute": 600}],
    )
    assert problems == []
    assert config.pools == {"POOL-HIGH": PoolLimits(10, 600)}
    assert config.queues == {"orders": QueueConfig("orders", "https://sqs/1/orders.fifo", 2, 30.0)}


def test_unknown_keys_are_ignored() -> None:
    config, problems = read(
        version=7,
        processingPools=[{"code": "A", "concurrency": 1, "owner": {"team": [1]}}],
        queues=[{"queueName": "q", "colour": "red"}],
    )
    assert (list(config.pools), list(config.queues), problems) == (["A"], ["q"], [])


def test_a_field_that_is_nearly_one_of_ours_is_told_and_the_rest_applies() -> None:
    limits, problems = read_pool(concurrncy=3, colour="blue", rateLimitPerMinute=60)
    assert limits == PoolLimits(20, 60)
    assert problems == [f"concurrncy of a pool of {SOURCE} is not a field and is ignored (did you mean concurrency?)"]
    _, problems = read_queue(queueUrl="embedded:q")
    assert problems == [f"queueUrl of a queue of {SOURCE} is not a field and is ignored (did you mean queueUri?)"]


def test_bad_entries_are_rejected_by_name_while_good_ones_apply() -> None:
    config, problems = read(
        processingPools=[{"code": "A", "concurrency": 0}, {"code": "B", "concurrency": 3}, "C", {"concurrency": 1}],
        queues=[{"queueName": "q", "connections": 0}, {"queueName": "r"}, {}],
    )
    assert (list(config.pools), list(config.queues)) == (["B"], ["r"])
    assert problems == [
        f"pool 'A' of {SOURCE}: concurrency is 0, it must be at least 1",
        f"pool number 3 of {SOURCE}: it is 'C', not an object",
        f"pool number 4 of {SOURCE}: code is missing",
        f"queue 'q' of {SOURCE}: connections is 0, it must be at least 1",
        f"queue number 3 of {SOURCE}: it has neither queueName nor queueUri",
    ]


def test_a_pool_code_that_no_message_may_name_is_rejected() -> None:
    config, [problem] = read(processingPools=[{"code": "A" * 257}, {"code": "B" * 256}], queues=[])
    assert list(config.pools) == ["B" * 256]
    assert "code is longer than the 256 characters of a poolCode" in problem


def test_a_known_pool_or_queue_whose_new_entry_is_rejected_stays_as_it_was() -> None:
    last = config_of({"A": 5, "GONE": 1}, {"q": "embedded:q"})
    text = b'{"processingPools": [{"code": "A", "concurrency": "x"}], "queues": [{"queueName": "q", "queueUri": 1}]}'
    config, problems = parse(text, SOURCE, last)
    assert config == config_of({"A": 5}, {"q": "embedded:q"})
    assert problems == [
        f"pool 'A' of {SOURCE}: concurrency is 'x', it must be a whole number; the previous one stays in force",
        f"queue 'q' of {SOURCE}: queueUri is 1, it must be a string; the previous one stays in force",
    ]


@pytest.mark.parametrize("fields", [{}, {"concurrency": None}])
def test_a_pool_without_concurrency_gets_20(fields: dict[str, Any]) -> None:
    assert read_pool(**fields) == (PoolLimits(20), [])


@pytest.mark.parametrize("rate", [None, 0, "0"])
def test_a_rate_limit_of_null_or_0_is_no_limit(rate: object) -> None:
    assert read_pool(rateLimitPerMinute=rate) == (PoolLimits(20, None), [])


def test_a_negative_rate_limit_is_rejected() -> None:
    limits, problems = read_pool(rateLimitPerMinute=-1)
    assert limits is None
    assert problems == [f"pool 'A' of {SOURCE}: rateLimitPerMinute is -1, it must be at least 0"]


@pytest.mark.parametrize("number", [10, "10", 10.0])
def test_numbers_may_be_sent_as_strings(number: object) -> None:
    assert read_pool(concurrency=number) == (PoolLimits(10), [])


@pytest.mark.parametrize(
    ("number", "shown"),
    [
        (True, "true"),
        (False, "false"),
        (1.5, "1.5"),
        ("1.5", "'1.5'"),
        ("", "''"),
        ("ten", "'ten'"),
        ("٣", "'٣'"),
        ([1], "a list"),
        ({}, "an object"),
        ("9" * 5000, "'" + "9" * 59 + "..."),
    ],
)
def test_booleans_fractions_and_other_things_are_no_numbers(number: object, shown: str) -> None:
    limits, problems = read_pool(concurrency=number)
    assert limits is None
    assert problems == [f"pool 'A' of {SOURCE}: concurrency is {shown}, it must be a whole number"]


@pytest.mark.parametrize(
    ("key", "number", "most"),
    [("concurrency", 10**30, 100_000), ("capacity", 2**31, 2**31 - 1), ("rateLimitPerMinute", 1e300, 2**31 - 1)],
)
def test_numbers_beyond_reason_are_rejected(key: str, number: float, most: int) -> None:
    limits, [problem] = read_pool(**{key: number})
    assert limits is None
    assert problem.endswith(f"it must be at most {most}")
    assert len(problem) < 200


def test_a_pool_can_have_capacity_failure_scope_and_delivery_attempts() -> None:
    limits, problems = read_pool(concurrency=2, capacity=70, failureScope="batch", maxDeliveryAttempts="5")
    assert problems == []
    assert limits == PoolLimits(2, None, FailureScope.BATCH, 5, 70)
    assert read_pool(failureScope="pool")[1] == [
        f"pool 'A' of {SOURCE}: failureScope is 'pool', it must be group or batch"
    ]
    assert read_pool(maxDeliveryAttempts=0)[1] == [
        f"pool 'A' of {SOURCE}: maxDeliveryAttempts is 0, it must be at least 1"
    ]


def test_a_pool_can_say_what_it_parks_which_statuses_are_retried_and_whether_an_ack_comes_first() -> None:
    limits, problems = read_pool(
        concurrency=2, parkedLimit="50", retryStatuses=[404, 501, 404], ackBeforeNext=True, success=200
    )
    assert problems == []
    statuses = frozenset({404, 501})
    assert limits == PoolLimits(
        2, parked_limit=50, retry_statuses=statuses, ack_before_next=True, success=Success.ONLY_200
    )


@pytest.mark.parametrize(
    "nothing", [{}, {"parkedLimit": None, "retryStatuses": None, "ackBeforeNext": None, "success": None}]
)
def test_a_pool_that_does_not_say_so_gets_the_defaults(nothing: dict[str, Any]) -> None:
    assert read_pool(concurrency=2, **nothing) == (
        PoolLimits(2, parked_limit=10_000, retry_statuses=frozenset(), ack_before_next=False),
        [],
    )


def test_a_pool_may_park_nothing() -> None:
    assert read_pool(parkedLimit=0) == (PoolLimits(20, parked_limit=0), [])


STATUSES_MUST_BE = "retryStatuses may only list numbers from 400 to 499 except 429, and 501"


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"parkedLimit": -1}, "parkedLimit is -1, it must be at least 0"),
        ({"retryStatuses": [404, 429]}, STATUSES_MUST_BE),
        ({"retryStatuses": [500]}, STATUSES_MUST_BE),
        ({"retryStatuses": 404}, STATUSES_MUST_BE),
        ({"retryStatuses": [[404]]}, STATUSES_MUST_BE),
        ({"retryStatuses": [True]}, STATUSES_MUST_BE),
        ({"ackBeforeNext": "yes"}, "ackBeforeNext is 'yes', it must be true or false"),
        ({"success": "201"}, "success is '201', it must be 2xx or 200"),
        ({"success": 201}, "success is '201', it must be 2xx or 200"),
        ({"ackBeforeNext": 0}, "ackBeforeNext is 0, it must be true or false"),
    ],
)
def test_a_pool_with_a_wrong_value_for_these_is_rejected(fields: dict[str, Any], said: str) -> None:
    assert read_pool(**fields) == (None, [f"pool 'A' of {SOURCE}: {said}"])


def test_top_level_connections_are_the_default_of_queues_without_their_own() -> None:
    config, problems = read(connections="3", queues=[{"queueName": "a"}, {"queueName": "b", "connections": 2}])
    assert problems == []
    assert [queue.connections for queue in config.queues.values()] == [3, 2]


def test_a_wrong_top_level_connections_is_told_and_costs_no_queue() -> None:
    config, problems = read(connections=0, queues=[{"queueName": "a"}])
    assert config.queues["a"].connections == 1
    assert problems == [f"{SOURCE}: connections is 0, it must be at least 1; queues without their own get 1"]


def test_a_queue_with_only_a_name_is_an_embedded_queue() -> None:
    assert read_queue() == (QueueConfig("q", "embedded:q", 1, None), [])


def test_a_queue_with_only_a_uri_is_named_by_it_without_its_credentials() -> None:
    config, _ = read(queues=[{"queueUri": "nats://localhost/orders"}, {"queueUri": "amqp://me:secret@host/q?a=b"}])
    assert list(config.queues) == ["nats://localhost/orders", "amqp://host/q?a=b"]
    assert config.queues["amqp://host/q?a=b"].uri == "amqp://me:secret@host/q?a=b"
    assert "secret" not in repr(config)


@pytest.mark.parametrize("visibility", [0, -1, 43_201, 1.5, "soon"])
def test_a_visibility_timeout_that_no_queue_can_have_is_rejected(visibility: object) -> None:
    queue, problems = read_queue(visibilityTimeout=visibility)
    assert queue is None
    assert len(problems) == 1


def test_of_a_name_that_is_there_twice_the_first_counts() -> None:
    config, problems = read(
        processingPools=[{"code": "A", "concurrency": 1}, {"code": "A", "concurrency": 2}],
        queues=[{"queueName": "q", "queueUri": "nats://1"}, {"queueName": "q", "queueUri": "nats://2"}],
    )
    assert config == config_of({"A": 1}, {"q": "nats://1"})
    assert problems == [
        f"pool 'A' of {SOURCE}: it is defined twice; the first one is used",
        f"queue 'q' of {SOURCE}: it is defined twice; the first one is used",
    ]


def test_a_good_entry_after_a_bad_one_of_the_same_name_counts() -> None:
    text = b'{"processingPools": [{"code": "A", "concurrency": 0}, {"code": "A", "concurrency": 2}]}'
    config, problems = parse(text, SOURCE, config_of({"A": 7}))
    assert config == config_of({"A": 2})
    assert problems == [f"pool 'A' of {SOURCE}: concurrency is 0, it must be at least 1"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"", "is not valid JSON"),
        (b"<html>", "is not valid JSON"),
        (b'{"queues": [', "is not valid JSON"),
        (b'{"queues": [], "a": NaN}', "is not valid JSON"),
        (b'{"queues": "\xff"}', "is not valid JSON"),
        (b"[" * 100_000, "is not valid JSON"),
        (b'{"queues":' * 100_000, "is not valid JSON"),
        (b"[]", "it is a list, not an object"),
        (b"null", "it is null, not an object"),
        (b'"x"', "it is 'x', not an object"),
        (b'{"queues": {}}', "queues is an object, not a list"),
        (b'{"processingPools": 5, "queues": []}', "processingPools is 5, not a list"),
        (b'{"error": "not found"}', "it has neither queues nor processingPools"),
        (b'{"queues": [' + b"1," * 50_000 + b"1]}", "has 50001 queues: there can be 50000 at most"),
        (b'{"queues": null}', "it has neither queues nor processingPools"),
    ],
)
def test_a_document_that_is_no_router_configuration_is_unusable_as_a_whole(text: bytes, said: str) -> None:
    with pytest.raises(InvalidConfigError, match=SOURCE) as caught:
        parse(text, SOURCE)
    assert said in str(caught.value)


def test_a_document_may_leave_out_queues_or_pools_or_begin_with_a_byte_order_mark() -> None:
    assert parse(b'\xef\xbb\xbf{"queues": []}', SOURCE) == (RouterConfig(), [])
    assert parse(b'{"processingPools": []}', SOURCE) == (RouterConfig(), [])


def test_of_very_many_problems_most_are_only_counted() -> None:
    _, problems = read(processingPools=[1] * (MAX_SENTENCES + 7))
    assert len(problems) == MAX_SENTENCES + 1
    assert problems[-1] == f"7 more entries of {SOURCE} cannot be used"


NASTY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.integers(-(10**40), 10**40) | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
POOL = st.fixed_dictionaries(
    {},
    optional=dict.fromkeys(
        (
            "code",
            "concurrency",
            "rateLimitPerMinute",
            "capacity",
            "failureScope",
            "maxDeliveryAttempts",
            "parkedLimit",
            "retryStatuses",
            "ackBeforeNext",
            "success",
        ),
        NASTY,
    ),
)
QUEUE = st.fixed_dictionaries(
    {}, optional=dict.fromkeys(("queueName", "queueUri", "connections", "visibilityTimeout"), NASTY)
)
DOCUMENT = st.fixed_dictionaries(
    {},
    optional={
        "queues": NASTY | st.lists(QUEUE | NASTY, max_size=4),
        "processingPools": NASTY | st.lists(POOL | NASTY, max_size=4),
        "connections": NASTY,
    },
)


def check_parsed(text: bytes) -> None:
    last = config_of({"": 1, "A": 1}, {"q": "embedded:q"})
    try:
        config, problems = parse(text, SOURCE, last)
    except InvalidConfigError:
        return
    for problem in problems:
        assert len(problem.encode()) < 1000
        assert "\n" not in problem
    for limits in config.pools.values():
        assert type(limits.concurrency) is int
        assert limits.rate_per_minute is None or type(limits.rate_per_minute) is int
    for name, queue in config.queues.items():
        assert (queue.name, type(queue.uri), type(queue.connections)) == (name, str, int)
    assert merge([(SOURCE, config)])[0].pools == config.pools


@given(DOCUMENT)
@example({"queues": [{"queueName": "q", "connections": 10**40}]})
@example({"processingPools": [{"code": ["A"], "concurrency": float("inf")}]})
def test_nothing_in_a_document_makes_reading_crash(document: object) -> None:
    check_parsed(json.dumps(document).encode())


@given(st.binary(max_size=200) | st.text(max_size=100).map(str.encode))
def test_no_bytes_make_reading_crash(text: bytes) -> None:
    check_parsed(text)


def test_sources_are_united() -> None:
    merged, conflicts = merge([("one", config_of({"A": 1}, {"q": "u1"})), ("two", config_of({"B": 2}, {"r": "u2"}))])
    assert merged == config_of({"A": 1, "B": 2}, {"q": "u1", "r": "u2"})
    assert conflicts == []


def test_where_sources_differ_the_first_wins_and_the_conflict_is_told() -> None:
    merged, conflicts = merge(
        [
            ("one", config_of({"A": 1}, {"q": "u1"})),
            ("two", config_of({"A": 2}, {"q": "u2"})),
        ]
    )
    assert merged == config_of({"A": 1}, {"q": "u1"})
    assert conflicts == [
        "pool 'A' of two is defined differently by one, which wins",
        "queue 'q' of two is defined differently by one, which wins",
    ]


def test_equal_definitions_are_no_conflict() -> None:
    same = config_of({"A": 1}, {"q": "u1"})
    assert merge([("one", same), ("two", same)]) == (same, [])


def test_a_queue_under_two_names_is_used_once() -> None:
    merged, conflicts = merge([("one", config_of(queues={"q": "u1"})), ("two", config_of(queues={"other": "u1"}))])
    assert merged == config_of(queues={"q": "u1"})
    assert conflicts == ["queue 'other' of two is queue 'q' under another name"]


def test_pools_above_the_limit_are_left_out_with_a_critical_warning_that_names_the_first() -> None:
    config, warnings = limit_pools(config_of({"A": 1, "B": 1, "C": 1, "D": 1}, {"q": "u"}), 2, 5, existing=[])
    assert config == config_of({"A": 1, "B": 1}, {"q": "u"})
    assert warnings == [(Severity.CRITICAL, "pools above the limit of 2 are left out: 2, the first is 'C'")]


def test_existing_pools_are_kept_before_new_ones() -> None:
    config, _ = limit_pools(config_of({"A": 1, "B": 1, "C": 1}), 2, 5, existing=["C", "GONE"])
    assert list(config.pools) == ["A", "C"]


def test_more_pools_than_the_threshold_are_warned_of() -> None:
    three = config_of({"A": 1, "B": 1, "C": 1})
    assert limit_pools(three, 10, 3, existing=[]) == (three, [])
    assert limit_pools(three, 10, 2, existing=[]) == (
        three,
        [(Severity.WARN, "there are more than 2 pools; above 10 they are left out")],
    )


def test_the_difference_names_what_is_added_changed_and_removed() -> None:
    old, new = {"same": 1, "changed": 1, "removed": 1}, {"same": 1, "changed": 2, "added": 1}
    assert difference(old, new) == Difference(["added"], ["changed"], ["removed"])


def test_a_queue_may_be_raw() -> None:
    queue, problems = read_queue(raw={"target": "https://shop.test/hook"})
    assert (queue, problems) == (QueueConfig("q", "embedded:q", raw=RawConfig("https://shop.test/hook")), [])
    queue, problems = read_queue(
        raw={
            "target": "https://shop.test/hook",
            "pool": "P",
            "group": "$.order.id",
            "id": "$.id",
            "missing": "default",
            "mode": "next_on_error",
            "contentType": "text/xml",
            "headers": {"X-A": "1"},
        }
    )
    assert problems == []
    assert queue is not None
    assert queue.raw == RawConfig(
        "https://shop.test/hook",
        "P",
        "$.order.id",
        "$.id",
        Missing.DEFAULT,
        DispatchMode.NEXT_ON_ERROR,
        "text/xml",
        (("X-A", "1"),),
    )


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        ("yes", "raw is 'yes', it must be an object"),
        ({}, "raw: target is empty: give an http:// or https:// URL"),
        ({"target": "ftp://x/"}, "raw: target cannot be called"),
        ({"target": 7}, "raw: target is 7, it must be a string"),
        ({"target": "http://h/", "grop": "$.a"}, "raw has 'grop', which is not a field (did you mean group?)"),
        ({"target": "http://h/", "group": "a.b"}, "raw: group must be broker, or a path into the body"),
        ({"target": "http://h/", "missing": "maybe"}, "raw: missing is 'maybe', it must be reject or default"),
        ({"target": "http://h/", "mode": "fast"}, "raw: mode is 'FAST', it must be IMMEDIATE or"),
        ({"target": "http://h/", "contentType": "x"}, "raw: contentType is not a media type"),
        ({"target": "http://h/", "headers": {"A": 1}}, "raw: headers must be an object with strings"),
        ({"target": "http://h/", "headers": {"Host": "SECRET"}}, "raw: the header Host is set by the router alone"),
    ],
)
def test_a_raw_queue_that_is_not_understood_is_not_used_at_all(raw: Any, why: str) -> None:
    queue, [problem] = read_queue(raw=raw)
    assert queue is None
    assert why in problem
    assert "SECRET" not in problem


def test_a_change_of_a_raw_queue_is_told_without_its_target_and_headers() -> None:
    before, after = (
        RouterConfig({}, {"q": QueueConfig("q", "embedded:q", raw=RawConfig("http://h/", headers=(("X-Key", key),)))})
        for key in ("SECRET1", "SECRET2")
    )
    assert changes_in_words(before, after) == "queue q: raw changed"
