"""Paths that hold the name of a group or of a message, which may hold anything: colons, slashes, a question mark.

A server decodes a path before it is routed, so a slash in a name would split it. Here the name becomes one segment
again, percent-encoded; handlers decode it.
"""

from typing import Final
from urllib.parse import quote, unquote_to_bytes

_OF_GROUPS: Final = ("hold", "release", "retry-head", "skip-head")
ACTIONS: Final = {
    "/api/message-groups/": _OF_GROUPS,
    "/monitoring/groups/": _OF_GROUPS,
    "/monitoring/messages/": ("retry", "skip"),
    "/monitoring/explain/": (),
}


def with_one_segment(raw_path: bytes) -> str | None:
    """The path to route by; None if it holds no name.

    A last segment that says what is to be done belongs to no name, unless it is part of it percent-encoded.
    """
    path = raw_path.partition(b"?")[0].decode("latin-1")
    prefix = next((one for one in ACTIONS if path.startswith(one)), None)
    if prefix is None:
        return None
    name, _, last = path.removeprefix(prefix).rpartition("/")
    if not name or last not in ACTIONS[prefix]:
        name, last = path.removeprefix(prefix), ""
    if not name:
        return None
    return f"{prefix}{quote(unquote_to_bytes(name), safe='')}{last and '/'}{last}"
