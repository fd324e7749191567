"""The secrets of a subscription: the first one, and those that follow it."""

from collections.abc import Callable
from typing import Final

import msgspec

from flowcatalyst.core.errors import FlowCatalystError
from flowcatalyst.core.webhook import key_of
from flowcatalyst.dispatch.catalog_entries import MAX_SECRETS, SealedSecret, StoredSubscription
from flowcatalyst.dispatch.sealing import Sealer, SealError

MAX_OVERLAP_S: Final = 30 * 86_400.0
DEFAULT_OVERLAP_S: Final = 86_400.0


class TooManySecretsError(FlowCatalystError):
    """So many secrets of a subscription sign at a time that there cannot be another one."""


def sealed(sealer: Sealer, code: str, secret: str, now: float) -> SealedSecret:
    """A secret as it is kept. Raises `InvalidSecretError`, or `SealError` where there is no key to seal it with."""
    key_of(secret)
    return SealedSecret(sealed=sealer.seal(secret, code), created_at=now)


def rotated(
    sealer: Sealer, secret: SealedSecret, now: float, overlap_s: float
) -> Callable[[StoredSubscription], StoredSubscription]:
    """How a subscription gets another secret: those before sign on beside it for so long. One that cannot be opened any
    more could sign nothing, and goes. Raises `TooManySecretsError`."""

    def opens(one: SealedSecret, code: str) -> bool:
        try:
            sealer.open(one.sealed, code)
        except SealError:
            return False
        return True

    def edit(subscription: StoredSubscription) -> StoredSubscription:
        until = now + overlap_s
        others = [
            msgspec.structs.replace(one, until=until if one.until is None else min(one.until, until))
            for one in subscription.signing(now)
            if overlap_s > 0 and opens(one, subscription.code)
        ]
        if len(others) >= MAX_SECRETS:
            raise TooManySecretsError(
                f"{len(others)} secrets of subscription {subscription.code} sign at the same time: wait until one of "
                "them is over, or give overlapSeconds 0 so that only the new one signs"
            )
        return msgspec.structs.replace(subscription, secrets=(secret, *others))

    return edit
