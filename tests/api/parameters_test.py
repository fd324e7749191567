"""A query parameter that a route does not have is refused: a filter with a typo must not filter nothing."""

from pathlib import Path

import pytest

from flowcatalyst.core.credentials import hash_key, new_key
from flowcatalyst.core.message import Severity
from flowcatalyst.core.warnings import WarningCode
from tests.api.running import Running, on_idle_router, run_router

WARNINGS = "/monitoring/warnings"


def add_warning(router: Running) -> None:
    router.app.warnings.add(WarningCode.ROUTING, Severity.CRITICAL, "no pool 'X'", "router")


@pytest.mark.parametrize("query", ["sverity=WARN", "sverity", "severity=WARN&sverity=WARN", "Severity=WARN", "=WARN"])
async def test_a_filter_with_a_typo_deletes_nothing(router: Running, query: str) -> None:
    add_warning(router)
    (await router.client.delete(f"{WARNINGS}?{query}")).assert_problem(400, "unknown")
    assert len(router.app.warnings.recent()) == 1


async def test_the_problem_names_the_parameter_and_lists_the_known_ones(router: Running) -> None:
    answer = await router.client.delete(f"{WARNINGS}?sverity=WARN&state=x")
    known = "severity, code, source, acknowledged, text, since"
    answer.assert_problem(400, "query parameter 'sverity' is unknown", "'state'", known)
    assert [error["field"] for error in answer.json["errors"]] == ["state", "sverity"]


async def test_a_parameter_that_is_given_twice_is_refused(router: Running) -> None:
    add_warning(router)
    answer = await router.client.delete(f"{WARNINGS}?severity=WARN&severity=CRITICAL")
    answer.assert_problem(400, "'severity' is given more than once")
    assert len(router.app.warnings.recent()) == 1


async def test_null_is_a_value_and_not_the_absence_of_a_filter(router: Running) -> None:
    add_warning(router)
    for name in ("severity", "code", "acknowledged", "since"):
        (await router.client.delete(f"{WARNINGS}?{name}=null")).assert_problem(400, name)
    for name in ("source", "text"):
        assert (await router.client.delete(f"{WARNINGS}?{name}=null")).json == {"deleted": 0}


@on_idle_router
@pytest.mark.parametrize("since", ["0.5", "1700000000", "yesterday", "2026-01-31", ""])
async def test_a_time_has_to_be_written_as_one(idle_router: Running, since: str) -> None:
    (await idle_router.client.get(f"{WARNINGS}?since={since}")).assert_problem(400, "since", "2026-01-31T12:00:00Z")


@on_idle_router
@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("severity=loud", "parameter 'severity' must be one of WARN, ERROR, CRITICAL, not 'loud'"),
        ("acknowledged=maybe", "parameter 'acknowledged' must be true or false"),
        ("offset=-1", "parameter 'offset' must be at least 0"),
        ("offset=many", "parameter 'offset' must be a whole number"),
        ("sverity=WARN", "query parameter 'sverity' is unknown (did you mean 'severity'?); known here: severity, code"),
    ],
)
async def test_a_wrong_parameter_says_what_it_may_be_in_plain_words(
    idle_router: Running, query: str, said: str
) -> None:
    answer = await idle_router.client.get(f"{WARNINGS}?{query}")
    answer.assert_problem(400, said)
    assert answer.json["detail"].endswith(answer.json["errors"][0]["message"])


@on_idle_router
async def test_every_operation_refuses_unknown_parameters(idle_router: Running) -> None:
    paths = (await idle_router.client.get("/schema/openapi.json")).json["paths"]
    places = [(method, path) for path, item in paths.items() for method in item]
    for method, path in [*places, ("get", "/"), ("get", "/schema"), ("get", "/schema/openapi.json")]:
        concrete = path.format(code="DEFAULT-POOL", number=1, id=1, receiver="fast", group="g")
        answer = await idle_router.client.request(method.upper(), f"{concrete}?no-such-parameter=1")
        answer.assert_problem(400, "'no-such-parameter'")


@on_idle_router
async def test_a_route_without_parameters_says_so(idle_router: Running) -> None:
    (await idle_router.client.get("/monitoring/health?pool=x")).assert_problem(400, "there are none here")


async def test_strangers_are_not_told_the_parameters(tmp_path: Path) -> None:
    keys = {"mode": "api_key", "admin": [hash_key(new_key().encode())]}
    async with run_router(tmp_path, auth=keys) as router:
        (await router.client.delete(f"{WARNINGS}?sverity=WARN")).assert_problem(401)
