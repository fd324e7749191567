"""The files of the page, read once, each with what a browser has to be told about it."""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Final

INDEX: Final = "index.html"
_MEDIA_TYPES: Final = {
    "html": "text/html",
    "js": "text/javascript",
    "css": "text/css",
    "svg": "image/svg+xml",
}


@dataclass(slots=True, frozen=True)
class Asset:
    content: bytes
    media_type: str
    etag: str


def load_assets() -> Mapping[str, Asset]:
    """Every file that a browser may ask for, by its path below the package. Licences and notes are not among them."""
    return dict(_assets(files("flowcatalyst.dashboard"), ""))


def _assets(folder: Traversable, prefix: str) -> Iterator[tuple[str, Asset]]:
    for entry in folder.iterdir():
        if entry.is_dir():
            yield from _assets(entry, f"{prefix}{entry.name}/")
        elif (media_type := _MEDIA_TYPES.get(entry.name.rpartition(".")[2])) is not None:
            content = entry.read_bytes()
            yield prefix + entry.name, Asset(content, media_type, f'"{hashlib.sha256(content).hexdigest()[:32]}"')
