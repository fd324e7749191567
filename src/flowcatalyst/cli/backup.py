"""`flowcatalyst backup` and `flowcatalyst restore`: the data folder into one file, and out of it again."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final

import typer

from flowcatalyst.app.data_folder import removed_files
from flowcatalyst.cli.options import DataDir, SettingsFile
from flowcatalyst.control.settings import load_settings
from flowcatalyst.core.errors import StorageError
from flowcatalyst.queues.embedded.store import owners_alive
from flowcatalyst.storage import backup as storage

KIB: Final = 1024
TAR_SUFFIXES: Final = (".tar", ".gz", ".tgz")

BackupFile = Annotated[Path, typer.Argument(metavar="FILE", help="Tar file; compressed if its name ends in .gz")]


def backup(file: BackupFile, data_dir: DataDir = None, config: SettingsFile = None) -> None:
    """Copy the data folder to a new file. A router may run.

    Queue, dead letters, audit trail and dispatch jobs are copied as of one moment. The key of secrets goes along if it
    is in the folder.
    """
    os.umask(0o077)  # messages hold tokens
    folder = load_settings(config, data_dir=data_dir).data_dir
    if problem := removed_files(folder):
        raise StorageError(f"there would be no backup of all data: {problem}")
    copied = storage.back_up(folder, file)
    tar = "" if file.suffix in TAR_SUFFIXES else " It is a tar file, whatever its name says."
    key = ""
    if storage.KEY_FILE in copied:
        key = f" With {storage.KEY_FILE} it can open the secrets of webhooks: keep it where nobody else reads it."
    size = f"{file.stat().st_size / KIB:,.0f} KiB in all"
    print(f"{file} holds {_in_words(copied)} of {folder.absolute()}, {size}.{tar}{key}")


def restore(file: BackupFile, data_dir: DataDir = None, config: SettingsFile = None) -> None:
    """Put a backup into a data folder without a queue. What was delivered since the backup is delivered again."""
    os.umask(0o077)
    storage.require_backup(file)
    folder = load_settings(config, data_dir=data_dir).data_dir
    if alive := owners_alive(folder / "queue.db"):
        who = "a process has" if alive == 1 else f"{alive} processes have"
        raise StorageError(f"{who} the queue of {folder.absolute()} open: stop the router first")
    copied = storage.restore(file, folder)
    print(f"{folder.absolute()} has {_in_words(copied)} of {file} now; a router started on it goes on from there.")


def _in_words(copied: Mapping[str, int]) -> str:
    databases = [f"{name} ({size / KIB:,.0f} KiB)" for name, size in copied.items() if name != storage.KEY_FILE]
    return ", ".join([*databases, *(name for name in copied if name == storage.KEY_FILE)])
