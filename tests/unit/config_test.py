"""Settings: where they come from, and what a wrong one says."""

import os
import re
from pathlib import Path
from typing import Any

import pytest

from flowcatalyst.app.router import config_of
from flowcatalyst.control.pool_settings import PoolSettings
from flowcatalyst.control.router_config import RouterConfig
from flowcatalyst.control.settings import describe_settings, load_settings
from flowcatalyst.control.settings_sources import origin_of
from flowcatalyst.core.errors import ConfigurationError
from flowcatalyst.queues.raw import Missing, RawConfig
from flowcatalyst.queues.settings import QueueConfig
from flowcatalyst.router.limits import PoolLimits, Success
from flowcatalyst.router.policy import Delays
from tests.support.settings import refusal

pytestmark = pytest.mark.usefixtures("empty_folder")
ROOT = Path(__file__).parent.parent.parent


def test_defaults_are_the_four_pools_on_loopback() -> None:
    settings = load_settings()
    assert [(pool.code, pool.concurrency) for pool in settings.pools] == [
        ("DEFAULT-POOL", 20),
        ("POOL-HIGH", 10),
        ("POOL-MEDIUM", 5),
        ("POOL-LOW", 2),
    ]
    assert (settings.host, settings.port) == ("127.0.0.1", 8080)
    assert settings.mediator.http.timeout_ms == 900_000


def test_command_line_wins_over_environment_over_file_over_default(
    empty_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (empty_folder / "flowcatalyst.toml").write_text("port = 1001\n[mediator.http]\ntimeout_ms = 7\n")
    assert load_settings().port == 1001
    monkeypatch.setenv("FLOWCATALYST_PORT", "1002")
    monkeypatch.setenv("FLOWCATALYST_LOG__LEVEL", "WARNING")
    settings = load_settings()
    assert (settings.port, settings.log.level, settings.mediator.http.timeout_ms) == (1002, "warning", 7)
    assert load_settings(port=1003, host=None).port == 1003


def pool_in_toml(more: str) -> str:
    return f"[[pools]]\ncode = 'A'\nconcurrency = 1\n{more}\n"


@pytest.mark.parametrize(
    ("toml", "said"),
    [
        ("prot = 1", "prot is not a setting"),
        ("port = 70000", "port should be less than or equal to 65535"),
        ('host = "0.0.0.0"', "no access control yet"),
        ('host = "no where"', "invalid host 'no where'"),
        ("[[pools]]\ncode = 'A'\nconcurrency = 0", "pools.0.concurrency should be greater than or equal to 1"),
        ("[[pools]]\ncode = 'A'\nconcurrency = 1\n" * 2, "settings name pool A twice"),
        ("[egress]\nallowed_networks = ['10.0.0.0/99']", "egress.allowed_networks"),
        ("port = = 1", "is not valid TOML"),
        ("port = 'abc'", "port should be a whole number"),
        ("[[pools]]\ncode = 'A'", "pools.0.concurrency is missing (pool 'A')"),
        ("[[pools]]\nconcurrency = 0", "pools.0.concurrency should be greater than or equal to 1, not '0'"),
        (
            "[[pools]]\ncode = 'A'\nconcurrency = 1\n[[pools]]\ncode = 'B'\nconcurrency = 0",
            "pools.1.concurrency should be greater than or equal to 1, not '0' (pool 'B')",
        ),
        (
            pool_in_toml("rate_limit_per_minute = -1"),
            "pools.0.rate_limit_per_minute should be greater than or equal to 0",
        ),
        (f"[[pools]]\ncode = '{'A' * 257}'\nconcurrency = 1", "pools.0.code"),
        (pool_in_toml("parked_limit = -1"), "pools.0.parked_limit should be greater than or equal to 0"),
        (pool_in_toml("retry_statuses = [404, 429]"), "pools.0.retry_statuses has 429: only 400 to 499 except 429"),
        (pool_in_toml("retry_statuses = [500]"), "pools.0.retry_statuses has 500: only 400 to 499 except 429"),
        (pool_in_toml("retry_statuses = 404"), "pools.0.retry_statuses "),
        (pool_in_toml("success = '204'"), "pools.0.success "),
        (pool_in_toml("ack_before_next = 'perhaps'"), "pools.0.ack_before_next "),
        ("[retry]\nlongest_s = 0", "retry.longest_s should be greater than 0"),
        ("[retry]\nlongest_s = inf", "retry.longest_s should be a finite number, not 'inf'"),
        ("[retry]\nbackoff_s = [1, -1]", "retry.backoff_s.1 should be greater than or equal to 0, not '-1'"),
        ("[retry]\nbackoff_s = [nan]", "retry.backoff_s.0 should be a finite number, not 'nan'"),
        ("[retry]\nlongest_s = 'x'", "retry.longest_s should be a number"),
        ("mediator = 5", "mediator should be a table of settings"),
        ("[pools]\ncode = 'A'", "pools should be a list"),
        ("data_dir = 5", "data_dir should be the path of a file"),
        ("host = 5", "host should be text"),
        ("[[queues]]\nname = ''\nuri = 'embedded:q'", "queues.0.name should have at least 1 character"),
        ("enabled = []", "enabled should be true or false"),
    ],
)
def test_a_wrong_setting_is_named_in_one_sentence(empty_folder: Path, toml: str, said: str) -> None:
    (empty_folder / "flowcatalyst.toml").write_text(toml)
    with pytest.raises(ConfigurationError) as caught:
        load_settings()
    assert said in str(caught.value)
    assert "flowcatalyst.toml" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "host", ["", " ", "a b", "127.0.0.1:8080", "http://127.0.0.1", "[::1]", "300.1.1.1", "a..b", "-a", "x" * 64]
)
@pytest.mark.parametrize("auth", [{}, {"mode": "api_key", "admin": ["sha256:" + "0" * 64]}])
def test_what_can_be_no_host_is_called_an_invalid_host(host: str, auth: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError) as caught:
        load_settings(host=host, auth=auth or None)
    assert f"invalid host {host[:60]!r}: name an address of this machine" in str(caught.value)
    assert "access control" not in str(caught.value)


def test_a_name_that_is_nearly_localhost_is_called_an_invalid_host() -> None:
    with pytest.raises(ConfigurationError, match="invalid host 'localhots' \\(did you mean localhost\\?\\): name an"):
        load_settings(host="localhots")


@pytest.mark.parametrize("host", ["192.0.2.1", "2001:db8::1"])
def test_a_host_that_others_can_reach_needs_access_control(host: str) -> None:
    with pytest.raises(ConfigurationError, match="no access control yet"):
        load_settings(host=host)


def test_settings_of_a_pool_become_its_limits(empty_folder: Path) -> None:
    assert PoolSettings(code="A", concurrency=1).limits() == PoolLimits(concurrency=1, parked_limit=10_000)
    (empty_folder / "flowcatalyst.toml").write_text(
        pool_in_toml("parked_limit = 0\nretry_statuses = [404, 501, 404]\nack_before_next = true\nsuccess = '200'")
    )
    [pool] = load_settings().pools
    assert pool.limits() == PoolLimits(
        concurrency=1,
        parked_limit=0,
        retry_statuses=frozenset({404, 501}),
        ack_before_next=True,
        success=Success.ONLY_200,
    )


def test_a_status_that_means_success_may_be_a_number(empty_folder: Path) -> None:
    (empty_folder / "flowcatalyst.toml").write_text(pool_in_toml("success = 200"))
    assert load_settings().pools[0].success is Success.ONLY_200


def test_settings_of_retries_become_delays(empty_folder: Path) -> None:
    assert load_settings().retry.delays() == Delays()
    (empty_folder / "flowcatalyst.toml").write_text(
        "[retry]\nbackoff_s = [0.5]\nnack_delay_s = 3\nfollower_s = 0\nlongest_s = 77\n"
    )
    assert load_settings().retry.delays() == Delays((0.5,), 3.0, 0.0, 77.0)


def test_a_settings_file_that_is_no_text_is_an_error(empty_folder: Path) -> None:
    (empty_folder / "flowcatalyst.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigurationError, match="is not valid TOML"):
        load_settings()


def test_a_settings_file_that_does_not_exist_is_an_error() -> None:
    with pytest.raises(ConfigurationError, match=r"nowhere\.toml does not exist"):
        load_settings(Path("nowhere.toml"))


def test_every_setting_is_documented_with_its_default() -> None:
    text = (ROOT / "docs" / "operations.md").read_text()
    settings = list(describe_settings())
    assert len(settings) > 20
    for setting in settings:
        assert setting.description, f"{setting.name} has no description"
        row = f"| `{setting.name}` | {setting.default} | {setting.description} |"
        assert row in text, f"docs/operations.md is out of date, `flowcatalyst settings` prints the table: {row}"


def test_defaults_are_shown_as_a_settings_file_takes_them() -> None:
    shown = {setting.name: setting.default for setting in describe_settings()}
    assert shown["enabled"] == "true"
    assert shown["pools[].ack_before_next"] == "false"
    assert shown["sync.config_url"] == "unset"
    assert {"True", "False", "None"}.isdisjoint(shown.values())
    assert not [one.name for one in describe_settings() if re.search(r"\b(True|False|None)\b", one.description)]


NATS_URI = "nats://broker-1,broker-2/ORDERS?consumer=router"


def test_queues_of_brokers_come_from_tables_of_the_file(empty_folder: Path) -> None:
    (empty_folder / "flowcatalyst.toml").write_text(
        f'[[queues]]\nname = "orders"\nuri = "{NATS_URI}"\nconnections = 2\nvisibility_s = 120\n'
        '[[queues]]\nname = "bills"\nuri = "sqs://bills.fifo"\n'
        '[embedded]\nqueues = []\n[nats]\nuser = "ann"\npassword = "s3cret"\n'
    )
    settings = load_settings()
    assert settings.nats.password is not None
    assert settings.nats.password.get_secret_value() == "s3cret"
    config = config_of(settings)
    assert list(config.queues.values()) == [
        QueueConfig("orders", NATS_URI, 2, 120.0),
        QueueConfig("bills", "sqs://bills.fifo"),
    ]


def test_settings_that_are_printed_show_no_secret(empty_folder: Path) -> None:
    (empty_folder / "flowcatalyst.toml").write_text(
        '[nats]\ntoken = "s3cret"\n[activemq]\npassword = "s3cret"\n[standby]\nredis_url = "redis://ann:s3cret@host/0"\n'
    )
    settings = load_settings()
    assert "s3cret" not in repr(settings) + str(settings) + settings.model_dump_json()


def test_a_queue_of_the_file_may_be_raw(empty_folder: Path) -> None:
    (empty_folder / "flowcatalyst.toml").write_text(
        '[[queues]]\nname = "o"\nuri = "embedded:o"\n[queues.raw]\ntarget = "https://shop.test/hook"\npool = "P"\n'
        'group = "$.order.id"\nmissing = "default"\nheaders = { Authorization = "Basic SECRET" }\n'
    )
    settings = load_settings()
    raw = config_of(settings).queues["o"].raw
    headers = (("Authorization", "Basic SECRET"),)
    assert raw == RawConfig("https://shop.test/hook", "P", "$.order.id", missing=Missing.DEFAULT, headers=headers)
    assert "SECRET" not in repr(settings) + repr(config_of(settings))


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        ('pool = "P"', "queues.0.raw.target is missing"),
        ('target = "nowhere"', "queues.0.raw is wrong: target cannot be called"),
        ('target = "http://h/"\ngroop = "x"', "queues.0.raw.groop is not a setting (did you mean queues[].raw.group?)"),
        ('target = "http://h/"\ngroup = "x"', "queues.0.raw is wrong: group must be broker, or a path into the body"),
        ('target = "http://h/"\nheaders = { Host = "SECRET" }', "queues.0.raw is wrong: the header Host is set by"),
    ],
)
def test_a_wrong_raw_queue_is_refused_with_a_sentence(empty_folder: Path, raw: str, why: str) -> None:
    (empty_folder / "flowcatalyst.toml").write_text(
        f'[[queues]]\nname = "o"\nuri = "embedded:o"\n[queues.raw]\n{raw}\n'
    )
    with pytest.raises(ConfigurationError) as refused:
        load_settings()
    assert why in str(refused.value)
    assert "SECRET" not in str(refused.value)


def test_queues_of_brokers_come_as_json_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLOWCATALYST_QUEUES", '[{"name": "orders", "uri": "amqp://broker/orders"}]')
    names = list(config_of(load_settings()).queues)
    assert names == ["default", "high", "medium", "low", "orders"]
    monkeypatch.setenv("FLOWCATALYST_EMBEDDED__QUEUES", "[]")
    assert list(config_of(load_settings()).queues) == ["orders"]


def test_queues_of_the_settings_do_not_count_beside_a_config_url(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MESSAGE_ROUTER_CONFIG_URL", "https://config.test/router.json")
    assert config_of(load_settings()) == RouterConfig()


def test_the_endpoint_of_sqs_has_a_second_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SQS_ENDPOINT_OVERRIDE", "http://localhost:9324")
    assert load_settings().sqs.endpoint_override == "http://localhost:9324"
    monkeypatch.setenv("FLOWCATALYST_SQS__ENDPOINT_OVERRIDE", "http://localhost:4566")
    assert load_settings().sqs.endpoint_override == "http://localhost:4566"
    monkeypatch.delenv("FLOWCATALYST_SQS__ENDPOINT_OVERRIDE")
    monkeypatch.setenv("SQS_ENDPOINT_OVERRIDE", "")
    assert load_settings().sqs.endpoint_override is None


@pytest.mark.parametrize(
    ("variable", "shown"),
    [
        ("SQS_ENDPOINT_OVERRIDE", "SQS_ENDPOINT_OVERRIDE"),
        ("FLOWCATALYST_SQS__ENDPOINT_OVERRIDE", "sqs.endpoint_override"),
    ],
)
@pytest.mark.parametrize("value", ["localhost:9324", "http://", "http://key:s3cret@localhost:9324", "http://h/path"])
def test_an_endpoint_of_sqs_that_is_no_server_is_refused_by_either_name(
    monkeypatch: pytest.MonkeyPatch, variable: str, shown: str, value: str
) -> None:
    monkeypatch.setenv(variable, value)
    said = refusal()
    assert f"{shown} should be http:// or https://, a host and a port" in said
    assert "s3cret" not in said


def queue_in_toml(name: str = "q", uri: str = "embedded:q", more: str = "") -> str:
    return f'[[queues]]\nname = "{name}"\nuri = "{uri}"\n{more}\n'


@pytest.mark.parametrize(
    ("toml", "said"),
    [
        (queue_in_toml(uri="kafka://h/q"), "queues.0.uri is wrong: it has no known scheme; the forms are"),
        (queue_in_toml() + queue_in_toml("r", "nats://h/S"), "queues.1.uri is wrong: it has no consumer"),
        (queue_in_toml(uri="amqp://ann:s3cret@h/q"), "queues.0.uri is wrong: it has an @"),
        (queue_in_toml(uri=""), "queues.0.uri "),
        (queue_in_toml(name=""), "queues.0.name "),
        ('[[queues]]\nname = "q"', "queues.0.uri is missing"),
        ('[[queues]]\nuri = "embedded:q"', "queues.0.name is missing"),
        (queue_in_toml(more="conections = 2"), "queues.0.conections is not a setting"),
        (queue_in_toml(more="connections = 0"), "queues.0.connections "),
        (queue_in_toml(more="visibility_s = 43201"), "queues.0.visibility_s "),
        (queue_in_toml("orders") * 2, "settings name queue orders twice"),
        (queue_in_toml("high", "sqs://high"), "settings name queue high twice"),
        (queue_in_toml("other", "embedded:default"), "settings name one queue twice"),
        ("[embedded]\nqueues = []\n[platform]\nenabled = false", "settings have no queue"),
        ("[embedded]\nqueues = ['a', 'a']", "settings name queue a twice"),
        ("[nats]\npasword = 's3cret'", "nats.pasword is not a setting"),
        ("[nats]\npassword = ['s3cret']", "nats.password should be text"),
        ("[activemq]\npassword = {of = 's3cret'}", "activemq.password should be text"),
    ],
)
def test_wrong_settings_of_queues_are_named_in_one_sentence_without_secrets(
    empty_folder: Path, toml: str, said: str
) -> None:
    (empty_folder / "flowcatalyst.toml").write_text(toml)
    text = refusal()
    assert said in text
    assert "s3cret" not in text


def test_who_only_dispatches_jobs_needs_no_queue(empty_folder: Path) -> None:
    (empty_folder / "flowcatalyst.toml").write_text("[embedded]\nqueues = []\n[platform]\nenabled = true")
    assert load_settings().embedded.queues == []


@pytest.mark.parametrize(
    "value",
    [
        "orders",
        '[{"name": "q", "uri": "amqp://ann:s3cret@h/q"}',
        '[{"name": "q", "uri": "amqp://ann:s3cret@h/q"}]',
        '{"name": "q", "uri": "amqp://ann:s3cret@h/q"}',
    ],
)
def test_wrong_queues_in_the_environment_are_refused_without_secrets(
    monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    monkeypatch.setenv("FLOWCATALYST_QUEUES", value)
    text = refusal()
    assert "queues" in text.lower()
    assert "s3cret" not in text


def test_secrets_are_not_in_the_text_of_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NATS__PASSWORD", "NATS__TOKEN", "ACTIVEMQ__PASSWORD"):
        monkeypatch.setenv(f"FLOWCATALYST_{name}", "s3cret")
    settings = load_settings()
    assert settings.nats.token is not None
    assert settings.nats.token.get_secret_value() == "s3cret"
    for text in (repr(settings), str(settings), repr(settings.model_dump()), settings.model_dump_json()):
        assert "s3cret" not in text


def test_a_section_may_come_as_json_in_one_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLOWCATALYST_MEDIATOR__HTTP", '{"timeout_ms": 7}')
    monkeypatch.setenv("FLOWCATALYST_LOG", '{"level": "error"}')
    settings = load_settings()
    assert (settings.mediator.http.timeout_ms, settings.log.level) == (7, "error")


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("FLOWCATALYST_PORT", "tcp:8080", "port should be a whole number, not 'tcp:8080' (variable FLOWCATALYST_PORT)"),
        ("FLOWCATALYST_PORT", "70000", "port should be less than or equal to 65535, not '70000' (variable"),
        ("FLOWCATALYST_LOG__LEVEL", "loud", "or 'error', not 'loud' (variable FLOWCATALYST_LOG__LEVEL)"),
        ("FLOWCATALYST_ENABLED", "perhaps", "should be true or false, not 'perhaps' (variable FLOWCATALYST_ENABLED)"),
        ("FLOWCATALYST_AUTH__MODE", "a-key", "'api_key' or 'basic' (variable FLOWCATALYST_AUTH__MODE)"),
        (
            "FLOWCATALYST_POOLS",
            '[{"code": "A", "concurrency": 0}]',
            "pools.0.concurrency should be greater than or equal to 1, not '0' (variable FLOWCATALYST_POOLS)",
        ),
        ("FLOWCATALYST_EMBEDDED__QUEUES", "a,b", "variable FLOWCATALYST_EMBEDDED__QUEUES cannot be read; write lists"),
    ],
)
def test_a_wrong_variable_is_named_with_its_value(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str, said: str
) -> None:
    monkeypatch.setenv(variable, value)
    assert said in refusal()


def test_a_variable_that_the_command_line_overrules_is_not_blamed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLOWCATALYST_PORT", "9090")
    with pytest.raises(ConfigurationError, match=r"port should be less than or equal to 65535, not '70000'$"):
        load_settings(port=70000)


def test_only_sources_that_said_something_are_named(empty_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigurationError, match=r"^wrong settings \(command line\): port "):
        load_settings(port=-1)
    (empty_folder / "flowcatalyst.toml").write_text("port = -1")
    with pytest.raises(ConfigurationError, match=r"^wrong settings \(flowcatalyst\.toml\): port "):
        load_settings()
    monkeypatch.setenv("FLOWCATALYST_HOST", "127.0.0.1")
    with pytest.raises(ConfigurationError, match=r"^wrong settings \(environment, flowcatalyst\.toml\): port "):
        load_settings()


def test_dev_null_is_a_settings_file_that_says_nothing() -> None:
    assert load_settings(Path("/dev/null")).model_dump() == load_settings().model_dump()


def test_settings_may_come_through_a_pipe() -> None:
    reading, writing = os.pipe()
    os.write(writing, b"port = 1001\n")
    os.close(writing)
    try:
        assert load_settings(Path(f"/dev/fd/{reading}")).port == 1001
    finally:
        os.close(reading)


def test_a_settings_file_that_is_a_folder_is_an_error(empty_folder: Path) -> None:
    with pytest.raises(ConfigurationError, match="is a folder: name a TOML file"):
        load_settings(empty_folder)


def test_a_router_is_enabled_unless_the_settings_or_the_variable_of_002_say_otherwise(
    empty_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert load_settings().enabled
    monkeypatch.setenv("MESSAGE_ROUTER_ENABLED", "false")
    assert not load_settings().enabled
    (empty_folder / "flowcatalyst.toml").write_text("enabled = true")
    assert load_settings().enabled
    (empty_folder / "flowcatalyst.toml").unlink()
    monkeypatch.setenv("MESSAGE_ROUTER_ENABLED", "maybe")
    assert "MESSAGE_ROUTER_ENABLED should be true or false, not 'maybe'" in refusal()


def test_of_pools_and_queues_it_is_known_where_they_come_from(
    empty_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def origins() -> list[str]:
        settings = load_settings()
        return [origin_of(settings, *name.split(".")) for name in ("pools", "embedded.queues", "queues")]

    assert origins() == ["default", "default", "default"]
    (empty_folder / "flowcatalyst.toml").write_text(pool_in_toml("") + "[embedded]\nqueues = ['a']\n")
    assert origins() == ["file", "file", "default"]
    monkeypatch.setenv("FLOWCATALYST_POOLS", '[{"code": "A", "concurrency": 1}]')
    monkeypatch.setenv("FLOWCATALYST_EMBEDDED__VISIBILITY_S", "9")
    assert origins() == ["environment", "file", "default"]
    monkeypatch.setenv("FLOWCATALYST_EMBEDDED__QUEUES", '["b"]')
    assert origins() == ["environment", "environment", "default"]


def test_a_rate_limit_of_0_is_none_as_in_the_router_configuration(empty_folder: Path) -> None:
    (empty_folder / "flowcatalyst.toml").write_text(pool_in_toml("rate_limit_per_minute = 0"))
    [pool] = load_settings().pools
    assert pool.limits().rate_per_minute is None
