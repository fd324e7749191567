"""Settings: where they come from, and what a wrong one says."""

from pathlib import Path

import pytest

from flowcatalyst.config import describe_settings, load_settings
from flowcatalyst.errors import ConfigurationError

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
    ],
)
def test_a_wrong_setting_is_named_in_one_sentence(empty_folder: Path, toml: str, said: str) -> None:
    (empty_folder / "flowcatalyst.toml").write_text(toml)
    with pytest.raises(ConfigurationError) as caught:
        load_settings()
    assert said in str(caught.value)
    assert "flowcatalyst.toml" in str(caught.value)
    assert "\n" not in str(caught.value)


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
