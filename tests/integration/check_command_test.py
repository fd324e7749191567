"""`flowcatalyst check`: which settings are in force and why, and what the router would not find."""

import json
import os
import re
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from flowcatalyst.control.settings import Settings
from flowcatalyst.core.clock import SystemClock
from flowcatalyst.core.credentials import hash_key
from flowcatalyst.dispatch.sealing import new_secret_key
from flowcatalyst.queues.contract import Outgoing
from flowcatalyst.queues.embedded.store import EmbeddedStore
from flowcatalyst.queues.factory import QueueFactory
from flowcatalyst.queues.settings import QueueConfig
from tests.servers import free_port
from tests.servers.nats import nats_server
from tests.servers.postgres import postgres_server
from tests.servers.redis import redis_server
from tests.support.router_process import router_process, run_cli

SECRET = "s3cret-of-nobody"


async def check(*args: object, env: Mapping[str, str] | None = None) -> tuple[int, dict[str, Any]]:
    code, output, errors = await run_cli("check", "--json", *args, env={"FLOWCATALYST_PORT": "0", **(env or {})})
    assert errors == ""
    report: dict[str, Any] = json.loads(output)
    assert report["ok"] is (code == 0)
    return code, report


def of(report: Mapping[str, Any], name: str) -> tuple[object, str]:
    [found] = [setting for setting in report["settings"] if setting["name"] == name]
    return found["value"], found["source"]


async def test_each_setting_is_shown_with_who_set_it(tmp_path: Path) -> None:
    file = tmp_path / "flowcatalyst.toml"
    file.write_text('port = 1\n[log]\nlevel = "debug"\nformat = "json"\n[auth]\nmode = "api_key"\n')
    env = {
        "FLOWCATALYST_LOG__LEVEL": "error",
        "FLOWCATALYST_RETRY": '{"follower_s": 5}',
        "FLOWCATALYST_AUTH__ADMIN": hash_key(b"x" * 32),
        "SQS_ENDPOINT_OVERRIDE": "http://127.0.0.1:9324",
    }
    data = tmp_path / "data"
    port = free_port()
    code, report = await check("--config", file, "--port", port, "--data-dir", data, env=env)
    assert code == 0
    assert of(report, "port") == (port, "command line")
    assert of(report, "log.level") == ("error", "variable FLOWCATALYST_LOG__LEVEL")
    assert of(report, "log.format") == ("json", f"file {file}")
    assert of(report, "retry.follower_s") == (5.0, "variable FLOWCATALYST_RETRY")
    assert of(report, "retry.nack_delay_s") == (30.0, "default")
    assert of(report, "sqs.endpoint_override") == ("http://127.0.0.1:9324", "variable SQS_ENDPOINT_OVERRIDE")
    assert of(report, "egress.allow_private") == (False, "default with auth.mode")
    assert report["pools"][0] == {
        "code": "DEFAULT-POOL",
        "concurrency": 20,
        "rate_limit_per_minute": None,
        "capacity": 400,
        "made_on_demand": False,
    }
    assert not data.exists()


async def test_values_are_printed_as_a_settings_file_takes_them(tmp_path: Path) -> None:
    code, output, _ = await run_cli(
        "check", "--port", 0, "--data-dir", tmp_path, env={"FLOWCATALYST_EGRESS__ALLOW_PRIVATE": "0"}
    )
    assert code == 0
    shown = {words[0]: words[1] for line in output.splitlines() if len(words := line.split()) > 1}
    assert (shown["enabled"], shown["egress.allow_private"], shown["sync.config_url"]) == ("true", "false", "unset")
    assert {"True", "False", "None"}.isdisjoint(output.split())


@pytest.mark.parametrize("form", [(), ("--json",)], ids=["text", "json"])
async def test_no_secret_is_shown(tmp_path: Path, form: tuple[str, ...]) -> None:
    key = hash_key(SECRET.encode())
    env = {
        "FLOWCATALYST_STANDBY__REDIS_URL": f"redis://user:{SECRET}@127.0.0.1:{free_port()}/0",
        "FLOWCATALYST_NATS__PASSWORD": SECRET,
        "FLOWCATALYST_ACTIVEMQ__PASSWORD": SECRET,
        "FLOWCATALYST_AUTH__ADMIN": key,
        "FLOWCATALYST_AUTH__MODE": "api_key",
        "FLOWCATALYST_NOTIFICATIONS__WEBHOOK_URL": f"https://user:{SECRET}@hooks.example/{SECRET}?key={SECRET}",
        "MESSAGE_ROUTER_CONFIG_URL": f"http://user:{SECRET}@127.0.0.1:{free_port()}/c.json?token={SECRET}",
    }
    code, output, errors = await run_cli("check", *form, "--port", 0, "--data-dir", tmp_path, env=env)
    assert code == 2  # a start refuses the login in the webhook
    assert "hooks.example" in output
    assert SECRET not in output + errors
    assert key.partition(":")[2] not in output + errors


async def test_wrong_settings_are_one_sentence_and_code_2(tmp_path: Path) -> None:
    code, output, errors = await run_cli(
        "check", "--port", 0, "--data-dir", tmp_path, env={"FLOWCATALYST_LOG__LEVEL": "loud"}
    )
    assert (code, output) == (2, "")
    assert errors.startswith("flowcatalyst: wrong settings")
    assert errors.count("\n") == 1


async def test_a_package_that_is_missing_is_code_2(tmp_path: Path) -> None:
    (tmp_path / "nats.py").write_text("raise ModuleNotFoundError('it is not installed', name='nats')")
    file = tmp_path / "flowcatalyst.toml"
    file.write_text('[[queues]]\nname = "q"\nuri = "nats://127.0.0.1:9/S?consumer=c"\n')
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    code, report = await check("--config", file, "--data-dir", tmp_path, env={"PYTHONPATH": path})
    assert code == 2
    [queue] = [queue for queue in report["queues"] if queue["name"] == "q"]
    assert queue["said"] == (
        "NATS needs the package nats-py: in a checkout make extras, or pip install '.[nats]'; where FlowCatalyst comes "
        "from an index, pip install 'flowcatalyst[nats]'"
    )


@pytest.mark.parametrize("folder", ["/proc/nope", "/proc/nope/data", "{file}", "{file}/data", "{link}"])
async def test_a_data_folder_that_a_start_refuses_is_code_2_as_there(tmp_path: Path, folder: str) -> None:
    file, link = tmp_path / "file", tmp_path / "link"
    file.write_text("mine")
    link.symlink_to(tmp_path / "nowhere")
    data = folder.format(file=file, link=link)
    code, report = await check("--data-dir", data)
    assert code == 2
    assert report["others"][0]["where"] == data
    assert re.fullmatch(r"cannot be created \(.+\): choose another", report["others"][0]["said"])
    code, _, errors = await run_cli("up", "--port", 0, "--data-dir", data)
    assert code == 2
    assert f"data folder {data} cannot be created (" in errors
    assert not link.exists()  # what it points to was not made


@pytest.mark.parametrize(
    ("variable", "value", "name", "said"),
    [
        (
            "LOG__FILE",
            "{folder}/none/log",
            "log file",
            "log.file {folder}/none/log cannot be opened: there is no folder",
        ),
        ("LOG__FILE", "{folder}", "log file", "log.file {folder} is a folder: name a file in it"),
        ("NOTIFICATIONS__WEBHOOK_URL", "foo", "webhook", "notifications.webhook_url cannot be used: "),
        ("MEDIATOR__HTTP__CA_FILE", "{folder}/none", "certificates", "mediator.http.ca_file {folder}/none cannot be "),
        ("MEDIATOR__HTTP__CA_FILE", "{folder}/junk", "certificates", "mediator.http.ca_file {folder}/junk cannot be "),
    ],
)
async def test_what_a_start_refuses_is_one_sentence_and_code_2_as_there(
    tmp_path: Path, variable: str, value: str, name: str, said: str
) -> None:
    (tmp_path / "junk").write_text("no certificate")
    env = {f"FLOWCATALYST_{variable}": value.format(folder=tmp_path)}
    code, report = await check("--data-dir", tmp_path / "data", env=env)
    assert code == 2
    [found] = [one for one in report["others"] if not one["ok"]]
    assert found["name"] == name
    code, output, errors = await run_cli("up", "--port", 0, "--data-dir", tmp_path / "data", env=env)
    assert (code, output) == (2, "")
    *logged, last = errors.splitlines()
    assert last.startswith(f"flowcatalyst: {said.format(folder=tmp_path)}")
    assert last.endswith(found["said"])
    assert all(json.loads(line)["level"] == "info" for line in logged)


async def test_a_damaged_file_of_the_data_folder_is_code_1(tmp_path: Path) -> None:
    (tmp_path / "queue.db").write_bytes(b"this is not a database. " * 200)
    code, report = await check("--data-dir", tmp_path)
    assert code == 1
    assert report["others"][0]["said"].startswith("queue.db cannot be read: ")


async def test_a_queue_that_was_removed_under_its_router_is_code_1_and_not_backed_up(tmp_path: Path) -> None:
    store = EmbeddedStore(tmp_path / "queue.db", SystemClock())
    await store.open()
    (tmp_path / "queue.db").unlink()
    code, report = await check("--data-dir", tmp_path)
    assert (code, report["others"][0]["ok"]) == (1, False)
    assert "queue.db was removed while a process has it open" in report["others"][0]["said"]
    file = tmp_path / "backup.tar"
    code, _, errors = await run_cli("backup", file, "--data-dir", tmp_path)
    assert code == 1
    assert errors.count("\n") == 1
    assert "there would be no backup of all data" in errors
    assert not file.exists()
    await store.close()


async def test_pools_and_queues_come_from_the_config_source_if_there_is_one(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        document = {
            "processingPools": [{"code": "A", "concurrency": 3}],
            "queues": [{"queueName": "jobs", "queueUri": f"amqp://127.0.0.1:{port}/jobs"}],
        }
        (tmp_path / "router.json").write_text(json.dumps(document))
        code, report = await check("--config-url", tmp_path / "router.json", "--data-dir", tmp_path / "data")
    assert code == 0, report
    assert [(pool["code"], pool["made_on_demand"]) for pool in report["pools"]] == [
        ("A", False),
        ("DEFAULT-POOL", True),
    ]
    assert report["pools_source"] == "sync.config_url"
    assert of(report, "sync.config_url") == (str(tmp_path / "router.json"), "command line")
    assert f"127.0.0.1:{port} takes connections" in report["queues"][0]["said"]
    code, report = await check("--config-url", tmp_path / "router.json", "--data-dir", tmp_path / "data")
    assert code == 1
    assert f"127.0.0.1:{port} cannot be reached" in report["queues"][0]["said"]
    code, report = await check("--config-url", tmp_path / "none.json", "--data-dir", tmp_path / "data")
    assert code == 1
    assert "cannot be read" in report["others"][-1]["said"]


async def test_a_queue_is_asked_for_its_depth_and_neither_made_nor_read(tmp_path: Path) -> None:
    with nats_server(tmp_path / "nats") as server:
        uri = f"{server.url}/ORDERS?consumer=router&create=true"
        file = tmp_path / "flowcatalyst.toml"
        file.write_text(f'[[queues]]\nname = "q"\nuri = "{uri}"\n')
        for _ in range(2):  # it was not made the first time
            code, report = await check("--config", file, "--data-dir", tmp_path / "data")
            assert code == 0
            assert report["queues"][-1]["where"] == uri
            said = "stream ORDERS does not exist; the router makes it (create=true)"
            assert report["queues"][-1]["said"] == said
        file.write_text(f'[[queues]]\nname = "q"\nuri = "{uri.removesuffix("&create=true")}"\n')
        code, report = await check("--config", file, "--data-dir", tmp_path / "data")
        assert code == 1
        assert report["queues"][-1]["said"].endswith("does not exist: create it, or add create=true to the address")
        file.write_text(f'[[queues]]\nname = "q"\nuri = "{uri}"\n')
        clock = SystemClock()
        factory = QueueFactory(EmbeddedStore(tmp_path / "queue.db", clock), Settings(data_dir=tmp_path), clock)
        factory.add_publishers([QueueConfig("q", uri)])
        await factory.open_publishers()
        await factory.publishers["q"].publish([Outgoing("{}", "g"), Outgoing("{}", "g")])
        await factory.publishers["q"].depth()  # makes its consumer
        for _ in range(2):  # nothing was taken the first time
            code, report = await check("--config", file, "--data-dir", tmp_path / "data")
            assert (code, report["queues"][-1]["said"]) == (0, "answers: 2 waiting, 0 in flight, 0 delayed")
        await factory.close_publishers()


async def test_the_standby_lock_is_looked_at_and_not_touched(tmp_path: Path) -> None:
    with redis_server(tmp_path) as server:
        env = {"FLOWCATALYST_STANDBY__REDIS_URL": server.url}
        code, report = await check("--data-dir", tmp_path, env=env)
        assert (code, report["others"][-1]["said"]) == (0, "nobody holds it")
        server.command("SET", "flowcatalyst:router:primary", "router-1#7", "PX", "600000")
        code, report = await check("--data-dir", tmp_path, env=env)
        assert (code, report["others"][-1]["said"]) == (0, "router-1 is primary")
        assert "router-1#7" in server.command("GET", "flowcatalyst:router:primary")
    code, report = await check("--data-dir", tmp_path, env=env)
    assert (code, report["others"][-1]["said"]) == (1, "Redis refuses connections")


@pytest.mark.parametrize("words", [("-h",), ("check", "-h"), ("router", "--help")])
async def test_help_is_short_or_long(words: tuple[str, ...]) -> None:
    code, output, _ = await run_cli(*words)
    assert code == 0
    assert output.startswith("Usage: ")


async def test_a_database_of_jobs_is_asked_and_its_password_never_shown(tmp_path: Path) -> None:
    with postgres_server(tmp_path / "postgres", password=SECRET) as server:
        env = {"FLOWCATALYST_PLATFORM__ENABLED": "true", "FLOWCATALYST_PLATFORM__DATABASE_URL": server.url}
        code, report = await check("--data-dir", tmp_path / "data", env=env)
        [found] = [one for one in report["others"] if one["name"] == "database of jobs"]
        assert (code, found["ok"]) == (0, True)
        assert "answers: PostgreSQL" in found["said"]
        assert SECRET not in json.dumps(report)
        wrong = env | {"FLOWCATALYST_PLATFORM__DATABASE_URL": server.url.replace(SECRET, f"not-{SECRET}")}
        code, output, errors = await run_cli("check", "--port", 0, "--data-dir", tmp_path / "data", env=wrong)
        assert (code, errors) == (2, "")
        assert "refuses our user or password: the user is " in output
        assert "from platform.database_url; set platform.database_url" in output
        assert SECRET not in output
    code, report = await check("--data-dir", tmp_path / "data", env=env)
    [found] = [one for one in report["others"] if one["name"] == "database of jobs"]
    assert (code, found["ok"]) == (1, False)
    assert "cannot be reached: connection refused" in found["said"]


async def test_a_database_of_jobs_is_asked_unless_the_platform_is_off(tmp_path: Path) -> None:
    env = {"FLOWCATALYST_PLATFORM__DATABASE_URL": f"postgresql://u:p@127.0.0.1:{free_port()}/jobs"}
    code, report = await check("--data-dir", tmp_path / "data", env=env)
    assert (code, [one["name"] for one in report["others"] if not one["ok"]]) == (1, ["database of jobs"])
    code, report = await check("--data-dir", tmp_path / "data", env=env | {"FLOWCATALYST_PLATFORM__ENABLED": "false"})
    assert (code, [one["name"] for one in report["others"]]) == (0, ["data folder", "port"])
    (tmp_path / "asyncpg.py").write_text("raise ModuleNotFoundError('it is not installed', name='asyncpg')")
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    code, report = await check("--data-dir", tmp_path / "data", env=env | {"PYTHONPATH": path})
    [found] = [one for one in report["others"] if one["name"] == "database of jobs"]
    assert code == 2
    assert found["said"].startswith("platform.database_url needs the package asyncpg")


async def test_a_database_of_jobs_without_a_key_of_secrets_is_a_warning_also_at_the_start(tmp_path: Path) -> None:
    url = f"postgresql://u:p@127.0.0.1:{free_port()}/jobs"
    env = {"FLOWCATALYST_PLATFORM__DATABASE_URL": url, "FLOWCATALYST_LOG__FORMAT": "json"}
    _, report = await check("--data-dir", tmp_path / "data", env=env)
    [found] = [one for one in report["others"] if one["name"] == "key of secrets"]
    assert (found["ok"], found["warning"]) == (True, True)
    async with router_process(tmp_path, command=("platform",), env=env) as platform:
        await platform.terminate()
        said = [json.loads(line) for line in platform.log.read_text().splitlines()]
    [warned] = [line for line in said if line["action"] == "secret_key_missing"]
    assert warned["problem"] == f"{found['where']} {found['said']}"
    given = env | {"FLOWCATALYST_PLATFORM__SECRET_KEY": new_secret_key()}
    _, report = await check("--data-dir", tmp_path / "data", env=given)
    assert "key of secrets" not in [one["name"] for one in report["others"]]


@pytest.mark.parametrize("command", ["check", "up"])
async def test_a_url_of_a_database_that_nobody_understands_is_told_in_one_sentence_without_it(
    tmp_path: Path, command: str
) -> None:
    url = f"mysql://user:{SECRET}@127.0.0.1/jobs"
    env = {"FLOWCATALYST_PLATFORM__ENABLED": "true", "FLOWCATALYST_PLATFORM__DATABASE_URL": url}
    code, output, errors = await run_cli(command, "--data-dir", tmp_path / "data", env=env)
    assert code == 2
    assert "platform.database_url has no known scheme; its form is postgresql://" in output + errors
    assert SECRET not in output + errors
    assert "Traceback" not in errors


async def port_line(*args: object) -> tuple[int, str]:
    code, output, _ = await run_cli("check", *args)
    [line] = [line for line in output.splitlines() if "  port  127." in line]
    return code, line.strip()


async def test_a_port_in_use_is_told_with_its_user_if_that_is_the_router_on_the_folder(tmp_path: Path) -> None:
    async with router_process(tmp_path) as router:
        port = router.url.rpartition(":")[2]
        code, line = await port_line("--port", port, "--data-dir", router.data_dir)
        assert code == 0
        pid = router.process.pid
        assert line == f"ok    port  127.0.0.1:{port}: in use by the router on this data folder (process {pid})"
        code, line = await port_line("--port", port, "--data-dir", tmp_path / "other")
        assert code == 1
        assert line.startswith(f"FAIL  port  127.0.0.1:{port}: port {port} on 127.0.0.1 is in use")
    code, line = await port_line("--port", port, "--data-dir", router.data_dir)
    assert (code, line) == (0, f"ok    port  127.0.0.1:{port}: free")


async def test_a_file_without_bytes_is_told(tmp_path: Path) -> None:
    (tmp_path / "queue.db").touch()
    _, report = await check("--data-dir", tmp_path)
    assert f"{tmp_path / 'queue.db'} has 0 bytes" in report["others"][0]["said"]
