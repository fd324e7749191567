"""Subscriptions in requests and answers. A secret is shown once, by whatever made it, and never again."""

from collections.abc import Container
from datetime import datetime
from typing import Annotated, Any, Final, Union, get_type_hints

import msgspec

from flowcatalyst.api.secrets import mask_headers, mask_target
from flowcatalyst.core.message import DEFAULT_POOL, DispatchMode
from flowcatalyst.dispatch.catalog import Catalog, Kept
from flowcatalyst.dispatch.catalog_entries import StoredSubscription
from flowcatalyst.dispatch.job import DEFAULT_RETRY_DELAYS_S, as_time
from flowcatalyst.dispatch.subscription import EventTypeBinding, Subscription, SubscriptionStatus

MAX_SECRET_CHARS: Final = 128
Secret = Annotated[str, msgspec.Meta(extra_json_schema={"maxLength": MAX_SECRET_CHARS})]


class NewSubscription(Subscription, rename="camel", forbid_unknown_fields=True, frozen=True, kw_only=True):
    """A subscription as its owner writes it. `secret` is one that the receiver knows already, `whsec_` and base64 of 24
    to 64 bytes; without it one is made."""

    secret: Secret | None = None


# Every field but the code, as it is there or left out.
_CHANGEABLE: Final = [
    (name, Union[kind, msgspec.UnsetType], msgspec.UNSET)  # noqa: UP007 - of types that are only known here
    for name, kind in get_type_hints(Subscription, include_extras=True).items()
    if name != "code"
]
SubscriptionChange: Final = msgspec.defstruct(
    "SubscriptionChange",
    _CHANGEABLE,
    rename="camel",
    forbid_unknown_fields=True,
    kw_only=True,
    namespace={"__doc__": "What to change about a subscription; what is left out stays as it is."},
)


class SecretView(msgspec.Struct, rename="camel"):
    """That there is a secret, since when, and until when it signs; null: until it is rotated."""

    created_at: datetime | None
    until: datetime | None


class SubscriptionView(msgspec.Struct, rename="camel", kw_only=True):
    """A subscription. The query of its target and headers that may be secrets are masked: what comes back masked in a
    PUT or PATCH stays as it is.

    `problem` says why its webhooks cannot be signed here, so that they wait. `note` says that no pool has its
    dispatchPoolCode. `undecidedEvents` were taken by this
    process although a filter could not be decided.
    """

    code: str
    name: str | None
    status: SubscriptionStatus
    target_url: str
    event_types: list[EventTypeBinding]
    filters: list[dict[str, Any]]
    mode: DispatchMode
    sequence: int
    dispatch_pool_code: str
    timeout_seconds: float
    max_retries: int
    retry_delays_seconds: list[float]
    delay_seconds: float
    max_age_seconds: float | None
    data_only: bool
    headers: dict[str, str]
    secrets: list[SecretView]
    problem: str | None
    note: str | None
    undecided_events: int
    revision: int
    created_at: datetime | None
    updated_at: datetime | None

    @classmethod
    def of(
        cls, catalog: Catalog, kept: Kept[StoredSubscription], wall: float, pools: Container[str]
    ) -> "SubscriptionView":
        """`pools` are those of the configuration."""
        return cls(**_shown(catalog, kept, wall, pools))


class SubscriptionWithSecret(SubscriptionView, rename="camel", kw_only=True):
    """A subscription and its new secret, which is shown this once."""

    secret: str

    @classmethod
    def with_secret(
        cls, catalog: Catalog, kept: Kept[StoredSubscription], wall: float, pools: Container[str], secret: str
    ) -> "SubscriptionWithSecret":
        return cls(**_shown(catalog, kept, wall, pools), secret=secret)


class SubscriptionPage(msgspec.Struct, rename="camel"):
    """Subscriptions by code. `next` is the cursor of the next page; null if there is none."""

    items: list[SubscriptionView]
    next: str | None


def _shown(catalog: Catalog, kept: Kept[StoredSubscription], wall: float, pools: Container[str]) -> dict[str, Any]:
    one = kept.document
    return {
        "code": one.code,
        "name": one.name,
        "status": one.status,
        "target_url": mask_target(one.target_url),
        "event_types": list(one.event_types),
        "filters": list(one.filters),
        "mode": one.mode,
        "sequence": one.sequence,
        "dispatch_pool_code": one.dispatch_pool_code,
        "timeout_seconds": one.timeout_seconds,
        "max_retries": one.max_retries,
        "retry_delays_seconds": list(one.retry_delays_seconds or DEFAULT_RETRY_DELAYS_S),
        "delay_seconds": one.delay_seconds,
        "max_age_seconds": one.max_age_seconds,
        "data_only": one.data_only,
        "headers": mask_headers(one.headers),
        "secrets": [SecretView(as_time(secret.created_at), as_time(secret.until)) for secret in one.signing(wall)],
        "problem": catalog.problem_with_secrets(one.code) or None,
        "note": _note(catalog, one.dispatch_pool_code, pools),
        "undecided_events": catalog.matcher.undecided.get(one.code, 0),
        "revision": kept.revision,
        "created_at": as_time(kept.created_at),
        "updated_at": as_time(kept.updated_at),
    }


def _note(catalog: Catalog, pool: str, pools: Container[str]) -> str | None:
    if pool == DEFAULT_POOL or pool in pools or pool in catalog.pools:
        return None
    return f"There is no pool {pool} here: its jobs go through {DEFAULT_POOL}, with a warning, until there is."


def unmasked(asked: Subscription, before: Subscription) -> dict[str, Any]:
    """What came back as it is shown, masked, is what it was."""
    headers = mask_headers(before.headers)
    return {
        "target_url": before.target_url if asked.target_url == mask_target(before.target_url) else asked.target_url,
        "headers": {
            name: before.headers[name] if value == headers.get(name) else value for name, value in asked.headers.items()
        },
    }
