from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from flowcatalyst.core.message import Severity
from flowcatalyst.core.warnings import WarningCode
from tests.api.running import Running, on_idle_router, run_router

PATH = "/monitoring/warnings"


def add_some(router: Running) -> None:
    warnings = router.app.warnings
    warnings.add(WarningCode.ROUTING, Severity.WARN, "no pool 'X'", "router")
    warnings.add(WarningCode.CONFIGURATION, Severity.ERROR, "HTTP 404 from http://shop.test", "mediator")
    warnings.add(WarningCode.CONFIGURATION, Severity.CRITICAL, "HTTP 501 from http://shop.test", "mediator")
    warnings.add(WarningCode.ROUTING, Severity.WARN, "no pool 'X'", "router")


async def ids(router: Running, query: str = "") -> set[int]:
    return {warning["id"] for warning in (await router.client.get(PATH + query)).json}


async def test_a_warning_is_listed_with_everything_about_it(router: Running) -> None:
    assert (await router.client.get(PATH)).json == []
    add_some(router)
    listed: list[dict[str, Any]] = (await router.client.get(PATH)).json
    assert [warning["id"] for warning in listed] == [1, 3, 2]  # the first came again
    first = listed[0]
    assert datetime.fromisoformat(first.pop("firstAt")) <= datetime.fromisoformat(first.pop("lastAt"))
    assert first == {
        "id": 1,
        "code": "ROUTING",
        "severity": "WARN",
        "message": "no pool 'X'",
        "source": "router",
        "count": 2,
        "acknowledged": False,
    }


async def test_filters_leave_those_that_match(router: Running) -> None:
    add_some(router)
    await router.client.post(f"{PATH}/2/acknowledge")
    now = datetime.fromtimestamp(router.app.clock.wall() + 1, UTC)
    earlier = datetime.fromtimestamp(router.app.clock.wall() - 60, UTC)
    for query, found in {
        "": {1, 2, 3},
        "?severity=ERROR": {2},
        "?code=CONFIGURATION": {2, 3},
        "?source=router": {1},
        "?acknowledged=true": {2},
        "?acknowledged=false": {1, 3},
        "?text=SHOP.test": {2, 3},
        "?code=CONFIGURATION&severity=CRITICAL": {3},
        "?code=SEMAPHORE_RELEASE_FAILED": set[int](),
        f"?since={earlier:%Y-%m-%dT%H:%M:%SZ}": {1, 2, 3},
        f"?since={now:%Y-%m-%dT%H:%M:%S}": set[int](),  # without a zone: UTC
    }.items():
        assert await ids(router, query) == found, query


@on_idle_router
@pytest.mark.parametrize(
    ("query", "word"),
    [
        ("?severity=BAD", "severity"),
        ("?code=NOPE", "code"),
        ("?acknowledged=perhaps", "acknowledged"),
        ("?since=yesterday", "since"),
    ],
)
@pytest.mark.parametrize(("method", "path"), [("GET", PATH), ("DELETE", PATH), ("POST", f"{PATH}/acknowledge")])
async def test_a_wrong_filter_is_refused(idle_router: Running, method: str, path: str, query: str, word: str) -> None:
    (await idle_router.client.request(method, path + query)).assert_problem(400, word)


async def test_an_acknowledged_warning_says_so_until_it_comes_again(router: Running) -> None:
    add_some(router)
    answer = await router.client.post(f"{PATH}/1/acknowledge")
    assert (answer.status, answer.json["id"], answer.json["acknowledged"]) == (200, 1, True)
    assert await ids(router, "?acknowledged=true") == {1}
    add_some(router)
    assert await ids(router, "?acknowledged=true") == set()


async def test_all_or_those_that_match_are_acknowledged(router: Running) -> None:
    add_some(router)
    answer = await router.client.post(f"{PATH}/acknowledge?severity=CRITICAL")
    assert (answer.status, answer.json) == (200, {"acknowledged": 1})
    assert await ids(router, "?acknowledged=true") == {3}
    assert (await router.client.post(f"{PATH}/acknowledge")).json == {"acknowledged": 2}
    assert await ids(router, "?acknowledged=false") == set()


async def test_warnings_are_removed_one_by_one_by_filter_or_all(router: Running) -> None:
    add_some(router)
    assert (await router.client.delete(f"{PATH}/1")).status == 204
    assert await ids(router) == {2, 3}
    answer = await router.client.delete(f"{PATH}?severity=ERROR")
    assert (answer.status, answer.json) == (200, {"deleted": 1})
    assert await ids(router) == {3}
    assert (await router.client.delete(PATH)).json == {"deleted": 1}
    assert await ids(router) == set()


@on_idle_router
@pytest.mark.parametrize(
    ("method", "path"), [("POST", f"{PATH}/4711/acknowledge"), ("DELETE", f"{PATH}/4711"), ("DELETE", f"{PATH}/x")]
)
async def test_an_unknown_id_is_a_problem(idle_router: Running, method: str, path: str) -> None:
    (await idle_router.client.request(method, path)).assert_problem(404, "there is no")


@on_idle_router
async def test_the_filters_are_documented_at_each_operation_that_takes_them(idle_router: Running) -> None:
    paths = (await idle_router.client.get("/schema/openapi.json")).json["paths"]
    for operation in (paths[PATH]["get"], paths[PATH]["delete"], paths[f"{PATH}/acknowledge"]["post"]):
        names = [parameter["name"] for parameter in operation["parameters"]]
        assert sorted(set(names) - {"offset"}) == ["acknowledged", "code", "severity", "since", "source", "text"]
        assert all(parameter["description"] for parameter in operation["parameters"])
    assert [one["name"] for one in paths[f"{PATH}/{{id}}"]["delete"]["parameters"]] == ["id"]


async def test_a_file_of_messages_or_jobs_without_bytes_is_warned_of_at_the_start(tmp_path: Path) -> None:
    for name in ("queue.db", "jobs.db"):
        (tmp_path / name).touch()
    async with run_router(tmp_path, platform={"enabled": True}) as running:
        warned = (await running.client.get("/monitoring/warnings?code=QUEUE_SETUP")).json
    assert {one["source"] for one in warned} == {"queue.db", "jobs.db"}
    assert all("has 0 bytes: it is used as a new one" in one["message"] for one in warned)
    async with run_router(tmp_path, platform={"enabled": True}) as running:
        assert (await running.client.get("/monitoring/warnings?code=QUEUE_SETUP")).json == []
