import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from flowcatalyst.app.data_folder import problem_with_folder

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
