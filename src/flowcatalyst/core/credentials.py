"""Who is let in, as the settings say it: hashes of keys and passwords, and the entries they stand in.

A key is 256 random bits that nobody can guess, so one SHA-256 hides it. A password was chosen by a person, so it is
hashed by scrypt, which makes every guess slow. Neither can be read back from a settings file.
"""

import hashlib
import hmac
import re
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Self

SCRYPT_COST: Final = (2**13, 8, 1)  # n, r, p: about 20 ms and 8 MiB
MAX_SCRYPT_WORK: Final = 2**18  # n * r * p: four times ours, since checks wait for each other
SALT_BYTES: Final = 16
DIGEST_BYTES: Final = 32

_KEY_HASH: Final = re.compile(r"sha256:([0-9a-f]{64})")
_PASSWORD_HASH: Final = re.compile(r"scrypt:(\d{1,7}):(\d{1,4}):(\d{1,4}):((?:[0-9a-f]{2}){8,64}):([0-9a-f]{64})")


class Scope(StrEnum):
    """What credentials are good for. Who may do `admin` may do everything: he could make a key for it."""

    PUBLISH = "publish"
    READ = "read"
    OPERATE = "operate"
    ADMIN = "admin"


class Role(StrEnum):
    """What a caller of the settings may do: a reader reads, an admin does everything."""

    ADMIN = "admin"
    READ_ONLY = "read_only"

    @property
    def scopes(self) -> frozenset[Scope]:
        return frozenset(Scope) if self is Role.ADMIN else frozenset({Scope.READ})


def new_key() -> str:
    return secrets.token_urlsafe(32)


def hash_key(key: bytes) -> str:
    """A key as the settings store it."""
    return f"sha256:{hashlib.sha256(key).hexdigest()}"


def hash_password(password: bytes) -> str:
    """A password as the settings store it, each time with another salt."""
    salt = secrets.token_bytes(SALT_BYTES)
    n, r, p = SCRYPT_COST
    return f"scrypt:{n}:{r}:{p}:{salt.hex()}:{_scrypt(password, salt, n, r, p).hex()}"


def _scrypt(password: bytes, salt: bytes, n: int, r: int, p: int) -> bytes:
    needed_bytes = 128 * r * (n + p + 2)
    return hashlib.scrypt(password, salt=salt, n=n, r=r, p=p, maxmem=needed_bytes, dklen=DIGEST_BYTES)


@dataclass(slots=True, frozen=True)
class PasswordHash:
    """What is stored of a password."""

    n: int
    r: int
    p: int
    salt: bytes
    digest: bytes

    @classmethod
    def parse(cls, text: str) -> Self | None:
        found = _PASSWORD_HASH.fullmatch(text)
        if found is None:
            return None
        n, r, p = (int(number) for number in found.groups()[:3])
        is_power_of_two = n > 1 and n & (n - 1) == 0
        if not is_power_of_two or not 0 < n * r * p <= MAX_SCRYPT_WORK:
            return None
        return cls(n, r, p, bytes.fromhex(found[4]), bytes.fromhex(found[5]))

    def matches(self, password: bytes) -> bool:
        """Slow on purpose."""
        return hmac.compare_digest(_scrypt(password, self.salt, self.n, self.r, self.p), self.digest)

    def stand_in(self) -> Self:
        """A hash that no password matches and that costs the same to check."""
        return type(self)(
            self.n, self.r, self.p, secrets.token_bytes(len(self.salt)), secrets.token_bytes(DIGEST_BYTES)
        )


@dataclass(slots=True, frozen=True)
class Identity:
    """Whose credentials were shown."""

    name: str
    role: Role | None  # None: they are not of the settings
    scopes: frozenset[Scope]

    def may(self, scope: Scope) -> bool:
        return scope in self.scopes or Scope.ADMIN in self.scopes

    @property
    def title(self) -> str:
        """The role, or what stands for one."""
        return self.role or self.scopes_in_words

    @property
    def scopes_in_words(self) -> str:
        return ", ".join(scope for scope in Scope if scope in self.scopes)


@dataclass(slots=True, frozen=True)
class KeyEntry:
    """A key that is let in."""

    role: Role
    digest: bytes

    @property
    def identity(self) -> Identity:
        """A key has no name. The beginning of its hash, as it stands in the settings, tells which one it was."""
        return Identity(f"key {self.digest.hex()[:8]}", self.role, self.role.scopes)


@dataclass(slots=True, frozen=True)
class Account:
    """A name that is let in with its password."""

    role: Role
    name: bytes
    password: PasswordHash

    @property
    def identity(self) -> Identity:
        return Identity(self.name.decode(), self.role, self.role.scopes)


def read_keys(admin: Sequence[str], read_only: Sequence[str]) -> list[KeyEntry]:
    """The entries of mode api_key. Raises `ValueError` with a sentence that repeats none of them."""
    entries: dict[bytes, tuple[str, KeyEntry]] = {}
    for place, role, text in _places(admin, read_only):
        found = _KEY_HASH.fullmatch(text)
        if found is None:
            raise ValueError(f"has no hash of a key at {place}: `flowcatalyst hash-key` makes one")
        digest = bytes.fromhex(found[1])
        if digest in entries:
            raise ValueError(f"has the same key at {entries[digest][0]} and {place}: leave one out")
        entries[digest] = (place, KeyEntry(role, digest))
    return [entry for _, entry in entries.values()]


def read_accounts(admin: Sequence[str], read_only: Sequence[str]) -> list[Account]:
    """The entries of mode basic. Raises `ValueError` with a sentence that repeats none of them."""
    entries: dict[str, tuple[str, Account]] = {}
    for place, role, text in _places(admin, read_only):
        name, _, hashed = text.partition(":")
        password = PasswordHash.parse(hashed)
        if not name or password is None:
            raise ValueError(f"has no name:hash at {place}: `flowcatalyst hash-key --basic NAME` makes one")
        if name in entries:
            raise ValueError(f"has the same name at {entries[name][0]} and {place}: leave one out")
        entries[name] = (place, Account(role, name.encode(), password))
    return [entry for _, entry in entries.values()]


def _places(admin: Sequence[str], read_only: Sequence[str]) -> Iterator[tuple[str, Role, str]]:
    """Every entry with where it stands."""
    for role, texts in ((Role.ADMIN, admin), (Role.READ_ONLY, read_only)):
        for index, text in enumerate(texts):
            yield f"{role}[{index}]", role, text
