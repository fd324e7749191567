"""What `flowcatalyst up` and `router` say at their start."""

from pathlib import Path
from typing import Any

import pytest

from flowcatalyst.app.router import App
from flowcatalyst.cli.run import _doing, _offered, tell_of_missing_files
from flowcatalyst.control.router_config import RouterConfig
from flowcatalyst.control.settings import Settings, SyncSettings
from flowcatalyst.core.credentials import hash_key, hash_password


def test_a_router_without_a_queue_does_not_say_that_it_routes(tmp_path: Path) -> None:
    app = App(Settings(data_dir=tmp_path))
    assert _doing(app) == "is routing"
    app.config = RouterConfig()
    assert _doing(app) == "runs, but has no queue to read (its log says why)"


@pytest.mark.parametrize(
    ("auth", "offered"),
    [
        ({}, "API and live page"),
        ({"mode": "basic", "admin": [f"ann:{hash_password(b'12345678')}"]}, "API and live page"),
        ({"mode": "api_key", "admin": [hash_key(b"key")]}, "API"),
    ],
)
def test_the_live_page_is_offered_where_a_browser_can_open_it(auth: dict[str, Any], offered: str) -> None:
    assert _offered(Settings.model_validate({"auth": auth})) == offered


def test_a_configuration_file_that_does_not_exist_is_named_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    there = tmp_path / "there.json"
    there.touch()
    files = f"{there}, {tmp_path / 'gone.json'}, http://127.0.0.1:9/x.json"
    tell_of_missing_files(Settings(data_dir=tmp_path, sync=SyncSettings(config_url=files)))
    said = (
        f"flowcatalyst: configuration file {tmp_path / 'gone.json'} does not exist; it is tried 12 times, 5 s apart\n"
    )
    assert capsys.readouterr().err == said
