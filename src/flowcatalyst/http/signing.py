"""Signatures of outgoing webhooks, by Standard Webhooks. Pure: the time comes in as an argument."""

import secrets as dice
from collections.abc import Sequence
from typing import Final

from flowcatalyst.core.webhook import LEAST_SECRET_BYTES, MOST_SECRET_BYTES, is_id, key_of, secret_of, signature

SECRET_BYTES: Final = 32


def sign(webhook_id: str, timestamp: int, body: bytes, secrets: Sequence[str]) -> str:
    """The value of `webhook-signature`: one signature for each secret, in their order (the newest first).

    While a rotation overlaps there are two, so that a receiver may know either. Raises `InvalidSecretError`, and
    `ValueError` if there is no secret or the id cannot be signed.
    """
    if not secrets:
        raise ValueError("there is no secret to sign with")
    if not is_id(webhook_id):
        raise ValueError("a webhook id has to be printable ASCII without spaces and full stops")
    return " ".join(signature(key_of(secret), webhook_id, timestamp, body) for secret in secrets)


def new_secret(size: int = SECRET_BYTES) -> str:
    """A secret of so many random bytes."""
    if not LEAST_SECRET_BYTES <= size <= MOST_SECRET_BYTES:
        raise ValueError(f"a secret has {LEAST_SECRET_BYTES} to {MOST_SECRET_BYTES} bytes")
    return secret_of(dice.token_bytes(size))
