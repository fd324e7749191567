"""Every list of the API comes in pages that are cut where they are full, and goes on where it was cut."""

from collections.abc import Callable
from typing import Any, Final
from urllib.parse import quote

import pytest

from flowcatalyst.api import listing
from flowcatalyst.api.listing import MAX_LIST_BYTES
from flowcatalyst.control import audit
from flowcatalyst.core.message import Severity
from flowcatalyst.core.warnings import WarningCode
from flowcatalyst.queues.contract import Outgoing
from tests.api.dispatching import Dispatching, on_sqlite
from tests.api.listing_test import pages_of
from tests.api.running import until
from tests.support.http_servers import Gate, raw_server

# What tells the items of a list apart.
LISTS: Final[dict[str, Callable[[Any], Any]]] = {
    "/api/api-keys": lambda one: one["id"],
    "/api/dispatch-jobs": lambda one: one["id"],
    "/api/dispatch-pools": lambda one: one["code"],
    "/api/events": lambda one: one["id"],
    "/api/message-groups": lambda one: one["messageGroup"],
    "/api/subscriptions": lambda one: one["code"],
    "/monitoring/audit": lambda one: one["number"],
    "/monitoring/circuit-breakers": lambda one: one["endpoint"],
    "/monitoring/consumer-health": lambda one: one["queue"],
    "/monitoring/dead-letters": lambda one: one["number"],
    "/monitoring/endpoints": lambda one: one["endpoint"],
    "/monitoring/groups": lambda one: one["group"],
    "/monitoring/in-flight-messages": lambda one: one["id"],
    "/monitoring/pauses": lambda one: (one["kind"], one["name"]),
    "/monitoring/pool-stats": lambda one: one["code"],
    "/monitoring/queue-stats": lambda one: one["name"],
    "/monitoring/warnings": lambda one: one["id"],
}


async def listed(jobs: Dispatching, path: str) -> list[list[Any]]:
    """The items of each page of a list. Pages lead on by a link, by a cursor or by the number of the last item."""
    if path == "/monitoring/audit":
        pages = [(await jobs.client.get(path)).json]
        while pages[-1]:
            pages.append((await jobs.client.get(f"{path}?before={pages[-1][-1]['number']}")).json)
        return pages[:-1]
    first = await jobs.client.get(path)
    assert first.status == 200, first.text
    if isinstance(first.json, list):
        return [page.json for page in await pages_of(jobs.running, path)]
    pages, cursor = [first.json["items"]], first.json["next"]
    while cursor is not None:
        assert len(pages) < 1000, "the pages have no end"
        page = (await jobs.client.get(f"{path}?cursor={quote(cursor, safe='')}")).json
        pages.append(page["items"])
        cursor = page["next"]
    return pages


async def some_of_each(jobs: Dispatching, url: str) -> None:
    """Three or more items for each list, of which none changes its place."""
    app, client = jobs.running.app, jobs.client
    for number in range(3):
        await jobs.blocked(f"{number}-first", f"{number}-second", group=f"jobs:{number}")
        await client.post(
            "/api/subscriptions",
            {"code": f"s{number}", "targetUrl": url, "eventTypes": [{"eventTypeCode": "nothing.such"}]},
        )
        await client.post("/api/events", {"type": "order.made", "source": "shop", "data": {}})
        await client.post("/api/api-keys", {"name": f"key {number}", "scopes": ["read"]})
        await client.post(f"/monitoring/groups/held:{number}/hold")
        app.warnings.add(WarningCode.ROUTING, Severity.WARN, f"text {number}", "test")
        app.breakers.get(f"http://h.test/{number}")
        await jobs.running.send(id=f"m{number}", mediationTarget=url, messageGroupId=f"messages:{number}")
        await app.queues["default"].publish([Outgoing("no message", "g")])
    await jobs.running.until_dead(3)

    async def all_here() -> bool:
        return len(app.tracker) == 3

    await until(all_here)


@pytest.mark.thorough
async def test_every_list_is_cut_where_a_page_is_full_and_goes_on_there(
    jobs: Dispatching, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate()
    async with raw_server(gate) as endpoint:
        await some_of_each(jobs, endpoint.url("/hook"))
        assert set(LISTS) == await list_routes(jobs)
        whole = {
            path: [name(item) for page in await listed(jobs, path) for item in page] for path, name in LISTS.items()
        }
        monkeypatch.setattr(listing, "MAX_LIST_BYTES", 1)
        monkeypatch.setattr(audit, "MAX_PAGE_BYTES", 1)
        for path, name in LISTS.items():
            pages = await listed(jobs, path)
            assert [len(page) for page in pages if page] == [1] * len(pages), path
            assert [name(page[0]) for page in pages] == whole[path], path
            assert len(whole[path]) >= 3, path
        gate.opened.set()


async def list_routes(jobs: Dispatching) -> set[str]:
    """What the document of the API says that lists something."""
    document = (await jobs.client.get("/schema/openapi.json")).json
    parts, found = document["components"]["schemas"], set()
    for path, methods in document["paths"].items():
        content = methods.get("get", {}).get("responses", {}).get("200", {}).get("content", {})
        schema = content.get("application/json", {}).get("schema", {})
        schema = parts[schema["$ref"].rpartition("/")[2]] if "$ref" in schema else schema
        if schema.get("type") == "array" or "items" in schema.get("properties", {}):
            found.add(path)
    return found


@on_sqlite
async def test_a_page_of_large_subscriptions_has_about_a_mebibyte(jobs: Dispatching) -> None:
    for number in range(20):
        filters = [{"exact": {"subject": "\x01" * 1024}}] * 15
        large = {"code": f"s{number:02}", "targetUrl": jobs.server.url("/hook"), "filters": filters}
        made = await jobs.client.post("/api/subscriptions", large | {"eventTypes": [{"eventTypeCode": "a.b"}]})
        assert made.status == 201, made.text
    first = await jobs.client.get("/api/subscriptions?limit=1000")
    assert MAX_LIST_BYTES / 2 < len(first.text) < MAX_LIST_BYTES + 100  # what is round the items
    pages = await listed(jobs, "/api/subscriptions")
    assert [item["code"] for page in pages for item in page] == [f"s{number:02}" for number in range(20)]
