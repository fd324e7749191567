"""Tokens of jobs that are out: who has one may ask for one attempt at one job, once, and for nothing else. Pure.

A token is a ticket and its end, with an HMAC by a key that is derived from platform.secret_key for this alone. It
names its key, so that those of before a rotation are good as long as the old key is there.
"""

import base64
import binascii
import hmac
from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec

from flowcatalyst.core.errors import FlowCatalystError
from flowcatalyst.dispatch.sealing import KEY_ID_BYTES, Keys, SealError, key_id
from flowcatalyst.dispatch.store.platform_contract import Ticket

_LABEL: Final = b"flowcatalyst token of a job that is out, 1"  # no other use of the secret key gives the same keys
_MAC_BYTES: Final = 32
_PREFIX: Final = "fcj1."
MAX_TOKEN_CHARS: Final = 4096

_claims: Final = msgspec.json.Decoder(tuple[str, int, int, int, float])


class InvalidTokenError(FlowCatalystError):
    """This token was not made by this platform."""


class Permit(NamedTuple):
    """What a token says."""

    ticket: Ticket
    until: float  # wall time


class Tokens:
    """Makes and reads tokens. `SealError` where no key can be had."""

    def __init__(self, keys: Keys) -> None:
        self._keys = keys
        self._derived: dict[bytes, bytes] = {}  # by the id of the secret key; there are only as many as there are keys

    def make(self, tickets: Sequence[Ticket], until: float) -> list[str]:
        secret_key = self._keys.newest()
        name = key_id(secret_key)
        derived = self._derived.setdefault(name, _derived(secret_key))
        tokens = []
        for ticket in tickets:
            said = name + msgspec.json.encode((*ticket, until))
            tokens.append(_PREFIX + base64.urlsafe_b64encode(_mac(derived, said) + said).decode())
        return tokens

    def read(self, token: str) -> Permit:
        """Raises `InvalidTokenError`, whatever is wrong with it. Whether its time is over is for the caller to say."""
        if len(token) > MAX_TOKEN_CHARS or not token.startswith(_PREFIX):
            raise InvalidTokenError
        try:
            content = base64.b64decode(token[len(_PREFIX) :], altchars=b"-_", validate=True)
        except (binascii.Error, ValueError):  # ValueError: it is not ASCII
            raise InvalidTokenError from None
        mac, said = content[:_MAC_BYTES], content[_MAC_BYTES:]
        if not hmac.compare_digest(mac, _mac(self._key_named(said[:KEY_ID_BYTES]), said)):
            raise InvalidTokenError
        job, lane, place, epoch, until = _claims.decode(said[KEY_ID_BYTES:])
        return Permit(Ticket(job, lane, place, epoch), until)

    def _key_named(self, name: bytes) -> bytes:
        if name not in self._derived:
            try:
                self._derived[name] = _derived(self._keys.with_id(name))
            except SealError:
                raise InvalidTokenError from None
        return self._derived[name]


def _derived(secret_key: bytes) -> bytes:
    return hmac.digest(secret_key, _LABEL, "sha256")


def _mac(key: bytes, said: bytes) -> bytes:
    return hmac.digest(key, said, "sha256")
