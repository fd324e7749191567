"""Settings by their names: misspelt ones, older ones, and variables that are somebody else's."""

from pathlib import Path

import pytest

from flowcatalyst.control.settings import load_settings
from tests.support.settings import refusal

pytestmark = pytest.mark.usefixtures("empty_folder")


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


@pytest.mark.parametrize("service", ["FLOWCATALYST", "FLOWCATALYST_ROUTER", "MESSAGE_ROUTER", "MESSAGE_ROUTER_REDIS"])
def test_what_kubernetes_sets_for_a_service_named_like_us_is_no_setting(
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
    ("toml", "meant"),
    [
        ("prot = 1", "port"),
        ("[mediator.http]\ntimout_ms = 1", "mediator.http.timeout_ms"),
        ("[mediator.htttp]\ntimeout_ms = 1", "mediator.http"),
        ("[mediatr.http]\ntimeout_ms = 1", "mediator"),
        ("[http]\ntimeout_ms = 1", "mediator.http"),
        ("[[pool]]\ncode = 'A'", "pools"),
        ("[stanby]\nttl_s = 9", "standby"),
        ('[[queues]]\nname = "q"\nuri = "embedded:q"\nconections = 1', "queues[].connections"),
    ],
)
def test_a_misspelt_setting_of_a_file_is_refused_with_the_one_that_is_meant(
    empty_folder: Path, toml: str, meant: str
) -> None:
    (empty_folder / "flowcatalyst.toml").write_text(toml)
    assert f"is not a setting (did you mean {meant}?)" in refusal()


@pytest.mark.parametrize(
    ("variable", "meant"),
    [
        ("MESSAGE_ROUTER_CONFIG_ULR", "MESSAGE_ROUTER_CONFIG_URL"),
        ("MESSAGE_ROUTER_CONFIGURL", "MESSAGE_ROUTER_CONFIG_URL"),
        ("MESSAGE_ROUTER_ENABLE", "MESSAGE_ROUTER_ENABLED"),
        ("MESSAGE_ROUTER_APIKEY", "MESSAGE_ROUTER_API_KEY"),
        ("MESSAGE_ROUTER_SYNC_INTERVAL", "FLOWCATALYST_SYNC__INTERVAL_S"),
        ("MESSAGE_ROUTER_MAX_POOLS", "FLOWCATALYST_SYNC__MAX_POOLS"),
        ("MESSAGE_ROUTER_SQS_WAIT_TIME_SECONDS", "FLOWCATALYST_SQS__WAIT_TIME_S"),
    ],
)
def test_a_misspelt_variable_of_002_is_refused_with_the_one_that_is_meant(
    monkeypatch: pytest.MonkeyPatch, variable: str, meant: str
) -> None:
    monkeypatch.setenv(variable, "s3cret")
    said = refusal()
    assert f"variable {variable} is not a setting (did you mean {meant}?)" in said
    assert "s3cret" not in said


@pytest.mark.parametrize("name", ["MESSAGE_ROUTER_COLOUR", "MESSAGE_ROUTER_VERSION", "MESSAGE_ROUTER_IMAGE"])
def test_a_message_router_variable_that_is_like_no_setting_is_somebody_elses(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, "1.2.3")
    assert load_settings().enabled


def test_the_names_of_002_that_there_are_work_in_small_letters_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("message_router_config_url", "https://config.test/router.json")
    monkeypatch.setenv("MESSAGE_ROUTER_API_KEY", "of the commands")
    monkeypatch.setenv("MESSAGE_ROUTER_LOGIN", "of the commands")
    assert load_settings().sync.config_url == "https://config.test/router.json"
