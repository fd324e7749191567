"""Paths that hold the name of a group, which may hold anything: colons, slashes, a question mark.

A server decodes a path before it is routed, so a slash in a name would split it. Here the name becomes one segment
again, percent-encoded; handlers decode it.
"""

from typing import Final
from urllib.parse import quote, unquote_to_bytes

PREFIX: Final = "/api/message-groups/"
ACTIONS: Final = ("hold", "release", "retry-head", "skip-head")


def with_one_segment(raw_path: bytes) -> str | None:
    """The path to route by; None if it holds no name.

    A last segment that says what is to be done belongs to no name, unless it is part of it percent-encoded.
    """
    path = raw_path.partition(b"?")[0].decode("latin-1")
    if not path.startswith(PREFIX):
        return None
    name, _, last = path.removeprefix(PREFIX).rpartition("/")
    if not name or last not in ACTIONS:
        name, last = path.removeprefix(PREFIX), ""
    if not name:
        return None
    return f"{PREFIX}{quote(unquote_to_bytes(name), safe='')}{last and '/'}{last}"
