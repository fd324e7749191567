"""Fixtures of more than one module here."""

from pathlib import Path

import pytest


@pytest.fixture
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in which the test runs: no settings file is there."""
    monkeypatch.chdir(tmp_path)
    return tmp_path
