"""Mutant: one planted bug, and how it is put into a copy of the package."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
PACKAGE = ROOT / "src" / "flowcatalyst"


class Hunter(StrEnum):
    """Who has to catch a mutant."""

    SIMULATION = "simulation"
    MACHINES = "stateful tests"


@dataclass(slots=True, frozen=True)
class Mutant:
    """A bug that a good engineer could write.

    Each edit is (old text, new text); the old text occurs exactly once in the file.
    """

    name: str  # a sentence of what is wrong
    file: str  # under src/flowcatalyst
    edits: tuple[tuple[str, str], ...]
    hunter: Hunter = Hunter.SIMULATION
    missing: str = ""  # what the simulation lacks to catch it; empty: it is caught

    def apply(self, text: str) -> str:
        """The text of the file with the bug in it."""
        for old, new in self.edits:
            found = text.count(old)
            if found != 1:
                raise ValueError(f"{self.name}: {found} places in {self.file} read {old!r}")
            text = text.replace(old, new)
        return text


@contextmanager
def mutated_package(mutant: Mutant | None) -> Iterator[Path]:
    """A folder to import from, which holds a copy of the package with the bug in it; None: without any."""
    with tempfile.TemporaryDirectory(prefix="mutant-") as folder:
        copy = Path(folder) / PACKAGE.name
        shutil.copytree(PACKAGE, copy)  # compiled files too: Python takes them as long as the source is as old
        if mutant is not None:
            file = copy / mutant.file
            mutated = mutant.apply(file.read_text())
            file.unlink()
            file.write_text(mutated)
            for compiled in (file.parent / "__pycache__").glob(f"{file.stem}.*.pyc"):
                compiled.unlink()
        yield copy.parent
