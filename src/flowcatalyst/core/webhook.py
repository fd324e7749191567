"""Standard Webhooks: the names of its headers, its secrets, and the signature of one request. Pure.

Standard library only: what an application imports to check signatures loads this and nothing of the server.
"""

import base64
import binascii
import hashlib
import hmac
import re
from functools import lru_cache
from typing import Final

from flowcatalyst.core.errors import FlowCatalystError

ID: Final = "webhook-id"
TIMESTAMP: Final = "webhook-timestamp"
SIGNATURE: Final = "webhook-signature"
SECRET_PREFIX: Final = "whsec_"  # noqa: S105  # what a secret begins with
LEAST_SECRET_BYTES: Final = 24
MOST_SECRET_BYTES: Final = 64
MAX_ID_CHARS: Final = 256

_VERSION: Final = "v1"
_ID: Final = re.compile(r"[!-\-/-~]+")  # printable ASCII but the full stop


class InvalidSecretError(FlowCatalystError):
    """A secret is not one that webhooks can be signed with."""


def is_id(text: str) -> bool:
    """Whether a request can be signed under this id.

    A full stop separates id, timestamp and body in what is signed. In an id it would let one signature fit two
    requests.
    """
    return len(text) <= MAX_ID_CHARS and _ID.fullmatch(text) is not None


def key_of(secret: str) -> bytes:
    """The bytes that a secret stands for. An error never repeats any of it."""
    if not secret.startswith(SECRET_PREFIX):
        raise InvalidSecretError(f"a webhook secret has to begin with {SECRET_PREFIX}, and this one does not")
    try:
        key = base64.b64decode(secret.removeprefix(SECRET_PREFIX), validate=True)
    except (binascii.Error, ValueError):  # ValueError: it is not ASCII
        raise InvalidSecretError(f"what follows {SECRET_PREFIX} in a webhook secret has to be base64") from None
    if not LEAST_SECRET_BYTES <= len(key) <= MOST_SECRET_BYTES:
        raise InvalidSecretError(
            f"a webhook secret has to stand for {LEAST_SECRET_BYTES} to {MOST_SECRET_BYTES} bytes, "
            f"and this one stands for {len(key)}"
        )
    return key


def secret_of(key: bytes) -> str:
    """The secret that stands for these bytes."""
    return SECRET_PREFIX + base64.b64encode(key).decode()


def signature(key: bytes, webhook_id: str, timestamp: int, body: bytes) -> str:
    """`v1,` and the base64 of an HMAC-SHA256."""
    signed = _keyed(key).copy()
    signed.update(b"%b.%d.%b" % (webhook_id.encode(), timestamp, body))
    return f"{_VERSION},{base64.b64encode(signed.digest()).decode()}"


@lru_cache(1024)
def _keyed(key: bytes) -> hmac.HMAC:
    """Not `hmac.digest`: that gives up the interpreter's lock for the shortest of bodies, and has to win it back from
    whoever writes to a database meanwhile."""
    return hmac.new(key, digestmod=hashlib.sha256)
