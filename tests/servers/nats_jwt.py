"""An operator, its accounts and a user for a NATS server that knows its users by signed tokens (JWT)."""

import base64
import json
import os
import time
from typing import Any

import nkeys  # type: ignore[import-untyped]

NO_LIMITS = {"subs": -1, "data": -1, "payload": -1}
ACCOUNT_LIMITS = {
    **NO_LIMITS,
    "imports": -1,
    "exports": -1,
    "wildcards": True,
    "conn": -1,
    "leaf": -1,
    "mem_storage": -1,
    "disk_storage": -1,
    "streams": -1,
    "consumer": -1,
}
ANYTHING: dict[str, Any] = {"pub": {}, "sub": {}}


class Signer:
    """Whoever has a key: an operator, an account or a user."""

    def __init__(self, prefix: int) -> None:
        self.seed = nkeys.encode_seed(os.urandom(32), prefix)
        self._pair = nkeys.from_seed(bytearray(self.seed))
        self.public = self._pair.public_key.decode()

    def token(self, about: str, kind: str, claims: dict[str, Any]) -> str:
        """Says something about the holder of a key."""
        header = {"typ": "JWT", "alg": "ed25519-nkey"}
        body = {
            "jti": os.urandom(16).hex(),
            "iat": int(time.time()),
            "iss": self.public,
            "sub": about,
            "name": kind,
            "nats": {**claims, "type": kind, "version": 2},
        }
        signed = f"{_encoded(json.dumps(header).encode())}.{_encoded(json.dumps(body).encode())}"
        return f"{signed}.{_encoded(self._pair.sign(signed.encode()))}"


class Operator:
    """Trusts one account for messages and one for the server itself."""

    def __init__(self) -> None:
        self._operator = Signer(nkeys.PREFIX_BYTE_OPERATOR)
        self._account = Signer(nkeys.PREFIX_BYTE_ACCOUNT)
        self._system = Signer(nkeys.PREFIX_BYTE_ACCOUNT)

    def configuration(self) -> dict[str, Any]:
        """What the server has to know."""
        messages = {"limits": ACCOUNT_LIMITS, "default_permissions": ANYTHING}
        system = {"limits": {**ACCOUNT_LIMITS, "mem_storage": 0, "disk_storage": 0}, "default_permissions": ANYTHING}
        return {
            "operator": self._operator.token(self._operator.public, "operator", {}),
            "system_account": self._system.public,
            "resolver": "MEMORY",
            "resolver_preload": {
                self._account.public: self._operator.token(self._account.public, "account", messages),
                self._system.public: self._operator.token(self._system.public, "account", system),
            },
        }

    def credentials(self) -> str:
        """The file of a new user."""
        user = Signer(nkeys.PREFIX_BYTE_USER)
        token = self._account.token(user.public, "user", {**ANYTHING, **NO_LIMITS})
        return (
            f"-----BEGIN NATS USER JWT-----\n{token}\n------END NATS USER JWT------\n\n"
            f"-----BEGIN USER NKEY SEED-----\n{user.seed.decode()}\n------END USER NKEY SEED------\n"
        )


def _encoded(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()
