"""Every route has a scope, in the code and in the manual."""

import re
from pathlib import Path

import pytest

from flowcatalyst.api.access import OWN_TOKENS
from flowcatalyst.api.asgi import build_api
from flowcatalyst.api.scopes import SCOPES, scope_of
from flowcatalyst.app.router import App
from flowcatalyst.control.settings import Settings
from flowcatalyst.core.credentials import Identity, Role, Scope

MANUAL = Path(__file__).parents[2] / "docs" / "operations.md"


def routes(folder: Path) -> set[str]:
    api = build_api(App(Settings(data_dir=folder)))
    return {
        f"{method} {route.path_format}"
        for route in api.routes
        for method in getattr(route, "methods", [])
        if method not in ("OPTIONS", "HEAD") and route.path_format not in OWN_TOKENS
    }


def test_every_route_has_a_scope_and_every_scope_a_route(tmp_path: Path) -> None:
    there = routes(tmp_path)
    assert there - SCOPES.keys() == set(), "decide in api/scopes.py which scope they need"
    assert SCOPES.keys() - there == set(), "there are no such routes"


def test_the_manual_has_the_scope_of_every_route() -> None:
    rows = re.findall(
        r"^\| `((?:GET|POST|PUT|PATCH|DELETE) /[^`]*)` \| (publish|read|operate|admin) \|$",
        MANUAL.read_text(),
        re.MULTILINE,
    )
    assert len(rows) == len(dict(rows)), "docs/operations.md has a route twice"
    assert dict(rows) == {route: str(scope) for route, scope in SCOPES.items()}


def test_a_route_that_nobody_thought_of_is_for_admins() -> None:
    assert scope_of("GET", "/api/new") is Scope.ADMIN
    assert scope_of("POST", "/api/new") is Scope.ADMIN
    assert scope_of("HEAD", "/api/events") is Scope.READ


def test_the_addresses_of_queues_are_for_admins_because_they_hold_credentials() -> None:
    assert scope_of("GET", "/api/config/router") is Scope.ADMIN


@pytest.mark.parametrize(
    ("scopes", "may"),
    [
        ({Scope.PUBLISH}, {Scope.PUBLISH}),
        ({Scope.READ, Scope.OPERATE}, {Scope.READ, Scope.OPERATE}),
        ({Scope.ADMIN}, set(Scope)),
        (Role.READ_ONLY.scopes, {Scope.READ}),
        (Role.ADMIN.scopes, set(Scope)),
    ],
)
def test_a_scope_is_good_for_itself_and_admin_for_all(scopes: set[Scope], may: set[Scope]) -> None:
    identity = Identity("x", None, frozenset(scopes))
    assert {scope for scope in Scope if identity.may(scope)} == may
