"""`flowcatalyst router` as a real process: where its pools and queues come from, and what it says when they do not."""

from collections.abc import Mapping
from pathlib import Path

import aiohttp
import pytest

from tests.support.config_server import hanging
from tests.support.http_servers import always, closed_port, raw_server, reply
from tests.support.live import Api, document, live, messages
from tests.support.router_process import router_process, run_cli

URL_VARIABLE = "MESSAGE_ROUTER_CONFIG_URL"
TWO_QUICK_ATTEMPTS = {"FLOWCATALYST_SYNC__ATTEMPTS": "2", "FLOWCATALYST_SYNC__ATTEMPT_PAUSE_S": "0.1"}
POOLS = {"FAST": 7, "SLOW": {"concurrency": 2, "rateLimitPerMinute": 600, "capacity": 99}}


async def refused(folder: Path, *options: object, env: Mapping[str, str] | None = None) -> tuple[int, str]:
    """Exit code and last words of a start that has to fail: one sentence, no stack trace."""
    code, output, errors = await run_cli("router", "--port", 0, "--data-dir", folder / "data", *options, env=env)
    assert output == ""
    assert "Traceback" not in errors
    *logged, said = errors.splitlines()
    assert said.startswith("flowcatalyst: ")
    assert [line for line in logged if not line.startswith('{"action":')] == []
    return code, said


# The start


async def test_without_a_config_url_the_router_ends_with_2_and_says_what_to_set(tmp_path: Path) -> None:
    code, said = await refused(tmp_path)
    assert code == 2
    assert URL_VARIABLE in said
    assert "--config-url" in said


async def test_a_config_url_that_can_never_be_fetched_ends_with_2(tmp_path: Path) -> None:
    code, said = await refused(tmp_path, "--config-url", "ftp://config.test/router.json")
    assert code == 2
    assert "ftp://... is not http, https or file" in said


@pytest.mark.parametrize("by_variable", [True, False])
async def test_a_config_server_that_is_not_there_ends_the_start_with_1(tmp_path: Path, by_variable: bool) -> None:
    url = f"http://127.0.0.1:{closed_port()}/config"
    options, variable = ((), {URL_VARIABLE: url}) if by_variable else (("--config-url", url), {})
    code, said = await refused(tmp_path, *options, env=TWO_QUICK_ATTEMPTS | variable)
    assert code == 1
    assert "first config sync failed after 2 attempts" in said
    assert url in said


async def test_a_config_server_that_never_answers_ends_the_start_with_1(tmp_path: Path) -> None:
    async with raw_server(hanging) as server:
        env = TWO_QUICK_ATTEMPTS | {URL_VARIABLE: server.url(), "FLOWCATALYST_SYNC__TIMEOUT_S": "0.2"}
        code, said = await refused(tmp_path, env=env)
        assert len(server.requests) == 2
    assert code == 1
    assert f"{server.url()} did not answer within 0.2 s" in said


async def test_a_config_server_that_says_nonsense_ends_the_start_with_1(tmp_path: Path) -> None:
    async with raw_server(always(reply(200, b"<html>"))) as server:
        code, said = await refused(tmp_path, "--config-url", server.url(), env=TWO_QUICK_ATTEMPTS)
    assert code == 1
    assert "is not valid JSON" in said


async def test_a_json_file_works_as_the_source_and_its_changes_are_seen(tmp_path: Path) -> None:
    source = tmp_path / "config.json"
    source.write_bytes(document(POOLS, ["orders"]))
    async with (
        router_process(tmp_path, command=("router",), env={URL_VARIABLE: str(source)}) as router,
        aiohttp.ClientSession() as session,
    ):
        api = Api(session, router.url)
        assert await api.polled() == {"orders"}
        source.write_bytes(document(POOLS, ["orders", "bills"]))
        assert await api.reload() == {"changed": True, "queuesAdded": ["bills"]}
        assert (await router.terminate())[0] == 0


# What it does with a configuration


async def test_the_queues_of_the_configuration_are_polled_and_its_pools_have_its_limits(tmp_path: Path) -> None:
    async with live(tmp_path) as scene:
        scene.config.say(POOLS, ["orders", {"queueName": "bills", "queueUri": "embedded:bills", "connections": 3}])
        async with scene.router() as router:
            api = scene.api(router)
            config = await api.get("/monitoring/config")
            assert config["synced"]
            assert [source["url"] for source in config["sources"]] == [scene.config.url]
            assert {pool["code"]: pool["concurrency"] for pool in config["processingPools"]} == {
                "FAST": 7,
                "SLOW": 2,
                "DEFAULT-POOL": 20,
            }
            assert {queue["queueName"]: queue["connections"] for queue in config["queues"]} == {"orders": 1, "bills": 3}
            pools = await api.pools()
            assert pools.keys() == {"FAST", "SLOW"}
            assert (pools["SLOW"]["rateLimitPerMinute"], pools["SLOW"]["capacity"]) == (600, 99)
            assert await api.polled() == {"orders", "bills"}
            for queue in ("orders", "bills"):
                await scene.publish(messages(scene.witness.url, [queue], range(1, 4), "FAST"), queue)
            await scene.until_delivered()
            assert (await api.pools())["FAST"]["delivered"] == 6
            await scene.stop(router)
        await scene.assert_every_promise_was_kept()


async def test_only_queues_of_the_configuration_take_messages_and_the_test_bench_is_not_served(tmp_path: Path) -> None:
    async with live(tmp_path) as scene:
        scene.config.say(POOLS, ["orders"])
        async with scene.router() as router:
            api = scene.api(router)
            new = {"mediationTarget": f"{scene.witness.url}/g"}
            await api.post("/api/messages?queue=orders", new)
            await scene.witness.until_acked(1)
            assert await api.status("POST", "/api/messages?queue=default", new) == 404  # nobody would deliver it
            assert [queue["name"] for queue in await api.get("/monitoring/queue-stats")] == ["orders"]
            for path in ("/api/seed/messages", "/api/test/success", "/api/test/stats/reset"):
                assert await api.status("POST", path, {}) == 404
            assert await api.status("GET", "/api/test/stats") == 404
            await scene.stop(router)


# Reload


async def test_a_reload_applies_a_change_at_once_and_tells_what_it_was(tmp_path: Path) -> None:
    async with live(tmp_path) as scene:
        scene.config.say({"GROWS": 2, "SHRINKS": 9, "GOES": 1}, ["stays", "goes"])
        async with scene.router() as router:
            api = scene.api(router)
            assert await api.reload() == {}
            scene.config.say(
                {"GROWS": 20, "SHRINKS": {"concurrency": 3, "rateLimitPerMinute": 60}, "COMES": 4}, ["stays", "comes"]
            )
            report = await api.reload()
            assert report == {
                "changed": True,
                "poolsAdded": ["COMES"],
                "poolsChanged": ["GROWS", "SHRINKS"],
                "poolsRemoved": ["GOES"],
                "queuesAdded": ["comes"],
                "queuesRemoved": ["goes"],
            }
            pools = await api.pools()
            assert {code: pool["concurrency"] for code, pool in pools.items()} == {
                "GROWS": 20,
                "SHRINKS": 3,
                "COMES": 4,
            }
            assert pools["SHRINKS"]["rateLimitPerMinute"] == 60
            assert await api.polled() == {"stays", "comes"}
            for queue in ("goes", "comes"):
                await scene.publish(messages(scene.witness.url, [queue], range(1, 3)), queue)
            await scene.witness.until_acked(2)
            assert scene.witness.acked.keys() == {"run.comes.1", "run.comes.2"}
            scene.config.say({}, ["goes"])
            assert (await api.reload())["queuesAdded"] == ["goes"]
            await scene.until_delivered()
            await scene.stop(router)
        await scene.assert_every_promise_was_kept()


async def test_an_entry_that_cannot_be_used_is_named_while_the_others_apply(tmp_path: Path) -> None:
    async with live(tmp_path) as scene:
        scene.config.say({"GOOD": 1}, ["orders"])
        async with scene.router() as router:
            api = scene.api(router)
            scene.config.say({"GOOD": 5, "BAD": {"concurrency": -3}}, ["orders", "bills"])
            report = await api.reload()
            assert report["poolsChanged"] == ["GOOD"]
            assert report["queuesAdded"] == ["bills"]
            [problem] = report["problems"]
            assert "'BAD'" in problem
            assert "concurrency is -3" in problem
            assert (await api.get("/monitoring/config"))["problems"] == [problem]
            assert {code: pool["concurrency"] for code, pool in (await api.pools()).items()} == {"GOOD": 5}
            await scene.stop(router)


FOREIGN = {"queueName": "foreign", "queueUri": "amqp://user:secret@broker.test/foreign"}


async def test_a_queue_whose_uri_nobody_knows_is_named_at_the_start_while_the_others_work(tmp_path: Path) -> None:
    async with live(tmp_path) as scene:
        scene.config.say(POOLS, [FOREIGN, "orders"])
        async with scene.router() as router:
            api = scene.api(router)
            assert await api.polled() == {"orders"}
            await assert_foreign_is_named(api)
            await scene.publish(messages(scene.witness.url, ["a", "b"], range(1, 3)))
            await scene.until_delivered()
            await scene.stop(router)
        assert "secret" not in router.log.read_text()
        await scene.assert_every_promise_was_kept()


async def test_a_queue_whose_uri_nobody_knows_is_named_at_a_reload_while_the_others_apply(tmp_path: Path) -> None:
    async with live(tmp_path) as scene:
        scene.config.say(POOLS, ["orders"])
        async with scene.router() as router:
            api = scene.api(router)
            scene.config.say({"NEW": 1}, [FOREIGN, "bills"])
            await api.reload()
            assert await api.polled() == {"bills"}
            assert (await api.pools()).keys() == {"NEW"}
            await assert_foreign_is_named(api)
            scene.config.say({"NEW": 1}, [{"queueName": "bills", "queueUri": "kafka://broker.test/bills"}])
            await api.reload()
            assert await api.polled() == {"bills"}  # as with any entry that cannot be used: it stays as it was
            scene.config.say({"NEW": 1}, ["bills", {"queueName": "foreign", "queueUri": "embedded:foreign"}])
            await api.reload()
            assert await api.polled() == {"bills", "foreign"}
            await scene.stop(router)


async def assert_foreign_is_named(api: Api) -> None:
    warnings = await api.get("/monitoring/warnings")
    [said] = [one["message"] for one in warnings if one["code"] == "CONFIG_REJECTED"]
    assert "foreign" in said
    assert "amqp://HOST:PORT/QUEUE" in said
    assert "secret" not in said


async def test_a_config_server_that_dies_later_leaves_everything_as_it_is_with_a_warning(tmp_path: Path) -> None:
    async with live(tmp_path) as scene:
        scene.config.say(POOLS, ["orders"])
        async with scene.router() as router:
            api = scene.api(router)
            assert (await api.get("/monitoring/health"))["status"] == "HEALTHY"
            before = await api.get("/monitoring/config")
            await scene.config.server.stop()
            report = await api.reload()
            assert report.keys() == {"unreachable"}
            after = await api.get("/monitoring/config")
            assert [after[what] for what in ("processingPools", "queues")] == [
                before[what] for what in ("processingPools", "queues")
            ]
            [warning] = await api.get("/monitoring/warnings")
            assert warning["code"] == "CONFIG_SYNC_FAILED"
            assert "stay as they are" in warning["message"]
            health = await api.get("/monitoring/health")
            assert health["status"] == "WARNING"
            assert [reason["part"] for reason in health["reasons"]] == ["config sync"]
            await scene.publish(messages(scene.witness.url, ["a"], range(1, 4), "FAST"))
            await scene.until_delivered()
            await scene.stop(router)
        await scene.assert_every_promise_was_kept()
