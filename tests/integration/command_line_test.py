"""The command `flowcatalyst` as people meet it: what it prints, how it ends, what it says when something is wrong."""

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from flowcatalyst.cli.main import command_line
from tests.support.patience import PATIENCE_S
from tests.support.router_process import router_process, run_cli


async def refused(*args: object) -> tuple[int, str]:
    """Exit code and message of a start that has to fail: one sentence, no stack trace."""
    code, output, errors = await run_cli(*args)
    assert output == ""
    assert "Traceback" not in errors
    assert errors.startswith("flowcatalyst: ")
    assert errors.count("\n") == 1
    return code, errors


async def test_a_port_in_use_is_named(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        code, said = await refused("up", "--port", port, "--data-dir", tmp_path / "data")
    assert code == 2
    assert f"port {port} on 127.0.0.1 is in use" in said


@pytest.mark.parametrize("folder", ["/proc/flowcatalyst", "/dev/null/data"])
async def test_a_data_folder_that_cannot_be_made_is_named(folder: str) -> None:
    code, said = await refused("up", "--port", 0, "--data-dir", folder)
    assert code == 2
    assert f"data folder {folder} cannot be created" in said


@pytest.mark.parametrize("name", ["queue.db", "dead-letters.db", "audit.db"])
async def test_a_corrupt_database_file_is_named_and_left_as_it_is(tmp_path: Path, name: str) -> None:
    garbage = b"this is not a database, whatever its name says. " * 100
    (tmp_path / name).write_bytes(garbage)
    code, said = await refused("up", "--port", 0, "--data-dir", tmp_path)
    assert code == 1
    assert f"{tmp_path / name} is not a SQLite database" in said
    assert (tmp_path / name).read_bytes() == garbage


async def test_a_second_router_on_a_folder_says_so_at_its_start(tmp_path: Path) -> None:
    async with (
        router_process(tmp_path) as first,
        router_process(tmp_path, stderr=asyncio.subprocess.PIPE) as second,
    ):
        assert second.process.stderr is not None
        said = (await second.process.stderr.readline()).decode()
    who = f"the router at {first.url} (process {first.process.pid})"
    assert said.startswith(f"flowcatalyst: {who} has the data folder {first.data_dir} open too: ")


async def test_http2_without_its_package_is_named(tmp_path: Path) -> None:
    (tmp_path / "pyreqwest.py").write_text("raise ModuleNotFoundError('it is not installed', name='pyreqwest')")
    (tmp_path / "flowcatalyst.toml").write_text("[mediator.http]\nversion = 'HTTP_2'\n")
    args = ("up", "--port", 0, "--data-dir", tmp_path / "data", "--config", tmp_path / "flowcatalyst.toml")
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    code, output, errors = await run_cli(*args, env={"PYTHONPATH": path})
    assert (code, output) == (2, "")
    needs = (
        "mediator.http.version HTTP_2 needs the package pyreqwest: in a checkout make extras, or pip install '.[http2]'"
    )
    assert errors.splitlines()[-1].startswith(f"flowcatalyst: {needs}")
    assert "Traceback" not in errors


async def test_a_router_without_http2_never_loads_it_and_ends_like_any_python_program(tmp_path: Path) -> None:
    (tmp_path / "pyreqwest.py").write_text("raise ModuleNotFoundError('it is not installed', name='pyreqwest')")
    (tmp_path / "sitecustomize.py").write_text("import atexit\natexit.register(print, 'the interpreter ended')\n")
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    async with router_process(tmp_path, env={"PYTHONPATH": path}) as router:
        code, rest = await router.terminate()
    assert code == 0
    assert rest.endswith("the interpreter ended\n")


async def test_wrong_settings_are_named(tmp_path: Path) -> None:
    config = tmp_path / "wrong.toml"
    config.write_text("[[pools]]\ncode = 'A'\nconcurrency = -1\n")
    code, said = await refused("up", "--config", config)
    assert code == 2
    assert "pools.0.concurrency" in said
    code, said = await refused("up", "--host", "0.0.0.0", "--data-dir", tmp_path / "data")
    assert code == 2
    assert "no access control yet" in said


async def test_demo_reports_deliveries_in_order_and_ctrl_c_drains(tmp_path: Path) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "flowcatalyst", "up", "--demo", "--port", "0", "--data-dir", tmp_path / "data"),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    printed = ""
    while "delivered" not in printed:
        line = (await process.stdout.readline()).decode()
        assert line, f"it ended early: {printed}"
        printed += line
    process.send_signal(signal.SIGINT)
    rest, errors = await process.communicate()
    found = re.search(r"delivered ([\d,]+) .* order violations: (\d+)", printed)
    assert found is not None
    assert int(found[1].replace(",", "")) > 0
    assert found[2] == "0"
    assert process.returncode == 0
    assert "Nothing was lost" in rest.decode()
    assert errors == b""


async def test_a_second_signal_ends_at_once_and_what_was_held_comes_back_at_the_next_start(tmp_path: Path) -> None:
    async with router_process(tmp_path) as router:
        router.process.send_signal(signal.SIGTERM)
        router.process.send_signal(signal.SIGINT)
        await router.process.communicate()
        assert router.process.returncode in (0, 130)  # 0 if the drain was over before the second one came
    async with router_process(tmp_path) as router:
        code, _ = await router.terminate()
        assert code == 0


@pytest.mark.parametrize(
    ("level", "told"), [("debug", {"polled", "admitted", "attempt_started", "attempt"}), ("info", {"attempt"})]
)
async def test_debug_tells_of_polls_and_of_each_message_on_its_way(tmp_path: Path, level: str, told: set[str]) -> None:
    async with router_process(tmp_path, env={"FLOWCATALYST_LOG__LEVEL": level}) as router:
        await run_cli("publish", "--router", router.url, "--target", f"{router.url}/api/test/success", "--id", "m-1")
        async with asyncio.timeout(PATIENCE_S):
            while '"action":"attempt",' not in router.log.read_text():
                await asyncio.sleep(0.05)
        await router.terminate()
    lines = [json.loads(line) for line in router.log.read_text().splitlines()]
    of_message = {line["action"] for line in lines if line.get("message") == "m-1"}
    polls = {line["action"] for line in lines if line["action"] == "polled" and line["messages"] == 1}
    assert of_message | polls == told
    assert {line["level"] for line in lines} == {"info", *({"debug"} if level == "debug" else ())}


@pytest.mark.parametrize("named", [{}, {"FLOWCATALYST_EMBEDDED__QUEUES": "[]"}])
async def test_embedded_queues_that_nobody_named_are_told_of_beside_those_that_somebody_did(
    tmp_path: Path, named: dict[str, str]
) -> None:
    env = {"FLOWCATALYST_QUEUES": '[{"name": "orders", "uri": "embedded:orders"}]', **named}
    env["FLOWCATALYST_LOG__LEVEL"] = "info"
    async with router_process(tmp_path, env=env) as router:
        code, rest = await router.terminate()
    said = "It reads the embedded queues default, high, medium, low too: embedded.queues = [] leaves them out."
    assert code == 0
    assert (said in rest) == (not named)
    lines = [json.loads(line) for line in router.log.read_text().splitlines()]
    assert any(line.get("action") == "embedded_queues_too" for line in lines) == (not named)


def test_a_command_by_itself_is_what_it_is_among_all_of_them() -> None:
    everything = command_line().registered_commands
    assert len(everything) >= 10
    for command in everything:
        (alone,) = command_line([str(command.name), "--help"]).registered_commands
        assert alone.callback is command.callback
    for given in ([], ["--help"], ["chek"]):  # help and what is misspelt name all of them
        assert [command.name for command in command_line(given).registered_commands] == [
            command.name for command in everything
        ]


def test_a_command_that_needs_no_router_loads_none() -> None:
    load = "import sys; from flowcatalyst.cli.main import command_line; command_line(['hash-key']); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", load], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert "flowcatalyst.cli.access" in loaded
    assert loaded.isdisjoint(
        {"litestar", "pydantic", "uvloop", "flowcatalyst.router.router", "flowcatalyst.simulation"}
    )
