"""API keys of the platform as clients meet them: made, used for what they may do, rotated and revoked, all live."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from flowcatalyst.api.scopes import SCOPES
from flowcatalyst.core.credentials import Scope, hash_key, new_key
from tests.api.running import Answer, Running, run_router, until

pytestmark = pytest.mark.thorough  # a router for each test

PATH = "/api/api-keys"
ADMIN_KEY, READER_KEY = new_key(), new_key()
AUTH = {"mode": "api_key", "admin": [hash_key(ADMIN_KEY.encode())], "read_only": [hash_key(READER_KEY.encode())]}
# One request for each scope that is refused or answered whatever there is, and what it is answered.
TRIED = {
    Scope.PUBLISH: ("POST", "/api/dispatch-jobs/batch", 400),
    Scope.READ: ("GET", "/api/dispatch-jobs", 200),
    Scope.OPERATE: ("POST", "/monitoring/circuit-breakers/reset", 200),
    Scope.ADMIN: ("GET", PATH, 200),
}


@dataclass(slots=True, frozen=True)
class Platform:
    running: Running

    async def ask(self, key: str, method: str, path: str, body: Any = None) -> Answer:
        return await self.running.client.request(method, path, json=body, headers={"X-API-Key": key})

    async def admin(self, method: str, path: str, body: Any = None) -> Answer:
        return await self.ask(ADMIN_KEY, method, path, body)

    async def make(self, *scopes: str, **more: Any) -> dict[str, Any]:
        made = await self.admin("POST", PATH, {"name": "shop", "scopes": scopes} | more)
        assert made.status == 201, made.text
        assert made.headers["Cache-Control"] == "no-store"
        found: dict[str, Any] = made.json
        return found

    async def is_let_in(self, key: str) -> bool:
        answer = await self.ask(key, "GET", "/api/dispatch-jobs")
        assert answer.status in (200, 401, 403)
        return answer.status != 401


@asynccontextmanager
async def running_platform(folder: Path, store: dict[str, str]) -> AsyncIterator[Platform]:
    async with run_router(folder, auth=AUTH, platform={"enabled": True} | store) as running:
        yield Platform(running)


@pytest.fixture
async def platform(tmp_path: Path, store: dict[str, str]) -> AsyncIterator[Platform]:
    async with running_platform(tmp_path, store) as platform:
        yield platform


async def test_a_new_key_is_shown_once_and_may_do_what_its_scopes_say(platform: Platform) -> None:
    for scope in Scope:
        made = await platform.make(scope)
        for needed, (method, path, status) in TRIED.items():
            answer = await platform.ask(made["key"], method, path, {"jobs": []} if needed is Scope.PUBLISH else None)
            if scope in (needed, Scope.ADMIN):
                assert answer.status == status, answer.text
            else:
                sentence = f"these credentials may only {scope}: this needs some with the scope {needed}"
                answer.assert_problem(403, sentence)
                assert "WWW-Authenticate" not in answer.headers
        listed = await platform.admin("GET", PATH)
        assert made["key"] not in listed.text
        (shown,) = [one for one in listed.json["items"] if one["id"] == made["id"]]
        assert shown | {"lastUsedAt": None} == {name: value for name, value in made.items() if name != "key"}


async def test_no_key_gets_in_to_any_route_whose_scope_it_lacks(tmp_path: Path) -> None:
    """Every route: what a guard forgot would be open."""
    async with running_platform(tmp_path, {}) as platform:
        keys = {scope: (await platform.make(scope))["key"] for scope in Scope if scope is not Scope.ADMIN}
        for route, needed in SCOPES.items():
            method, path = route.split()
            if path.startswith(("/health", "/dashboard")) or path in ("/", "/metrics", "/api/test/{receiver}"):
                continue  # open: the page itself holds nothing
            path = path.replace("{number}", "1").replace("{id}", "1").replace("{path}", "openapi.yaml")
            path = path.replace("{code}", "c").replace("{group}", "g")
            for scope, key in keys.items():
                if scope is not needed:
                    (await platform.ask(key, method, path)).assert_problem(403, f"the scope {needed}")
            (await platform.running.client.request(method, path)).assert_problem(401)


async def test_several_scopes_are_good_for_each_of_them(platform: Platform) -> None:
    key = (await platform.make("operate", "publish"))["key"]
    assert (await platform.ask(key, "POST", "/monitoring/circuit-breakers/reset")).status == 200
    job = {"code": "x", "targetUrl": "https://example.com/"}
    assert (await platform.ask(key, "POST", "/api/dispatch-jobs", job)).status == 201
    refused = await platform.ask(key, "GET", "/api/dispatch-jobs")
    refused.assert_problem(403, "may only publish, operate", "the scope read")


async def test_a_revoked_key_is_let_in_no_more(platform: Platform) -> None:
    made = await platform.make("read")
    assert await platform.is_let_in(made["key"])
    revoked = await platform.admin("DELETE", f"{PATH}/{made['id']}")
    assert (revoked.status, revoked.json["id"]) == (200, made["id"])
    assert revoked.json["revokedAt"] is not None
    assert not await platform.is_let_in(made["key"])
    again = await platform.admin("DELETE", f"{PATH}/{made['id']}")
    assert again.json["revokedAt"] == revoked.json["revokedAt"]
    (await platform.admin("POST", f"{PATH}/{made['id']}/rotate")).assert_problem(409, "make a new one")


async def test_a_rotated_key_and_the_one_before_are_let_in_while_they_overlap(platform: Platform) -> None:
    made = await platform.make("read")
    both = await platform.admin("POST", f"{PATH}/{made['id']}/rotate")
    assert (both.status, both.json["id"], both.headers["Cache-Control"]) == (200, made["id"], "no-store")
    assert both.json["previousUntil"] is not None
    assert await platform.is_let_in(made["key"])
    assert await platform.is_let_in(both.json["key"])
    last = await platform.admin("POST", f"{PATH}/{made['id']}/rotate", {"overlapSeconds": 0})
    assert last.json["previousUntil"] is None
    assert [await platform.is_let_in(key) for key in (made["key"], both.json["key"], last.json["key"])] == [
        False,
        False,
        True,
    ]


async def test_keys_survive_a_restart_and_are_those_of_all_processes_on_a_database(
    tmp_path: Path, store: dict[str, str]
) -> None:
    async with running_platform(tmp_path / "one", store) as first:
        if "database_url" not in store:
            store = {}
        made = await first.make("read")
        if "database_url" in store:
            async with running_platform(tmp_path / "other", store) as second:
                assert await second.is_let_in(made["key"])
                later = await first.make("read")

                async def known() -> bool:
                    return await second.is_let_in(later["key"])

                await until(known)
                await second.admin("DELETE", f"{PATH}/{made['id']}")

                async def gone() -> bool:
                    return not await first.is_let_in(made["key"])

                await until(gone)
                made = later
    async with running_platform(tmp_path / "one", store) as again:
        assert await again.is_let_in(made["key"])


async def test_the_last_use_is_shown(platform: Platform) -> None:
    made = await platform.make("read")
    assert made["lastUsedAt"] is None
    await platform.is_let_in(made["key"])
    (shown,) = (await platform.admin("GET", PATH)).json["items"]
    assert shown["lastUsedAt"] >= made["createdAt"]


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({}, "name"),
        ({"name": "", "scopes": ["read"]}, "name"),
        ({"name": "a\nb", "scopes": ["read"]}, "characters that can be printed"),
        ({"name": "a" * 101, "scopes": ["read"]}, "name"),
        ({"name": "a", "scopes": []}, "scopes"),
        ({"name": "a", "scopes": ["write"]}, "publish, read, operate"),
        ({"name": "a", "scopes": "read"}, "scopes"),
        ({"name": "a", "scopes": ["read"], "expiresAt": "2001-01-01T00:00:00Z"}, "expiresAt has to be in the future"),
        ({"name": "a", "scopes": ["read"], "digest": "00"}, "digest"),
    ],
)
async def test_a_key_that_makes_no_sense_is_refused_in_a_sentence(
    tmp_path: Path, body: dict[str, Any], said: str
) -> None:
    async with running_platform(tmp_path, {}) as platform:
        (await platform.admin("POST", PATH, body)).assert_problem(400, said)
        assert (await platform.admin("GET", PATH)).json == {"items": [], "next": None}


@pytest.mark.parametrize("overlap", [-1, 2_592_001, "1h"])
async def test_an_overlap_has_its_bounds(tmp_path: Path, overlap: Any) -> None:
    async with running_platform(tmp_path, {}) as platform:
        made = await platform.make("read")
        refused = await platform.admin("POST", f"{PATH}/{made['id']}/rotate", {"overlapSeconds": overlap})
        refused.assert_problem(400, "overlapSeconds")


async def test_a_key_that_is_not_there_is_404(platform: Platform) -> None:
    for method, path in (("DELETE", f"{PATH}/nope"), ("POST", f"{PATH}/nope/rotate"), ("DELETE", f"{PATH}/a%00b")):
        (await platform.admin(method, path)).assert_problem(404, "there is no API key")


async def test_a_router_without_a_platform_has_no_keys_but_those_of_the_settings(tmp_path: Path) -> None:
    async with run_router(tmp_path, auth=AUTH) as running:
        platform = Platform(running)
        (await platform.admin("GET", PATH)).assert_problem(404, "platform.enabled")
        (await platform.ask("fck_wrong", "GET", "/monitoring/queue-stats")).assert_problem(401)


async def test_who_used_a_key_is_told_by_its_name_and_no_key_is_in_any_file(tmp_path: Path) -> None:
    async with running_platform(tmp_path, {}) as platform:
        made = await platform.make("admin", name="night shift")
        used = await platform.ask(made["key"], "POST", "/monitoring/circuit-breakers/reset")
        assert used.status == 200
        rotated = await platform.ask(made["key"], "POST", f"{PATH}/{made['id']}/rotate")
        await platform.ask(rotated.json["key"], "DELETE", f"{PATH}/{made['id']}")
        trail = (await platform.admin("GET", "/monitoring/audit")).json
    by_action = {event["action"]: event for event in trail}
    who, role = f"key night shift ({made['id'][-8:]})", "admin"
    for action in ("breaker_reset", "api_key_rotate", "api_key_revoke"):
        assert (by_action[action]["who"], by_action[action]["role"]) == (who, role)
    created = by_action["api_key_create"]
    assert created["object"] == f"API key night shift ({made['id']})"
    assert created["detail"] == "may admin"
    assert all(key not in json.dumps(trail) for key in (made["key"], rotated.json["key"]))
    kept = b"".join(path.read_bytes() for path in _files(tmp_path))
    for key in (made["key"], rotated.json["key"]):
        assert key.encode() not in kept


def _files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


async def test_the_document_names_the_scope_of_each_operation(tmp_path: Path) -> None:
    async with running_platform(tmp_path, {}) as platform:
        document = (await platform.admin("GET", "/schema/openapi.json")).json
    create = document["paths"][PATH]["post"]
    assert create["security"] == [{"apiKey": ["admin"]}, {"bearer": ["admin"]}]
    assert create["description"].endswith("Needs the scope `admin`.")
    assert document["paths"]["/api/messages"]["post"]["security"][0] == {"apiKey": ["publish"]}
