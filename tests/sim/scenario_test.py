"""A scenario file says what it means, or is refused in one sentence; and the simulation does what it says."""

import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import structlog
from pydantic import BaseModel

from flowcatalyst.control.pool_settings import PoolSettings, RetrySettings
from flowcatalyst.core.errors import ConfigurationError
from flowcatalyst.core.message import Result
from flowcatalyst.simulation.history import Kind
from flowcatalyst.simulation.report import Report, make_report
from flowcatalyst.simulation.report_text import answer
from flowcatalyst.simulation.run_scenario import Run, run_scenario
from flowcatalyst.simulation.scenario import (
    Endpoint,
    Latency,
    Outage,
    PoolChange,
    QueueSection,
    Restart,
    Scenario,
    Stream,
    load_scenario,
    parse_duration,
)
from flowcatalyst.simulation.traffic import Arrival, arrivals_of

EXAMPLES = Path(__file__).parent.parent.parent / "examples" / "scenarios"
SMALL: dict[str, Any] = {
    "duration": "4m",
    "pools": [{"code": "P", "concurrency": 4}],
    "endpoints": [{"name": "shop", "latency": "50ms"}],
    "traffic": [{"name": "order", "pool": "P", "endpoint": "shop", "groups": 6, "per_minute": 60}],
}


def small(**changes: Any) -> Scenario:
    return Scenario.model_validate({**SMALL, **changes})


def endpoint(**changes: Any) -> list[dict[str, Any]]:
    return [{**SMALL["endpoints"][0], **changes}]


def stream(**changes: Any) -> list[dict[str, Any]]:
    return [{**SMALL["traffic"][0], **changes}]


def arrivals(**changes: Any) -> list[Arrival]:
    return list(arrivals_of(small(traffic=stream(**changes)), seed=1))


def play(scenario: Scenario) -> tuple[Run, Report]:
    run = run_scenario(scenario, seed=1)
    assert run.errors == []
    return run, make_report(run)


@pytest.mark.parametrize(
    ("written", "seconds"),
    [
        (90, 90.0),
        (0.5, 0.5),
        ("250ms", 0.25),
        ("20m", 1200.0),
        ("1h30m", 5400.0),
        ("1h 5s", 3605.0),
        ("1.5d", 129600.0),
    ],
)
def test_a_time_is_a_number_of_seconds_or_text_with_units(written: object, seconds: float) -> None:
    assert parse_duration(written) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"duration": "soon"}, "duration cannot be 'soon': use a number of seconds or text"),
        ({"duration": "-5m"}, "duration cannot be '-5m'"),
        ({"duration": -5}, "duration should be greater than 0"),
        ({"duration": True}, "duration should be a number of seconds or text"),
        ({"duration": "2d"}, None),
        ({"duration": "31d"}, "duration should be less than or equal to"),
        ({"colour": 1}, "colour is not a key of a scenario: docs/simulate.md lists them all"),
        ({"traffic": []}, "traffic is empty: add at least one"),
        ({"traffic": stream(pool="Q")}, "traffic.0.pool is 'Q', which is not in pools (P): add or correct it"),
        ({"traffic": stream(endpoint="x")}, "traffic.0.endpoint is 'x', which is not in endpoints (shop)"),
        ({"traffic": stream(per_minute=-1)}, "traffic.0.per_minute should be greater than 0"),
        ({"traffic": stream(per_minute=0)}, "traffic.0.per_minute should be greater than 0"),
        ({"traffic": stream(per_minute=10**7)}, "traffic adds up to about 40,000,000 messages, more than 1,000,000"),
        ({"traffic": stream(arrivals="burst")}, 'traffic.0 has arrivals = "burst" and needs burst_size'),
        ({"traffic": stream(every=5)}, 'traffic.0 has arrivals = "steady", which does not use every: remove it'),
        ({"traffic": stream(start=60, end=30)}, "traffic.0 ends at 30 s, not after its start at 60 s"),
        ({"traffic": stream(start="5m")}, "traffic.0 starts at 300 s, but duration is 240 s: lengthen duration"),
        ({"traffic": stream(name="a b")}, "traffic.0.name cannot be 'a b': use letters, digits"),
        ({"traffic": [*stream(), *stream()]}, "traffic has name order twice: give each its own"),
        ({"pools": [*SMALL["pools"], *SMALL["pools"]]}, "pools has code P twice: give each its own"),
        ({"endpoints": endpoint(name="My Shop")}, "endpoints.0.name cannot be 'My Shop': use lower-case letters"),
        (
            {"endpoints": endpoint(latency={"median": 1})},
            "endpoints.0.latency needs one of: fixed; uniform; median",
        ),
        ({"endpoints": endpoint(latency={"uniform": [2, 1]})}, "endpoints.0.latency has a uniform range that ends"),
        ({"endpoints": endpoint(latency={"median": 2, "p99": 1})}, "endpoints.0.latency has a p99 below its median"),
        ({"endpoints": endpoint(error_rate=2)}, "endpoints.0.error_rate should be less than or equal to 1"),
        ({"endpoints": endpoint(outages=[{"from": 20, "to": 10}])}, "ends at 10 s, not after it begins at 20 s"),
        ({"endpoints": endpoint(outages=[{"from": 20}])}, "endpoints.0.outages.0.to is missing: add it"),
        (
            {"endpoints": endpoint(outages=[{"from": 1, "to": 2, "kind": 404}])},
            "kind should be 'refuse', '500'",
        ),
        ({"endpoints": endpoint(outages=[{"from": 1, "to": 2, "kind": 500}])}, None),
        ({"changes": [{"at": 5, "pool": "P"}]}, "changes.0 changes nothing: name a limit"),
        ({"changes": [{"at": 5, "pool": "Q", "capacity": 9}]}, "changes.0.pool is 'Q', which is not in pools (P)"),
        ({"changes": [{"at": 5, "pool": "P", "capacity": 0}]}, "changes.0.capacity should be at least 1"),
        (
            {"changes": [{"at": "9h", "pool": "P", "capacity": 9}]},
            "changes.0 is at 32400 s, but the simulation ends",
        ),
        ({"restarts": [{"at": 5, "down_for": 60}, {"at": 30}]}, "the router is still down until 65 s"),
    ],
)
def test_what_is_wrong_in_a_scenario_is_said_with_its_place_and_what_to_do(
    tmp_path: Path, changes: dict[str, Any], said: str | None
) -> None:
    file = tmp_path / "scenario.toml"
    file.write_text(_toml({**SMALL, **changes}))
    if said is None:
        load_scenario(file)
        return
    with pytest.raises(ConfigurationError) as caught:
        load_scenario(file)
    text = str(caught.value)
    assert text.startswith(f"scenario {file} cannot be used: ")
    assert said in text
    assert "\n" not in text


def _toml(value: object) -> str:
    """Enough TOML for these tests: tables inside are written inline."""
    assert isinstance(value, dict)
    text = "\n".join(f"{name} = {_inline(part)}" for name, part in value.items())
    tomllib.loads(text)
    return text


def _inline(value: object) -> str:
    match value:
        case bool():
            return str(value).lower()
        case dict():
            return "{" + ", ".join(f"{name} = {_inline(part)}" for name, part in value.items()) + "}"
        case list():
            return "[" + ", ".join(map(_inline, value)) + "]"
    return f'"{value}"' if isinstance(value, str) else str(value)


def test_steady_messages_come_at_equal_distances() -> None:
    assert [one.at for one in arrivals(per_minute=30, start=60, end=66)] == [60.0, 62.0, 64.0]


def test_poisson_messages_come_at_their_rate_on_average() -> None:
    assert len(arrivals(arrivals="poisson", per_minute=600)) == pytest.approx(2400, rel=0.1)


def test_a_burst_comes_at_once_and_again_after_its_period() -> None:
    times = Counter(
        one.at for one in arrivals(arrivals="burst", per_minute=None, burst_size=5, start=10, every="1m", end="2m")
    )
    assert times == {10.0: 5, 70.0: 5}


def test_popular_groups_get_their_share_by_zipfs_law() -> None:
    groups = Counter(one.facts.group for one in arrivals(per_minute=6000, groups=4, zipf=1.0))
    shares = [groups[f"order-{n}"] / groups.total() for n in (1, 2, 3, 4)]
    assert shares == pytest.approx([0.48, 0.24, 0.16, 0.12], abs=0.02)


def test_the_share_of_high_priority_is_kept() -> None:
    high = sum(one.facts.high_priority for one in arrivals(per_minute=6000, high_priority_share=0.25))
    assert high / len(arrivals(per_minute=6000)) == pytest.approx(0.25, abs=0.02)


def test_another_stream_does_not_change_when_messages_of_the_first_one_come() -> None:
    alone = [one.at for one in arrivals(arrivals="poisson")]
    other = {**SMALL["traffic"][0], "name": "other"}
    both = arrivals_of(small(traffic=[*stream(arrivals="poisson"), other]), seed=1)
    assert [one.at for one in both if one.name.startswith("order")] == alone


def test_without_trouble_everything_is_delivered_at_once() -> None:
    run, report = play(small())
    assert run.drained
    assert (report.published, report.delivered, report.left, report.attempts) == (240, 240, 0, 240)
    assert report.lag is not None
    assert report.lag.max_s < 0.2
    assert report.recovery is None
    assert sum(bucket.delivered for bucket in report.buckets) == 240


@pytest.mark.parametrize(
    ("kind", "failure", "opens"),
    [("refuse", "connection refused", True), ("500", "HTTP 500", False), ("429", "HTTP 429", False)],
)
def test_an_outage_fails_requests_in_its_way_and_the_backlog_drains_after_it(
    kind: str, failure: str, opens: bool
) -> None:
    _, report = play(small(endpoints=endpoint(outages=[{"from": "1m", "to": "2m", "kind": kind}])))
    assert report.delivered == report.published
    assert list(report.endpoints[0].failures) == [failure]
    assert bool(report.endpoints[0].breaker_openings) is opens
    assert 50 <= report.peak_backlog <= 130
    assert report.recovery is not None
    assert report.recovery.after == "shop came back"
    assert report.recovery.seconds is not None
    assert 0 <= report.recovery.seconds < 60
    assert any("was gone" in sentence for sentence in answer(report))
    assert 60 < report.blocked_groups[0].seconds < 120


def test_requests_to_an_endpoint_that_hangs_fail_at_the_timeout() -> None:
    outages = [{"from": "1m", "to": "2m", "kind": "hang"}]
    run, report = play(small(endpoints=endpoint(outages=outages), request_timeout="10s"))
    assert list(report.endpoints[0].failures) == ["no response within 10 s"]
    assert report.delivered == report.published
    failed = [one.at for one in run.events if one.kind is Kind.ANSWER and one.value.result is not Result.SUCCESS]
    assert failed[0] == pytest.approx(70.0, abs=1.0)


def test_a_rate_limit_below_the_traffic_is_seen_as_backlog_and_permit_waits() -> None:
    _, report = play(small(pools=[{"code": "P", "concurrency": 4, "rate_limit_per_minute": 30}]))
    assert report.peak_backlog == pytest.approx(120, abs=15)
    assert report.pools[0].permit_waits > 0
    assert report.pools[0].permit_wait_s > 200
    assert report.empty_at_s == pytest.approx(8 * 60, abs=65)


@pytest.mark.parametrize("no_limit", ["none", 0])
def test_a_change_of_limits_is_applied_at_its_time(no_limit: object) -> None:
    slow = [{"code": "P", "concurrency": 4, "rate_limit_per_minute": 30}]
    change = {"at": "2m", "pool": "P", "rate_limit_per_minute": no_limit}
    _, report = play(small(pools=slow, changes=[change]))
    assert report.peak_backlog == pytest.approx(60, abs=15)
    assert report.peak_backlog_at_s == pytest.approx(120, abs=2)


@pytest.mark.parametrize("kind", ["stop", "crash"])
def test_a_router_that_was_down_works_off_what_waited(kind: str) -> None:
    restart = {"at": "1m", "kind": kind, "down_for": "1m"}
    run, report = play(small(restarts=[restart]))
    assert [one.kind for one in run.events if one.kind in (Kind.STARTED, Kind.CRASHED)].count(Kind.STARTED) == 2
    assert report.delivered == report.published
    assert report.peak_backlog >= 60
    assert report.recovery is not None
    assert report.recovery.after == "the router was started again"


def test_limits_that_change_while_the_router_is_down_are_those_of_its_next_start() -> None:
    slow = [{"code": "P", "concurrency": 4, "rate_limit_per_minute": 30}]
    change = {"at": "90s", "pool": "P", "rate_limit_per_minute": 600}
    run, _ = play(small(pools=slow, changes=[change], restarts=[{"at": "1m", "down_for": "1m"}]))
    rates = [(one.at, one.value.rate_per_minute) for one in run.events if one.kind is Kind.LIMITS and one.pool == "P"]
    assert rates == [(0.0, 30), (120.0, 600)]


def test_what_is_left_at_the_end_is_counted_and_said() -> None:
    never = endpoint(error_rate=1.0)
    run, report = play(small(endpoints=never, drain_limit="1m"))
    assert not run.drained
    assert (report.delivered, report.left) == (0, 240)
    assert report.lag is None
    assert "240 were still waiting when the simulation ended at 0:05:01" in answer(report)[0]


def test_dead_letters_are_counted_and_said() -> None:
    _, report = play(small(endpoints=endpoint(error_rate=1.0, error_status=404)))
    assert (report.dead_lettered, report.left) == (240, 0)
    assert "240 became dead letters" in answer(report)[0]


def test_a_run_without_messages_has_a_report_all_the_same() -> None:
    _, report = play(small(traffic=stream(arrivals="poisson", per_minute=0.0001)))
    assert report.published == 0
    assert answer(report) == ["No message was published: raise per_minute or duration."]


def test_logs_are_as_before_after_a_simulation() -> None:
    before = structlog.get_config()
    run_scenario(small(duration=5), seed=1)
    assert structlog.get_config() == before


@pytest.mark.parametrize("file", sorted(EXAMPLES.glob("*.toml")), ids=lambda file: file.stem)
def test_the_examples_can_be_loaded(file: Path) -> None:
    assert load_scenario(file).traffic


def test_the_documentation_names_every_key_of_a_scenario() -> None:
    text = (EXAMPLES.parent.parent / "docs" / "simulate.md").read_text()
    sections: dict[str, type[BaseModel]] = {
        "": Scenario,
        "[queue] ": QueueSection,
        "[[endpoints]] ": Endpoint,
        "[[endpoints.outages]] ": Outage,
        "[[traffic]] ": Stream,
        "[[restarts]] ": Restart,
        "[[changes]] ": PoolChange,
    }
    heads = {"queue", "pools", "endpoints", "traffic", "retry", "restarts", "changes"}
    for prefix, model in sections.items():
        for name, field in model.model_fields.items():
            assert name in heads or f"| `{prefix}{field.alias or name}` |" in text, f"{prefix}{name}"
    for name in PoolSettings.model_fields.keys() | RetrySettings.model_fields.keys() | Latency.model_fields.keys():
        assert name in text, name
