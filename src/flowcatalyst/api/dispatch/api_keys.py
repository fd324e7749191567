"""/api/api-keys: who may use the API of the platform, and for what. A key is shown once, by whatever made it."""

from datetime import datetime
from http import HTTPStatus
from typing import Annotated, Any, Final

import msgspec
from litestar import Request, Response, delete, get, post
from litestar.params import PathParameter, QueryParameter

from flowcatalyst.api.bodies import read_json, read_optional_json
from flowcatalyst.api.caller import actor_of
from flowcatalyst.api.dependencies import ServedRouter, TheApp
from flowcatalyst.api.dispatch.platform import platform_of
from flowcatalyst.api.listing import behind, items_that_fit
from flowcatalyst.api.openapi import with_json_body
from flowcatalyst.control.audit import AuditAction
from flowcatalyst.core.credentials import Scope
from flowcatalyst.dispatch.api_keys import (
    DEFAULT_OVERLAP_S,
    MAX_KEYS,
    MAX_NAME_CHARS,
    MAX_OVERLAP_S,
    ApiKeys,
    KeptKey,
)
from flowcatalyst.dispatch.job import as_seconds, as_time

API_KEYS: Final = "/api/api-keys"
MAX_ID_CHARS: Final = 64
KeyId = Annotated[str, PathParameter(max_length=MAX_ID_CHARS, description="Id of the key")]


class NewApiKey(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    """A key to make. `admin` includes all other scopes. Without `expiresAt` it is let in until it is revoked."""

    name: Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_NAME_CHARS)]
    scopes: Annotated[list[Scope], msgspec.Meta(min_length=1, max_length=len(Scope))]
    expires_at: datetime | None = None


class KeyRotation(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    """For how long the key before is let in too."""

    overlap_seconds: Annotated[float, msgspec.Meta(ge=0, le=MAX_OVERLAP_S)] = DEFAULT_OVERLAP_S


class ApiKeyView(msgspec.Struct, rename="camel", kw_only=True):
    """A key, but not what it is. `lastUsedAt` is exact to about a minute. `previousUntil` is until when those before
    the latest rotation are let in; null: they are not."""

    id: str
    name: str
    scopes: list[Scope]
    created_at: datetime | None
    created_by: str
    rotated_at: datetime | None
    previous_until: datetime | None
    expires_at: datetime | None
    last_used_at: datetime | None
    revoked_at: datetime | None

    @classmethod
    def of(cls, kept: KeptKey, wall: float) -> "ApiKeyView":
        return cls(**_fields(kept, wall))


class NewApiKeyView(ApiKeyView, rename="camel", kw_only=True):
    """A key with what it is: keep it, nobody can tell it again."""

    key: str


class ApiKeyList(msgspec.Struct, rename="camel"):
    """Keys, the oldest first; those that were revoked or expired for 90 days too. `next` is the cursor of the next
    page; null if there is none."""

    items: list[ApiKeyView]
    next: str | None


_new = msgspec.json.Decoder(NewApiKey)
_rotation = msgspec.json.Decoder(KeyRotation)


@post(
    API_KEYS,
    tags=["API keys"],
    summary="Make an API key",
    operation_class=with_json_body(NewApiKey, "The key"),
    response_description="The key, this once",
)
async def create_api_key(request: Request[Any, Any, Any], app: TheApp) -> Response[NewApiKeyView]:
    """It is let in from the answer on, in other processes within a second. What is kept of it is a hash."""
    keys, actor, asked = _keys(app), actor_of(request), await read_json(request, _new)
    kept, key = await keys.create(asked.name, asked.scopes, as_seconds(asked.expires_at), actor.who)
    app.audit.record(actor, AuditAction.API_KEY_CREATE, _called(kept), f"may {kept.identity.scopes_in_words}")
    return _shown_once(app, kept, key, HTTPStatus.CREATED)


@get(API_KEYS, tags=["API keys"], summary="List API keys")
async def list_api_keys(
    app: TheApp,
    cursor: Annotated[
        str | None, QueryParameter(max_length=MAX_ID_CHARS, description="`next` of the page before")
    ] = None,
) -> ApiKeyList:
    """All of them but those of the settings, at most about 1 MiB in a page."""
    wall, known = app.clock.wall(), {kept.id: kept for kept in await _keys(app).listed()}

    async def read(most: int, after: str | None) -> tuple[list[ApiKeyView], str | None]:
        shown, following = behind(list(known), most, after)
        return [ApiKeyView.of(known[one], wall) for one in shown], following

    return ApiKeyList(*await items_that_fit(read, MAX_KEYS, cursor))


@delete(f"{API_KEYS}/{{id:str}}", status_code=HTTPStatus.OK, tags=["API keys"], summary="Revoke an API key")
async def revoke_api_key(
    request: Request[Any, Any, Any],
    app: TheApp,
    id: KeyId,  # noqa: A002 - the name in the path
) -> ApiKeyView:
    """It is let in no more from the answer on, in other processes within a second. To do it again changes nothing."""
    kept = await _keys(app).revoke(id)
    app.audit.record(actor_of(request), AuditAction.API_KEY_REVOKE, _called(kept))
    return ApiKeyView.of(kept, app.clock.wall())


@post(
    f"{API_KEYS}/{{id:str}}/rotate",
    status_code=HTTPStatus.OK,
    tags=["API keys"],
    summary="Give an API key another value",
    operation_class=with_json_body(KeyRotation, "For how long the one before is let in too", required=False),
    response_description="The new key, this once",
)
async def rotate_api_key(
    request: Request[Any, Any, Any],
    app: TheApp,
    id: KeyId,  # noqa: A002 - the name in the path
) -> Response[NewApiKeyView]:
    """Name, scopes and end stay. While they overlap both are let in, so that callers can change over one by one."""
    asked = await read_optional_json(request, _rotation) or KeyRotation()
    kept, key = await _keys(app).rotate(id, asked.overlap_seconds)
    detail = f"the one before is let in for {asked.overlap_seconds:g} s more"
    app.audit.record(actor_of(request), AuditAction.API_KEY_ROTATE, _called(kept), detail)
    return _shown_once(app, kept, key, HTTPStatus.OK)


def _keys(app: ServedRouter) -> ApiKeys:
    return platform_of(app).api_keys


def _shown_once(app: ServedRouter, kept: KeptKey, key: str, status: HTTPStatus) -> Response[NewApiKeyView]:
    view = NewApiKeyView(key=key, **_fields(kept, app.clock.wall()))
    return Response(view, status_code=status, headers={"Cache-Control": "no-store"})


def _called(kept: KeptKey) -> str:
    return f"API key {kept.key.name} ({kept.id})"


def _fields(kept: KeptKey, wall: float) -> dict[str, Any]:
    key = kept.key
    until = max((one.until for one in key.previous if one.until > wall), default=None)
    return {
        "id": kept.id,
        "name": key.name,
        "scopes": list(key.scopes),
        "created_at": as_time(key.created_at),
        "created_by": key.created_by,
        "rotated_at": as_time(key.rotated_at),
        "previous_until": as_time(until),
        "expires_at": as_time(key.expires_at),
        "last_used_at": as_time(key.last_used_at),
        "revoked_at": as_time(key.revoked_at),
    }
