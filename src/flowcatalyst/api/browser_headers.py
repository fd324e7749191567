"""What browsers are told about our answers: not to guess a type, not to show them in a frame, and what may run in them.

A page may run and wear exactly the script and the style that stand in it: its policy names their hashes. The dashboard
has none in it and may use our own files. Anything else that gets into a page, whoever put it there, does nothing.
"""

import base64
import hashlib
import re
from typing import Final

from litestar.types import Message, Scope

POLICY: Final = "content-security-policy"

_NOTHING_RUNS: Final = "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
# Of a page without a script or a style in it.
OWN_FILES_POLICY: Final = (
    f"{_NOTHING_RUNS}; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:"
)
_ALWAYS: Final = (
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"same-origin"),  # stricter, and a browser would hide the origin from our own pages too
)
_WITHOUT_POLICY: Final = (*_ALWAYS, (POLICY.encode(), _NOTHING_RUNS.encode()))
_INLINE: Final = re.compile(r"<(script|style)>(.*?)</\1>", re.DOTALL)


async def add_browser_headers(message: Message, scope: Scope) -> None:
    """To be called with each part of each answer, as Litestar's `before_send`."""
    if message["type"] == "http.response.start":
        headers = list(message["headers"])
        has_policy = any(name == POLICY.encode() for name, _ in headers)
        message["headers"] = [*headers, *(_ALWAYS if has_policy else _WITHOUT_POLICY)]


def page_policy(page: str) -> str:
    """The content security policy of a page: it may use what stands in it and talk to this API, nothing else."""
    hashes: dict[str, list[str]] = {"script": [], "style": []}
    for kind, text in _INLINE.findall(page):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        hashes[kind].append(f"'sha256-{digest}'")
    inline = (f"{kind}-src {' '.join(found)}" for kind, found in hashes.items() if found)
    return "; ".join([_NOTHING_RUNS, *inline, "connect-src 'self'", "img-src data:"])
