"""Where tests have their files, and that nothing is left of a run, not even of one that was killed."""

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.support import scratch as module
from tests.support.scratch import CHOSEN, NEEDED_BYTES, PREFIX, NoScratchError, choose, scratch

ROOT = Path(__file__).parents[2]
A_RUN = """
import os, sys
from tests.support.scratch import scratch
with scratch(print) as folder:
    (folder / "file").write_text("x")
    print(folder, flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def plenty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever this machine has."""
    monkeypatch.setattr(module, "_available_bytes", lambda: NEEDED_BYTES)
    monkeypatch.setattr(module, "NEEDED_BYTES", 0)


@pytest.mark.usefixtures("plenty")
def test_files_of_tests_are_in_memory(tmp_path: Path) -> None:
    assert choose({}, memory=tmp_path) == (tmp_path, "")


def test_the_files_of_this_run_are_in_its_folder(tmp_path: Path) -> None:
    assert PREFIX in os.environ["TMPDIR"]
    assert tmp_path.is_relative_to(os.environ["TMPDIR"])
    assert tempfile.gettempdir() == os.environ["TMPDIR"] == os.environ[CHOSEN]


@pytest.mark.usefixtures("plenty")
def test_without_memory_to_write_to_they_are_where_files_usually_are(tmp_path: Path) -> None:
    missing = tmp_path / "shm"
    assert choose({}, memory=missing) == (Path(tempfile.gettempdir()), f"there is no {missing} to write to")


@pytest.mark.parametrize("short", ["folder", "machine"])
def test_too_little_memory_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, short: str) -> None:
    blocks = (1 << 20, 1 << 20, *[1 << 10 if short == "folder" else 1 << 40] * 3, 0, 0, 0, 0, 255)
    monkeypatch.setattr(os, "statvfs", lambda path: os.statvfs_result(blocks))
    monkeypatch.setattr(module, "_available_bytes", lambda: 1 << 30 if short == "machine" else 1 << 40)
    assert choose({}, memory=tmp_path)[1] == f"{tmp_path} has 1.0 GiB, less than the 4 GiB they may take"


@pytest.mark.usefixtures("plenty")
def test_memory_in_which_no_program_starts_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = (4096, 4096, 1 << 30, 1 << 30, 1 << 30, 0, 0, 0, os.ST_NOEXEC, 255)
    monkeypatch.setattr(os, "statvfs", lambda path: os.statvfs_result(blocks))
    assert choose({}, memory=tmp_path)[1] == f"no program can be started in {tmp_path}"


def test_a_folder_that_was_chosen_is_used_or_refused_in_one_sentence(tmp_path: Path) -> None:
    assert choose({CHOSEN: str(tmp_path)}) == (tmp_path, "")
    with pytest.raises(NoScratchError, match=r"TEST_TMPDIR is .*/missing, which is no folder that can be written to"):
        choose({CHOSEN: str(tmp_path / "missing")})


def test_a_run_says_once_that_it_waits_for_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "choose", lambda environment: (tmp_path, "there is no memory"))
    said: list[str] = []
    with scratch(said.append):
        pass
    assert said == [
        f"Tests have their files in {tmp_path}, where they wait for the disk: there is no memory. "
        "TEST_TMPDIR names another folder."
    ]


def test_nothing_is_left_of_a_run_even_if_it_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CHOSEN, str(tmp_path))
    before = tempfile.gettempdir()

    def fail() -> None:
        with scratch(print) as folder:
            Path(tempfile.mkdtemp(), "file").write_text("x")
            assert [*tmp_path.iterdir()] == [folder]
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert [*tmp_path.iterdir()] == []
    assert tempfile.gettempdir() == before


def test_what_a_killed_run_left_is_removed_by_the_next_one_and_what_is_in_use_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CHOSEN, str(tmp_path))
    runs = [
        subprocess.Popen([sys.executable, "-c", A_RUN], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        for _ in range(2)
    ]
    left, used = (Path(run.stdout.readline().decode().strip()) for run in runs if run.stdout)
    runs[0].send_signal(signal.SIGKILL)
    runs[0].communicate()
    assert left.exists()
    with scratch(print):
        assert not left.exists()
        assert (used / "file").exists()
    assert runs[1].communicate(b"")[0] == b""
    assert not used.exists()
