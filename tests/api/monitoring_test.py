"""Rules that hold for all of the monitoring API."""

import re
from pathlib import Path
from typing import Any

import msgspec

from flowcatalyst.api.asgi import build_api
from flowcatalyst.app.router import App
from flowcatalyst.control.settings import Settings
from tests.api.running import Running, on_idle_router

LISTS = (
    "/monitoring/queue-stats",
    "/monitoring/pool-stats",
    "/monitoring/consumer-health",
    "/monitoring/circuit-breakers",
    "/monitoring/in-flight-messages",
    "/monitoring/warnings",
    "/monitoring/dead-letters",
    "/monitoring/audit",
    "/monitoring/pauses",
)
OTHERS = (
    "/monitoring/health",
    "/monitoring/standby-status",
    "/monitoring/config",
    "/monitoring/top-groups",
    "/monitoring/groups",
    "/monitoring/endpoints",
)
OF_ONE = (
    "/monitoring/dead-letters/{number}",
    "/monitoring/explain/{id}",
    "/monitoring/groups/{group}",
    "/monitoring/live",
)


async def document(router: Running) -> dict[str, Any]:
    found: dict[str, Any] = (await router.client.get("/schema/openapi.json")).json
    return found


@on_idle_router
async def test_every_list_is_a_plain_array(idle_router: Running) -> None:
    paths = (await document(idle_router))["paths"]
    for path in LISTS:
        assert isinstance((await idle_router.client.get(path)).json, list)
        content = paths[path]["get"]["responses"]["200"]["content"]["application/json"]
        assert content["schema"]["type"] == "array"


@on_idle_router
async def test_what_can_be_monitored_is_what_the_document_lists(idle_router: Running) -> None:
    paths = (await document(idle_router))["paths"]
    readable = {path for path, item in paths.items() if path.startswith("/monitoring/") and "get" in item}
    assert readable == {*LISTS, *OTHERS, *OF_ONE}
    for path in OTHERS:
        assert (await idle_router.client.get(path)).status == 200


def property_names(node: Any) -> set[str]:
    if isinstance(node, list):
        return {name for one in node for name in property_names(one)}
    if not isinstance(node, dict):
        return set()
    own = set(node["properties"]) if isinstance(node.get("properties"), dict) else set()
    return own | {name for one in node.values() for name in property_names(one)}


@on_idle_router
async def test_every_name_is_in_camel_case(idle_router: Running) -> None:
    found = await document(idle_router)
    names = property_names(found) - {"data_base64"}  # which is CloudEvents'
    parameters = [
        parameter
        for item in found["paths"].values()
        for operation in item.values()
        for parameter in operation.get("parameters", [])
    ]
    assert len(names) > 100
    for name in names | {parameter["name"] for parameter in parameters}:
        assert re.fullmatch(r"[a-z][a-zA-Z0-9]*", name), name


@on_idle_router
async def test_the_document_is_the_same_after_each_start(idle_router: Running, tmp_path: Path) -> None:
    again = build_api(App(Settings(data_dir=tmp_path))).openapi_schema.to_schema()
    assert await document(idle_router) == msgspec.json.decode(msgspec.json.encode(again))
