import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from flowcatalyst.app.data_folder import lack_of_space, problem_with_folder, removed_files
from flowcatalyst.queues.embedded.store import OwnerLock

NOBODY = 65534


@contextmanager
def without_privileges() -> Iterator[None]:
    """Root is asked for as somebody else: `os.access` goes by the real user."""
    real, effective, saved = os.getresuid()
    if real == 0:
        os.setresuid(NOBODY, effective, saved)
    try:
        yield
    finally:
        os.setresuid(real, effective, saved)


def test_a_folder_that_is_not_there_is_fine_if_it_can_be_made_and_is_not_made(tmp_path: Path) -> None:
    assert problem_with_folder(tmp_path) == ""
    assert problem_with_folder(tmp_path / "a" / "b") == ""
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_is_named_with_what_is_below_it(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o555)
    with without_privileges():
        assert problem_with_folder(closed) == "cannot be written: change its permissions or choose another"
        below = f"cannot be created ({closed}: Permission denied): choose another"
        assert problem_with_folder(closed / "a") == below
        assert problem_with_folder(closed / "a" / "b") == below


def test_a_full_disk_is_told_where_the_folder_is_or_would_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = os.statvfs(tmp_path)
    full = [*disk]
    full[4] = 1023 * 1024 // disk.f_frsize  # f_bavail
    monkeypatch.setattr(os, "statvfs", lambda path: os.statvfs_result(full))
    for folder in (tmp_path, tmp_path / "a" / "b"):
        assert re.fullmatch(r"the disk is full, with \d+ KiB left: free some space", lack_of_space(folder))
    full[4] = 1024 * 1024 // disk.f_frsize + 1
    assert lack_of_space(tmp_path) == ""
    full[5], full[7] = 100, 0  # f_files, f_favail
    assert "no place for another file" in lack_of_space(tmp_path)


def test_a_queue_that_was_removed_under_a_process_is_told_while_that_lives_and_after_it(tmp_path: Path) -> None:
    lock = OwnerLock(tmp_path / "queue.db", "1-a")
    lock.hold()
    assert "queue.db was removed while a process has it open" in removed_files(tmp_path)
    (tmp_path / "queue.db").touch()
    assert removed_files(tmp_path) == ""
    lock.remove()
    (tmp_path / "queue.db-wal").touch()
    assert removed_files(tmp_path) == ""
    (tmp_path / "queue.db").unlink()
    assert "queue.db is missing, but queue.db-wal is there" in removed_files(tmp_path)


def test_the_lock_of_an_owner_is_released_although_its_folder_cannot_be_written_any_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path, missing_ok: bool = False) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    lock = OwnerLock(tmp_path / "queue.db", "1-a")
    lock.hold()
    monkeypatch.setattr(Path, "unlink", refuse)
    lock.remove()
    assert not lock.is_held()
