import json
from pathlib import Path
from typing import Any

from tests.api.running import Running, on_idle_router, run_router
from tests.support.http_servers import in_turn, raw_server, reply

PATH = "/monitoring/config"


def document(**concurrency: int) -> str:
    pools = [{"code": code, "concurrency": number} for code, number in concurrency.items()]
    return json.dumps({"processingPools": pools, "queues": [{"queueName": "orders", "queueUri": "embedded:default"}]})


@on_idle_router
async def test_without_a_config_url_the_settings_are_in_force(idle_router: Running) -> None:
    found: dict[str, Any] = (await idle_router.client.get(PATH)).json
    pools, queues = found.pop("processingPools"), found.pop("queues")
    assert found == {
        "synced": False,
        "lastSuccessAt": None,
        "lastAttemptAt": None,
        "lastError": "",
        "problems": [],
        "sources": [],
    }
    assert [pool["code"] for pool in pools] == ["DEFAULT-POOL", "POOL-HIGH", "POOL-MEDIUM", "POOL-LOW"]
    assert pools[3] == {
        "code": "POOL-LOW",
        "concurrency": 2,
        "rateLimitPerMinute": None,
        "capacity": 50,
        "failureScope": "group",
        "maxDeliveryAttempts": None,
        "parkedLimit": 10_000,
        "retryStatuses": [],
        "success": "2xx",
        "ackBeforeNext": False,
        "source": "default",
        "changedByApi": {},
    }
    assert queues[3] == {
        "queueName": "low",
        "queueUri": "embedded:low",
        "connections": 1,
        "visibilityTimeout": None,
        "source": "default",
        "raw": None,
    }


@on_idle_router
async def test_a_reload_without_a_config_url_is_refused(idle_router: Running) -> None:
    (await idle_router.client.post("/config/reload")).assert_problem(409, "no config URL", "restart")


async def test_a_reload_puts_in_force_what_is_new_and_reports_it(tmp_path: Path) -> None:
    source = tmp_path / "router.json"
    source.write_text(document(A=1, B=2))
    async with run_router(tmp_path / "data", sync={"config_url": str(source)}) as router:
        found = (await router.client.get(PATH)).json
        assert (found["synced"], found["lastError"], found["sources"][0]["ok"]) == (True, "", True)
        assert [pool["code"] for pool in found["processingPools"]] == ["A", "B", "DEFAULT-POOL"]
        nothing: dict[str, Any] = {
            "changed": False,
            "poolsAdded": [],
            "poolsChanged": [],
            "poolsRemoved": [],
            "queuesAdded": [],
            "queuesChanged": [],
            "queuesRemoved": [],
            "problems": [],
            "unreachable": [],
        }
        answer = await router.client.post("/config/reload")
        assert (answer.status, answer.json) == (200, nothing)
        source.write_text(document(B=5, C=3))
        change = {"changed": True, "poolsAdded": ["C"], "poolsChanged": ["B"], "poolsRemoved": ["A"]}
        assert (await router.client.post("/config/reload")).json == {**nothing, **change}
        found = (await router.client.get(PATH)).json
        assert {pool["code"]: pool["concurrency"] for pool in found["processingPools"]} == {
            "B": 5,
            "C": 3,
            "DEFAULT-POOL": 20,
        }


async def test_a_source_that_fails_says_why_without_its_credentials(tmp_path: Path) -> None:
    good, bad = reply(200, document(A=1).encode()), reply(500)
    async with raw_server(in_turn(lambda call: call.send(good), lambda call: call.send(bad))) as server:
        url = server.url("/config").replace("http://", "http://ann:s3cret@")
        async with run_router(tmp_path, sync={"config_url": url}) as router:
            answer = await router.client.post("/config/reload")
            (sentence,) = answer.json["unreachable"]
            assert "500" in sentence
            assert not answer.json["changed"]
            answer = await router.client.get(PATH)
            assert "s3cret" not in answer.text
            (source,) = answer.json["sources"]
            assert (source["ok"], source["failure"]) == (False, sentence)
            assert answer.json["lastError"] == sentence
            assert [pool["code"] for pool in answer.json["processingPools"]] == ["A", "DEFAULT-POOL"]  # as before


async def test_entries_that_cannot_be_used_are_listed(tmp_path: Path) -> None:
    source = tmp_path / "router.json"
    source.write_text(document(A=1, B=-1))
    async with run_router(tmp_path / "data", sync={"config_url": str(source)}) as router:
        found = (await router.client.get(PATH)).json
        assert len(found["problems"]) == 1
        assert "B" in found["problems"][0]


async def test_a_reload_tells_of_a_queue_that_nobody_can_make_until_it_is_mended(tmp_path: Path) -> None:
    source = tmp_path / "router.json"
    source.write_text(document(A=1))
    async with run_router(tmp_path / "data", sync={"config_url": str(source)}) as router:
        wrong = {"queueName": "n", "queueUri": "kafka://127.0.0.1/topic"}
        source.write_text(json.dumps({**json.loads(document(A=1)), "queues": [wrong]}))
        report = (await router.client.post("/config/reload")).json
        (problem,) = report["problems"]
        assert problem.startswith("queue n: its queueUri has no known scheme")
        assert report["queuesAdded"] == []
        assert (await router.client.get(PATH)).json["problems"] == [problem]
        (warning,) = (await router.client.get("/monitoring/warnings?acknowledged=false")).json
        assert (warning["code"], warning["message"]) == ("CONFIG_REJECTED", problem)
        source.write_text(document(A=1))
        assert (await router.client.post("/config/reload")).json["problems"] == []
        assert (await router.client.get("/monitoring/warnings?acknowledged=false")).json == []


async def test_the_queue_of_a_source_has_the_name_it_has_there(tmp_path: Path) -> None:
    source = tmp_path / "router.json"
    source.write_text(document(A=1))
    async with run_router(tmp_path / "data", sync={"config_url": str(source)}) as router:
        (queue,) = (await router.client.get(PATH)).json["queues"]
        assert (queue["queueName"], queue["queueUri"]) == ("orders", "embedded:default")
        assert "orders" in {one["name"] for one in (await router.client.get("/monitoring/queue-stats")).json}


async def test_a_queue_that_was_removed_takes_no_messages_until_it_is_configured_again(tmp_path: Path) -> None:
    source = tmp_path / "router.json"
    both, one = ['{"queueName": "pay"}', '{"queueName": "mail"}'], ['{"queueName": "mail"}']
    source.write_text(f'{{"queues": [{", ".join(both)}]}}')
    async with run_router(tmp_path / "data", sync={"config_url": str(source)}) as router:
        target = router.receiver("fast")
        assert (await router.client.post("/api/messages?queue=pay", {"mediationTarget": target})).status == 202
        for queues, status in ((one, 404), (both, 202)):
            source.write_text(f'{{"queues": [{", ".join(queues)}]}}')
            assert (await router.client.post("/config/reload")).status == 200
            answer = await router.client.post("/api/messages?queue=pay", {"mediationTarget": target})
            assert answer.status == status, answer.text
            if status == 404:
                answer.assert_problem(404, "there is no queue 'pay'; the queues are: mail")
        await router.until_settled()
        assert (await router.stats())["totalRequests"] == 2


async def test_a_queue_that_comes_back_while_the_router_rests_takes_messages_again(tmp_path: Path) -> None:
    source = tmp_path / "router.json"
    source.write_text('{"queues": [{"queueName": "pay"}, {"queueName": "mail"}]}')
    async with run_router(tmp_path / "data", sync={"config_url": str(source)}) as router:
        source.write_text('{"queues": [{"queueName": "mail"}]}')
        assert (await router.client.post("/config/reload")).status == 200
        source.write_text('{"queues": [{"queueName": "pay"}, {"queueName": "mail"}]}')
        router.app.at_work = False  # as a standby: the next term begins with what is configured then
        assert (await router.client.post("/config/reload")).status == 200
        router.app.at_work = True
        message = {"mediationTarget": router.receiver("fast")}
        assert (await router.client.post("/api/messages?queue=pay", message)).status == 202


async def test_a_pool_that_was_changed_by_the_api_shows_what_is_in_force_and_what_is_configured(tmp_path: Path) -> None:
    source = tmp_path / "router.json"
    source.write_text(document(A=1, B=2))
    async with run_router(tmp_path / "data", sync={"config_url": str(source)}) as router:
        change = {"concurrency": 7, "retryStatuses": [404], "rateLimitPerMinute": 60}
        assert (await router.client.put("/monitoring/pools/A", change)).status == 200

        async def pools() -> dict[str, Any]:
            return {pool["code"]: pool for pool in (await router.client.get(PATH)).json["processingPools"]}

        found = await pools()
        assert {name: found["A"][name] for name in change} == change
        assert found["A"]["capacity"] == 140
        before: dict[str, Any] = {"concurrency": 1, "rateLimitPerMinute": None, "capacity": 50, "retryStatuses": []}
        assert (found["A"]["source"], found["A"]["changedByApi"]) == ("sync", before)
        assert (found["B"]["concurrency"], found["B"]["source"], found["B"]["changedByApi"]) == (2, "sync", {})
        source.write_text(document(A=3, B=2))
        assert (await router.client.post("/config/reload")).json["poolsChanged"] == ["A"]
        found = await pools()
        assert (found["A"]["concurrency"], found["A"]["changedByApi"]) == (3, {})
        router.app.at_work = False  # a standby has no pools yet
        assert (await pools())["A"]["concurrency"] == 3
        router.app.at_work = True


async def test_a_raw_queue_is_shown_without_its_secrets(tmp_path: Path) -> None:
    raw = {"target": "http://127.0.0.1:9/hook?key=SECRET", "group": "$.g", "headers": {"X-Tenant": "SECRET"}}
    async with run_router(tmp_path, queues=[{"name": "shop", "uri": "embedded:shop", "raw": raw}]) as router:
        answer = await router.client.get("/monitoring/config")
    assert [queue["raw"] for queue in answer.json["queues"] if queue["queueName"] == "shop"] == [
        {
            "target": "http://127.0.0.1:9/hook?***",
            "pool": "DEFAULT-POOL",
            "group": "$.g",
            "id": "broker",
            "missing": "reject",
            "mode": None,
            "contentType": "application/json",
            "headers": ["X-Tenant"],
        }
    ]
    assert "SECRET" not in answer.text
