"""A path that this user may not reach is one sentence and exit code 2, in every command."""

import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

SOMEBODY = 65534
# Everything is loaded before: the checkout may be closed to others as well.
COMMAND = """
import encodings.idna, os, sys  # what is loaded later cannot be read by everybody
from flowcatalyst.cli.main import command_line, main
command_line()
if os.getuid() == 0:
    os.setgroups([])
    os.setresgid({user}, {user}, {user})
    os.setresuid({user}, {user}, {user})
main()
"""
EXAMPLE = Path(__file__).parents[2] / "examples" / "scenarios" / "noisy-neighbour.toml"


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder that others may enter, unlike those of pytest, with one that they may not, `closed`."""
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        for name in ("closed", "open"):
            (folder / name / "data").mkdir(parents=True)
            (folder / name / "data" / "queue.db").touch()
        shutil.copy(EXAMPLE, folder / "open" / "scenario.toml")
        with tarfile.open(folder / "open" / "backup.tar", "w") as tar:
            tar.add(folder / "open" / "data" / "queue.db", "queue.db")
        subprocess.run(["chmod", "-R", "a+rwX", made], check=True)
        (folder / "closed").chmod(0o000)
        yield folder
        (folder / "closed").chmod(0o700)


def as_somebody(args: str, place: Path) -> tuple[int, str, str]:
    done = subprocess.run(
        [sys.executable, "-c", COMMAND.format(user=SOMEBODY), *args.format(place=place).split()],
        cwd=place,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize(
    "command",
    [
        "up --port 0 --data-dir {place}/closed/data",
        "up --port 0 --config {place}/closed/flowcatalyst.toml",
        "router --port 0 --data-dir {place}/open --config-url {place}/closed/router.json",
        "publish --target http://127.0.0.1:9/ --data-dir {place}/closed/data",
        "seed --data-dir {place}/closed/data",
        "backup {place}/open/new.tar --data-dir {place}/closed/data",
        "backup {place}/closed/new.tar --data-dir {place}/open/data",
        "restore {place}/closed/backup.tar --data-dir {place}/open/new",
        "restore {place}/open/backup.tar --data-dir {place}/closed/data",
        "simulate {place}/closed/scenario.toml",
        "simulate {place}/open/scenario.toml --json {place}/closed/report.json",
    ],
)
def test_a_path_that_this_user_may_not_reach_is_one_sentence_and_code_2(place: Path, command: str) -> None:
    code, output, said = as_somebody(command, place)
    assert (code, output) == (2, ""), said
    assert said.startswith("flowcatalyst: ")
    assert said.count("\n") == 1
    assert f"{place}/closed" in said
    assert "Permission denied" in said


def test_a_check_tells_of_a_data_folder_and_a_log_that_this_user_may_not_reach(place: Path) -> None:
    (place / "open" / "settings.toml").write_text(f'[log]\nfile = "{place}/closed/log"\n')
    code, report, said = as_somebody("check --config {place}/open/settings.toml --data-dir {place}/closed/data", place)
    assert (code, said) == (2, "")
    assert f"data folder  {place}/closed/data: cannot be created ({place}/closed: Permission denied)" in report
    assert f"log file  {place}/closed/log: cannot be opened: Permission denied" in report


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("up --demo --port 0", "data folder data/demo-0 cannot be created ("),
        ("publish --target http://127.0.0.1:9/", "data/queue.db cannot be used (Permission denied)"),
        ("backup {place}/open/new.tar", "data/queue.db cannot be used (Permission denied)"),
    ],
)
def test_a_checkout_whose_data_folder_is_of_somebody_else_is_one_sentence(place: Path, command: str, said: str) -> None:
    (place / "data").mkdir()
    (place / "data").chmod(0o000)
    code, _, errors = as_somebody(command, place)
    assert (code, errors.count("\n")) == (2, 1)
    assert errors.startswith(f"flowcatalyst: {said}")
