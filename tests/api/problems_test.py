import re
from typing import Any

import pytest

from flowcatalyst.control.dead_letters import DeadLetters
from tests.api.running import Running, on_idle_router

METHODS = ("get", "put", "post", "delete")


@on_idle_router
async def test_an_unknown_path_is_a_problem(idle_router: Running) -> None:
    for path in ("/nope", "/api/nope", "/schema/nope", "/monitoring"):
        (await idle_router.client.get(path)).assert_problem(404)


@on_idle_router
async def test_a_method_that_does_not_work_is_a_problem_and_says_which_do(idle_router: Running) -> None:
    answer = await idle_router.client.delete("/health")
    answer.assert_problem(405, "/health does not answer to DELETE, only to ", "GET")
    assert "GET" in answer.headers["Allow"]


async def test_a_bug_is_a_problem_without_its_insides(router: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(self: DeadLetters, *args: Any) -> None:
        raise RuntimeError("secret inner state")

    monkeypatch.setattr(DeadLetters, "page", broken)
    answer = await router.client.get("/monitoring/dead-letters")
    answer.assert_problem(500, "its log says more")
    assert "secret" not in answer.text
    assert "RuntimeError" not in answer.text


@on_idle_router
@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "["])
async def test_a_name_that_somebody_pointed_here_is_refused(idle_router: Running, host: str) -> None:
    answer = await idle_router.client.request("GET", "/monitoring/pool-stats", headers={"Host": host})
    answer.assert_problem(421, "localhost")


@on_idle_router
@pytest.mark.parametrize("host", ["localhost", "localhost:8080", "127.0.0.1:1", "[::1]:8080"])
async def test_local_names_are_served(idle_router: Running, host: str) -> None:
    assert (await idle_router.client.request("GET", "/health/live", headers={"Host": host})).status == 200


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://127.0.0.1:1"])
async def test_a_page_of_another_origin_may_not_change_anything(router: Running, origin: str) -> None:
    answer = await router.client.post("/api/seed/messages", headers={"Origin": origin})
    answer.assert_problem(403, "origin")
    assert (await router.stats())["totalRequests"] == 0


async def test_our_own_page_may_change_things(router: Running) -> None:
    answer = await router.client.post("/api/seed/messages?count=1", headers={"Origin": router.listening.url})
    assert answer.status == 202


@on_idle_router
async def test_the_home_page_leads_to_the_api_and_the_probes_without_a_script_too(idle_router: Running) -> None:
    answer = await idle_router.client.get("/")
    assert (answer.status, answer.media_type) == (200, "text/html")
    linked = re.findall('(?:href|src)="([^"]+)"', answer.text)
    for path in linked:
        assert (await idle_router.client.get(path)).status == 200, path
    assert {"/schema", "/health", "/metrics"} <= set(linked)


@on_idle_router
async def test_the_schema_page_lists_every_operation_and_needs_nothing_from_elsewhere(idle_router: Running) -> None:
    page = await idle_router.client.get("/schema")
    assert (page.status, page.media_type) == (200, "text/html")
    document = (await idle_router.client.get("/schema/openapi.json")).json
    for path in document["paths"]:
        assert f"<code>{path}</code>" in page.text
    assert "<script" not in page.text
    assert "src=" not in page.text


@on_idle_router
async def test_every_operation_is_documented(idle_router: Running) -> None:
    document = (await idle_router.client.get("/schema/openapi.json")).json
    assert document["info"]["title"] == "FlowCatalyst"
    assert "strictly in order" in document["info"]["description"]
    operations = [item[method] for item in document["paths"].values() for method in METHODS if method in item]
    assert len(operations) >= 20
    for operation in operations:
        assert operation["summary"], operation
        assert operation["description"], operation
        assert "application/problem+json" in operation["responses"]["default"]["content"], operation
        for parameter in operation.get("parameters", []):
            assert parameter.get("description"), (operation["operationId"], parameter["name"])


@on_idle_router
async def test_the_body_of_a_message_is_documented(idle_router: Running) -> None:
    document = (await idle_router.client.get("/schema/openapi.json")).json
    body = document["paths"]["/api/messages"]["post"]["requestBody"]
    choices = body["content"]["application/json"]["schema"]["anyOf"]
    (reference,) = [choice["$ref"] for choice in choices if "$ref" in choice]
    message = document["components"]["schemas"][reference.removeprefix("#/components/schemas/")]
    assert message["required"] == ["mediationTarget"]
    assert message["additionalProperties"] is False
    assert {"id", "messageGroupId", "dispatchMode", "deduplicationId"} <= set(message["properties"])
