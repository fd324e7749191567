"""What `flowcatalyst up` and `router` say at their start."""

from pathlib import Path

import pytest

from flowcatalyst.app.router import App
from flowcatalyst.cli.run import _doing, tell_of_missing_files
from flowcatalyst.control.router_config import RouterConfig
from flowcatalyst.control.settings import Settings, SyncSettings


def test_a_router_without_a_queue_does_not_say_that_it_routes(tmp_path: Path) -> None:
    app = App(Settings(data_dir=tmp_path))
    assert _doing(app) == "is routing"
    app.config = RouterConfig()
    assert _doing(app) == "runs, but has no queue to read (its log says why)"


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
