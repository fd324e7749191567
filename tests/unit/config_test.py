"""Settings: where they come from, and what a wrong one says."""

import os
from pathlib import Path

import pytest

from flowcatalyst.app import config_of
from flowcatalyst.config import describe_settings, load_settings
from flowcatalyst.errors import ConfigurationError
from flowcatalyst.operations.router_config import QueueConfig, RouterConfig
from flowcatalyst.pool_settings import PoolSettings
from flowcatalyst.routing.limits import PoolLimits, Success
from flowcatalyst.routing.policy import Delays

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


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
    monkeypatch.setenv("FLOWCATALYST_LOG__LEVEL", "warning")
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
        ('host = "nowhere"', "host "),
        ("[[pools]]\ncode = 'A'\nconcurrency = 0", "pools.0.concurrency should be greater than or equal to 1"),
        ("[[pools]]\ncode = 'A'\nconcurrency = 1\n" * 2, "settings name pool A twice"),
        ("[egress]\nallowed_networks = ['10.0.0.0/99']", "egress.allowed_networks"),
        ("port = = 1", "is not valid TOML"),
        ("port = 'abc'", "port should be a whole number"),
        ("[[pools]]\ncode = 'A'", "pools.0.concurrency is missing"),
        (
            pool_in_toml("rate_limit_per_minute = -1"),
            "pools.0.rate_limit_per_minute should be greater than or equal to 0",
        ),
        (f"[[pools]]\ncode = '{'A' * 257}'\nconcurrency = 1", "pools.0.code"),
        (pool_in_toml("parked_limit = -1"), "pools.0.parked_limit should be greater than or equal to 0"),
        (pool_in_toml("retry_statuses = [404, 429]"), "pools.0.retry_statuses has 429: only 400 to 499 without 429"),
        (pool_in_toml("retry_statuses = [500]"), "pools.0.retry_statuses has 500: only 400 to 499 without 429"),
        (pool_in_toml("retry_statuses = 404"), "pools.0.retry_statuses "),
        (pool_in_toml("success = '204'"), "pools.0.success "),
        (pool_in_toml("ack_before_next = 'perhaps'"), "pools.0.ack_before_next "),
        ("[retry]\nlongest_s = 0", "retry.longest_s should be greater than 0"),
    ],
)
def test_a_wrong_setting_is_named_in_one_sentence(empty_folder: Path, toml: str, said: str) -> None:
    (empty_folder / "flowcatalyst.toml").write_text(toml)
    with pytest.raises(ConfigurationError) as caught:
        load_settings()
    assert said in str(caught.value)
    assert "flowcatalyst.toml" in str(caught.value)
    assert "\n" not in str(caught.value)


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


def test_settings_of_retries_become_delays(empty_folder: Path) -> None:
    assert load_settings().retry.delays() == Delays()
    (empty_folder / "flowcatalyst.toml").write_text(
        "[retry]\nbackoff_s = [0.5]\ngive_back_s = 3\nfollower_s = 0\nlongest_s = 77\n"
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
        (queue_in_toml(uri="kafka://h/q"), "queues.0.uri is wrong: its queueUri has no known scheme; the forms are"),
        (queue_in_toml() + queue_in_toml("r", "nats://h/S"), "queues.1.uri is wrong: its queueUri has no consumer"),
        (queue_in_toml(uri="amqp://ann:s3cret@h/q"), "queues.0.uri is wrong: its queueUri has an @"),
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
        ("[embedded]\nqueues = []", "settings have no queue"),
        ("[embedded]\nqueues = ['a', 'a']", "settings name queue a twice"),
        ("[nats]\npasword = 's3cret'", "nats.pasword is not a setting"),
        ("[nats]\npassword = ['s3cret']", "nats.password should be a valid string"),
        ("[activemq]\npassword = {of = 's3cret'}", "activemq.password should be a valid string"),
    ],
)
def test_wrong_settings_of_queues_are_named_in_one_sentence_without_secrets(
    empty_folder: Path, toml: str, said: str
) -> None:
    (empty_folder / "flowcatalyst.toml").write_text(toml)
    text = refusal()
    assert said in text
    assert "s3cret" not in text


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


def refusal() -> str:
    """What loading says when it fails: one line, and nothing behind it that would show values."""
    with pytest.raises(ConfigurationError) as caught:
        load_settings()
    assert caught.value.__context__ is None or caught.value.__suppress_context__
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("variable", "meant"),
    [
        ("FLOWCATALYST_PROT", "FLOWCATALYST_PORT"),
        ("FLOWCATALYST_LOG_LEVEL", "FLOWCATALYST_LOG__LEVEL"),
        ("FLOWCATALYST_MEDIATOR_HTTP_TIMEOUT_MS", "FLOWCATALYST_MEDIATOR__HTTP__TIMEOUT_MS"),
        ("FLOWCATALYST_MEDIATOR__HTTP__TIMOUT_MS", "FLOWCATALYST_MEDIATOR__HTTP__TIMEOUT_MS"),
        ("FLOWCATALYST_REDIS_URL", "FLOWCATALYST_STANDBY__REDIS_URL"),
        ("flowcatalyst_datadir", "FLOWCATALYST_DATA_DIR"),
    ],
)
def test_a_misspelt_variable_is_refused_with_the_one_that_is_meant(
    monkeypatch: pytest.MonkeyPatch, variable: str, meant: str
) -> None:
    monkeypatch.setenv(variable, "s3cret")
    said = refusal()
    assert f"variable {variable.upper()} is not a setting (did you mean {meant}?)" in said
    assert "s3cret" not in said


def test_a_variable_that_is_like_no_setting_is_refused_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLOWCATALYST_COLOUR", "blue")
    assert "variable FLOWCATALYST_COLOUR is not a setting; `flowcatalyst settings` lists them all" in refusal()


def test_a_section_may_come_as_json_in_one_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLOWCATALYST_MEDIATOR__HTTP", '{"timeout_ms": 7}')
    monkeypatch.setenv("FLOWCATALYST_LOG", '{"level": "error"}')
    settings = load_settings()
    assert (settings.mediator.http.timeout_ms, settings.log.level) == (7, "error")


@pytest.mark.parametrize("service", ["FLOWCATALYST", "FLOWCATALYST_ROUTER"])
def test_what_kubernetes_sets_for_a_service_named_flowcatalyst_is_no_setting(
    monkeypatch: pytest.MonkeyPatch, service: str
) -> None:
    links = {
        "PORT": "tcp://10.0.0.1:8080",
        "SERVICE_HOST": "10.0.0.1",
        "SERVICE_PORT": "8080",
        "SERVICE_PORT_HTTP": "8080",
        "PORT_8080_TCP": "tcp://10.0.0.1:8080",
        "PORT_8080_TCP_PROTO": "tcp",
        "PORT_8080_TCP_PORT": "8080",
        "PORT_8080_TCP_ADDR": "10.0.0.1",
    }
    for name, value in links.items():
        monkeypatch.setenv(f"{service}_{name}", value)
    assert load_settings().port == 8080
    monkeypatch.setenv("FLOWCATALYST_PORT", "9090")
    assert load_settings().port == 9090


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


@pytest.mark.parametrize(
    ("toml", "meant"),
    [
        ("prot = 1", "port"),
        ("[mediator.http]\ntimout_ms = 1", "mediator.http.timeout_ms"),
        ('[[queues]]\nname = "q"\nuri = "embedded:q"\nconections = 1', "queues[].connections"),
    ],
)
def test_a_misspelt_setting_of_a_file_is_refused_with_the_one_that_is_meant(
    empty_folder: Path, toml: str, meant: str
) -> None:
    (empty_folder / "flowcatalyst.toml").write_text(toml)
    assert f"is not a setting (did you mean {meant}?)" in refusal()


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


def test_a_rate_limit_of_0_is_none_as_in_the_router_configuration(empty_folder: Path) -> None:
    (empty_folder / "flowcatalyst.toml").write_text(pool_in_toml("rate_limit_per_minute = 0"))
    [pool] = load_settings().pools
    assert pool.limits().rate_per_minute is None
