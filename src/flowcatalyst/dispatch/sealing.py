"""Secrets at rest: sealed with a key that is not in the database, so that a copy of the database tells none of them.

AES-256-GCM. A sealed text names the key that sealed it, by the beginning of a hash, so that a key that is missing can
be told from a text that is damaged; and it opens only for what it was sealed about, so that nobody can move one secret
to the place of another.
"""

import base64
import binascii
import hashlib
import os
import secrets
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from flowcatalyst.core.errors import FlowCatalystError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

KEY_BYTES: Final = 32
NONCE_BYTES: Final = 12
KEY_ID_BYTES: Final = 8
SETTING: Final = "platform.secret_key"

_VERSION: Final = b"\x01"
_HEAD_BYTES: Final = len(_VERSION) + KEY_ID_BYTES
_KEY_ID_OF: Final = b"flowcatalyst key id\0"


class SealError(FlowCatalystError):
    """A secret cannot be sealed or opened here: look at platform.secret_key."""


def new_secret_key() -> str:
    """A key as the settings take it."""
    return base64.b64encode(secrets.token_bytes(KEY_BYTES)).decode()


def read_secret_keys(text: str) -> list[bytes]:
    """Keys, the newest first, separated by commas or lines. Raises `ValueError` with words that repeat none of them."""
    keys: list[bytes] = []
    for place, one in enumerate(text.replace(",", "\n").split(), 1):
        try:
            key = base64.b64decode(one, validate=True)
        except (binascii.Error, ValueError):  # ValueError: it is not ASCII
            key = b""
        if len(key) != KEY_BYTES:
            what = f"as number {place} something that is not the base64 of {KEY_BYTES} bytes"
            raise ValueError(f"has {what}: `flowcatalyst secret-key` makes a key")
        if key not in keys:
            keys.append(key)
    if not keys:
        raise ValueError("has no key: `flowcatalyst secret-key` makes one")
    return keys


def key_id(key: bytes) -> bytes:
    return hashlib.sha256(_KEY_ID_OF + key).digest()[:KEY_ID_BYTES]


class Keys(Protocol):
    """Where keys come from. Both raise `SealError` where there are none."""

    def newest(self) -> bytes:
        """The one to seal with."""

    def with_id(self, wanted: bytes) -> bytes:
        """The one that sealed something."""


class GivenKeys:
    """Of the settings, the newest first."""

    def __init__(self, keys: Sequence[bytes]) -> None:
        if not keys or any(len(key) != KEY_BYTES for key in keys):
            raise ValueError(f"a key has {KEY_BYTES} bytes, and one is needed")
        self._newest = keys[0]
        self._by_id = {key_id(key): key for key in keys}

    def newest(self) -> bytes:
        return self._newest

    def with_id(self, wanted: bytes) -> bytes:
        try:
            return self._by_id[wanted]
        except KeyError:
            raise SealError(
                f"this secret was sealed with another key than {SETTING} has now: add the key that it had, behind the "
                "present one, or give the subscription a new secret"
            ) from None


class NoKeys:
    """Of a process that has none, though others work on the same database: a key of its own would be of no use."""

    def newest(self) -> bytes:
        raise SealError(
            f"{SETTING} is not set, so that no secret can be kept: set it to what `flowcatalyst secret-key` prints, "
            "the same in all processes on this database"
        )

    def with_id(self, wanted: bytes) -> bytes:
        raise SealError(
            f"{SETTING} is not set, so that no secret can be read: set it to the key that the other processes on this "
            "database have"
        )


class KeyFile:
    """A file with a key to a line, the newest first. It is made when the first secret has to be sealed, and never
    again: beside secrets that it cannot open, a new one would hide that theirs is lost.

    Another process, or a person, may have changed it since it was read; so it is read whenever a key is needed. That
    is seldom: who opens secrets remembers them.
    """

    def __init__(self, path: Path, has_sealed: Callable[[], bool] = lambda: False) -> None:
        """`has_sealed`: whether there are secrets already."""
        self._path = path
        self._has_sealed = has_sealed

    def newest(self) -> bytes:
        if not self._path.exists():
            if self._has_sealed():
                raise self._gone()
            self._make()
        return self._read()[0]

    def with_id(self, wanted: bytes) -> bytes:
        if not self._path.exists():
            raise self._gone()
        for key in self._read():
            if key_id(key) == wanted:
                return key
        raise SealError(
            f"this secret was sealed with a key that {self._path} does not have: add it there, in a line of its own, "
            "or give the subscription a new secret"
        )

    def _read(self) -> list[bytes]:
        try:
            return read_secret_keys(self._path.read_bytes().decode("ascii", "replace"))
        except OSError as error:
            raise SealError(
                f"{self._path} cannot be read ({error.strerror}): the key of all secrets is in it"
            ) from None
        except ValueError as error:
            raise SealError(
                f"{self._path} cannot be used: it {error}, but only put back opens what is sealed"
            ) from None

    def _gone(self) -> SealError:
        return SealError(
            f"{self._path}, the key of all secrets, is gone: put it back, or restore it from a backup; if it is lost, "
            "write into it what `flowcatalyst secret-key` prints, and rotate the secret of each subscription"
        )

    def _make(self) -> None:
        """Whole and on the disk before anybody sees it, and never in the place of one that another process made."""
        new = self._path.with_name(f".{self._path.name}-{secrets.token_hex(8)}")
        try:
            descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            try:
                os.write(descriptor, f"{new_secret_key()}\n".encode())
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            try:
                os.link(new, self._path)
            except FileExistsError:
                return
            finally:
                new.unlink()
            folder = os.open(self._path.parent, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        except OSError as error:
            raise SealError(
                f"{self._path}, the key of all secrets, cannot be made ({error.strerror}): make its folder writable, "
                f"or set {SETTING}"
            ) from None


class Sealer:
    """Seals and opens secrets. What they are `about` (the code of their subscription) is not in the sealed text."""

    def __init__(self, keys: Keys | bytes) -> None:
        self._keys = GivenKeys([keys]) if isinstance(keys, bytes) else keys

    def seal(self, text: str, about: str) -> str:
        """Base64. Raises `SealError` if there is no key here."""
        key = self._keys.newest()
        head, nonce = _VERSION + key_id(key), secrets.token_bytes(NONCE_BYTES)
        sealed = _cipher(key).encrypt(nonce, text.encode(), head + about.encode())
        return base64.b64encode(head + nonce + sealed).decode()

    def open(self, sealed: str, about: str) -> str:
        """Raises `SealError` if it was sealed with a key that is not here, about something else, or is damaged."""
        from cryptography.exceptions import InvalidTag

        content = _content(sealed)
        head, rest = content[:_HEAD_BYTES], content[_HEAD_BYTES:]
        cipher = _cipher(self._keys.with_id(head[len(_VERSION) :]))
        try:
            return cipher.decrypt(rest[:NONCE_BYTES], rest[NONCE_BYTES:], head + about.encode()).decode()
        except InvalidTag:
            raise _damaged() from None

    def problem_with(self, sealed: Iterable[str]) -> str:
        """Why some of these cannot be opened here, as far as their keys tell; empty if they can."""
        try:
            for wanted in {self.key_id_of(one) for one in sealed}:
                self._keys.with_id(wanted)
        except SealError as error:
            return str(error)
        return ""

    def newest_id(self) -> bytes:
        """Of the key that seals now. What another one sealed should be sealed again, so that older ones can go."""
        return key_id(self._keys.newest())

    def key_id_of(self, sealed: str) -> bytes:
        """Of the key that sealed it. Raises `SealError` if it is damaged."""
        return _content(sealed)[len(_VERSION) : _HEAD_BYTES]


def _content(sealed: str) -> bytes:
    try:
        content = base64.b64decode(sealed, validate=True)
    except (binascii.Error, ValueError):
        raise _damaged() from None
    if len(content) <= _HEAD_BYTES + NONCE_BYTES:
        raise _damaged()
    if not content.startswith(_VERSION):
        raise SealError("this secret was sealed by a newer version of FlowCatalyst: run that one")
    return content


def _damaged() -> SealError:
    return SealError("this secret was changed since it was sealed: restore it from a backup, or make a new one")


def _cipher(key: bytes) -> "AESGCM":
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # only who has secrets needs it

    return AESGCM(key)
