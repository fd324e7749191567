"""`flowcatalyst publish` and `flowcatalyst seed`: messages into a queue while no router runs, and what goes wrong."""

import asyncio
import json
import os
import re
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from uuid import UUID

import aiohttp
import pytest

from flowcatalyst.core.message import DispatchMode, MessagePointer, parse_pointer
from flowcatalyst.queues.embedded.store import OwnerLock
from flowcatalyst.sandbox.order_judge import SeededId
from tests.servers import free_port
from tests.servers.nats import nats_server
from tests.support.command import TARGET, Command, in_queue
from tests.support.patience import PATIENCE_S
from tests.support.router_process import router_process


def lines(*messages: object) -> bytes:
    return b"".join(f"{one if isinstance(one, str) else json.dumps(one)}\n".encode() for one in messages)


def numbered(count: int) -> list[dict[str, str]]:
    return [{"id": f"m-{n}", "mediationTarget": TARGET, "messageGroupId": "g"} for n in range(1, count + 1)]


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    return Command(tmp_path, monkeypatch, capsys)


async def start(folder: Path, *args: object, env: Mapping[str, str] | None = None) -> asyncio.subprocess.Process:
    """The command as a process of its own."""
    return await asyncio.create_subprocess_exec(
        *[sys.executable, "-m", "flowcatalyst", *map(str, args)],
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        cwd=folder,
        env={**os.environ, **(env or {})},
        preexec_fn=_hear_ctrl_c,
    )


def _hear_ctrl_c() -> None:
    """A shell starts background jobs, perhaps this test run, with SIGINT ignored, and children inherit that."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


async def run(folder: Path, *args: object, env: Mapping[str, str] | None = None) -> tuple[int, str, str]:
    """Exit code, output, errors of such a process."""
    process = await start(folder, *args, env=env)
    async with asyncio.timeout(PATIENCE_S):
        output, errors = await process.communicate()
    return process.returncode or 0, output.decode(), errors.decode()


async def works(folder: Path, *args: object, env: Mapping[str, str] | None = None) -> str:
    code, output, errors = await run(folder, *args, env=env)
    assert (code, errors) == (0, "")
    return output


def test_a_message_without_options_goes_to_the_first_queue_with_an_id_of_its_own(command: Command) -> None:
    said = command.works("publish", "--target", TARGET)
    [message] = command.pointers()
    assert said.startswith(f"message {message.id} is published to queue default ({command.file}) as embedded-")
    assert message.mediation_target == TARGET
    assert message.pool_code == "DEFAULT-POOL"
    assert UUID(message.id).version == 7


def test_every_option_of_a_message_gets_into_it(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    options = (
        "--queue high --group g --pool POOL-HIGH --id m-1 --mode next_on_error --deduplication-id d --high-priority"
    )
    monkeypatch.setenv("MESSAGE_AUTH_TOKEN", "s3cret")
    command.works("publish", "--target", TARGET, *options.split())
    [delivery] = command.held("high")
    assert delivery.group == "g"
    assert parse_pointer(delivery.body) == MessagePointer(
        id="m-1",
        mediation_target=TARGET,
        pool_code="POOL-HIGH",
        auth_token="s3cret",
        mediation_type=parse_pointer(delivery.body).mediation_type,
        message_group_id="g",
        high_priority=True,
        dispatch_mode=DispatchMode.NEXT_ON_ERROR,
    )
    again = command.works("publish", "--target", TARGET, "--queue", "high", "--deduplication-id", "d")
    assert f"was published before to queue high ({command.file})" in again


def test_any_queue_can_be_named_by_its_uri(command: Command) -> None:
    command.works("publish", "--uri", "embedded:elsewhere", "--target", TARGET)
    assert len(command.pointers("elsewhere")) == 1


def test_the_queue_file_can_be_read_by_its_owner_only(command: Command) -> None:
    command.works("publish", "--target", TARGET, "--auth-token", "s3cret")
    assert [file.name for file in (command.folder / "data").iterdir() if file.stat().st_mode & 0o077] == []


def test_a_file_is_published_in_its_order_and_blank_lines_do_not_count(command: Command) -> None:
    file = command.folder / "messages.jsonl"
    file.write_bytes(b"\xef\xbb\xbf" + lines(*numbered(1200)).replace(b"\n", b"\r\n\r\n") + b"  \n")
    assert command.works("publish", "--file", file) == f"1,200 messages published to queue default ({command.file})\n"
    assert [message.id for message in command.pointers()] == [f"m-{n}" for n in range(1, 1201)]
    again = command.works("publish", "--file", file)
    assert again == f"0 messages published to queue default ({command.file}), 1,200 more were there already\n"


async def test_lines_of_a_pipe_are_published_as_they_come(tmp_path: Path) -> None:
    process = await start(tmp_path, "publish", "--file", "-", "--create")
    assert process.stdin is not None
    process.stdin.write(lines(*numbered(1)) + b'{"mediationTarget"')
    async with asyncio.timeout(PATIENCE_S):
        while not (tmp_path / "data" / "queue.db").exists() or not await in_queue(tmp_path):
            await asyncio.sleep(0.05)
    output, errors = await process.communicate(f': "{TARGET}"}}'.encode())  # the last line needs no end
    assert (output.startswith(b"2 messages published to queue default ("), errors) == (True, b"")


async def test_ctrl_c_says_how_far_it_came(tmp_path: Path) -> None:
    process = await start(tmp_path, "publish", "--file", "-", "--create")
    assert process.stdin is not None
    process.stdin.write(lines(*numbered(3)))
    async with asyncio.timeout(PATIENCE_S):
        while not (tmp_path / "data" / "queue.db").exists() or not await in_queue(tmp_path):
            await asyncio.sleep(0.05)
        process.send_signal(signal.SIGINT)
        assert process.stderr is not None
        said = (await process.stderr.read()).decode()  # it does not wait for the rest of its input
        assert await process.wait() == 130
    # It may not know yet what became of them.
    sentence = r"\nflowcatalyst: stopped; published so far: at least ([03]); go on with --from-line ([14])\n"
    found = re.fullmatch(sentence, said)
    assert found is not None, said
    assert int(found[2]) == int(found[1]) + 1
    process.stdin.close()


BAD_THIRD = lines(*numbered(2), {"id": "m-3", "mediationTarget": TARGET, "messageGroupID": "g"}, *numbered(4)[3:])


def test_of_a_file_with_a_wrong_line_nothing_is_published(command: Command) -> None:
    file = command.folder / "messages.jsonl"
    file.write_bytes(BAD_THIRD)
    said = command.fails("publish", "--file", file)
    wrong = "line 3: `messageGroupID` is not a field here (did you mean `messageGroupId`?)"
    assert said == f"flowcatalyst: {wrong}; nothing is published\n"
    assert not (command.folder / "data").exists()
    assert "leave it out" in command.misused("publish", "--target", "http://127.0.0.1:9/", "--from-line", 4)
    assert command.works("publish", "--file", file, "--from-line", 4).startswith(
        "1 message published to queue default ("
    )


def test_of_a_pipe_what_comes_before_a_wrong_line_is_published(command: Command) -> None:
    said = command.fails("publish", "--file", "-", given=BAD_THIRD)
    assert "line 3: `messageGroupID` is not a field here (did you mean `messageGroupId`?); published so far: 2;" in said
    assert "go on with --from-line 3" in said
    assert [message.id for message in command.pointers()] == ["m-1", "m-2"]


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("{", "it is not valid JSON"),
        ("[]", "line 2: it must be an object, not a list"),
        ({"id": "a"}, "`mediationTarget` is missing"),
        ({"mediationTarget": "ftp://h/"}, "only http and https"),
        ({"mediationTarget": TARGET, "dispatchMode": "X"}, "one of IMMEDIATE, NEXT_ON_ERROR, BLOCK_ON_ERROR"),
        ({"mediationTarget": TARGET, "authToken": "s3\ncret"}, "authToken contains characters"),
        ({"mediationTarget": TARGET, "authToken": "s3cret" * 50_000}, "more than the 262144 allowed"),
        ({"mediationTarget": TARGET, "id": "i" * 257}, "id has 257 characters, more than the 256 allowed"),
        ({"mediationTarget": TARGET, "deduplicationId": "i" * 257}, "deduplicationId has 257 characters"),
        ("x" * 6_000_000, "line 2 is too long"),
    ],
)
def test_a_wrong_line_is_named_with_the_reason(command: Command, line: object, why: str) -> None:
    said = command.fails("publish", "--file", "-", given=lines("", line))
    assert "line 2" in said
    assert why in said
    assert "cret" not in said


def test_a_file_of_somebody_else_cannot_steer_the_terminal(command: Command) -> None:
    said = command.fails("publish", "--file", "-", given=lines({"mediationTarget": TARGET, "\x1b]0;gone\x07": 1}))
    assert "`\\x1b]0;gone\\x07` is not a field" in said
    assert said.rstrip("\n").isprintable()


@pytest.mark.parametrize(
    ("args", "why"),
    [
        ([], "name a --target, or a --file"),
        (["--target", TARGET, "--file", "-"], "say everything themselves"),
        (["--file", "-", "--group", "g"], "say everything themselves"),
        (["--target", TARGET, "--queue", "a", "--uri", "embedded:a"], "either --queue or --uri"),
        (["--target", TARGET, "--mode", "later"], "'later' is not one of"),
        (["--target", "notaurl"], "--target cannot be called: target has no scheme: begin it with http:// or"),
        (["--target", TARGET, "--id", " "], "id is empty"),
        (["--target", TARGET, "--router", "http://h", "--uri", "embedded:a"], "a --router has its own queues"),
        (["--target", TARGET, "--router", "http://h", "--create"], "a --router has its own queues"),
        (["--target", TARGET, "--router", "localhost:8080"], "--router is no URL of a router"),
        (["--file", "-", "--from-line", "0"], "--from-line"),
    ],
)
def test_options_that_do_not_go_together_are_named(command: Command, args: Sequence[str], why: str) -> None:
    assert why in command.misused("publish", *args)


def test_what_cannot_be_published_to_is_one_sentence(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "--target cannot be called" in command.misused("publish", "--target", "mailto:x")
    for option, name in (("--id", "id"), ("--group", "--group"), ("--pool", "--pool")):
        said = command.misused("publish", "--target", TARGET, option, "n" * 257)
        assert f"{name} has 257 characters, more than the 256 allowed" in said
    to = ("publish", "--target", TARGET)
    said = command.fails(*to, "--queue", "nope", code=2)
    assert "no queue 'nope'; the queues are: default, high, medium, low" in said
    said = command.fails(*to, "--uri", "amqp://user:s3cret@h/q", code=2)
    assert "--uri cannot be used: its queueUri has an @" in said
    assert "s3cret" not in said
    monkeypatch.setenv("MESSAGE_ROUTER_CONFIG_URL", "http://config.test/")
    assert "name the queue with --uri" in command.fails(*to, code=2)
    monkeypatch.delenv("MESSAGE_ROUTER_CONFIG_URL")
    assert "cannot be read: No such file" in command.fails("publish", "--file", "nope.jsonl", code=2)
    assert "cannot be made" in command.fails(*to, "--data-dir", "/dev/null/data", code=2)
    (command.folder / "data").mkdir()
    (command.folder / "data" / "queue.db").write_bytes(b"no database " * 1000)
    assert "is not a SQLite database" in command.fails(*to)


def test_a_broker_that_is_away_is_one_sentence_that_says_how_to_go_on(command: Command) -> None:
    uri = f"nats://127.0.0.1:{free_port()}/ORDERS?consumer=router"
    port = uri.split(":")[2].partition("/")[0]
    assert port in command.fails("publish", "--uri", uri, "--target", TARGET)
    said = command.fails("publish", "--uri", uri, "--file", "-", given=lines(*numbered(2)))
    assert "lines 1 to 2: " in said
    assert "published before that: 0, and perhaps some of these; go on with --from-line 1: nothing is published" in said
    said = command.fails("publish", "--uri", uri, "--file", "-", given=lines(*numbered(1), {"mediationTarget": TARGET}))
    assert "some may be published twice, because not all have an id" in said
    away = f"amqp://127.0.0.1:{free_port()}/orders"
    said = command.fails("publish", "--uri", away, "--file", "-", given=lines(*numbered(1)))
    assert "some may be published twice, because this broker does not deduplicate" in said
    assert "; at least 0 of 30 messages were published before that" in command.fails(
        "seed", "--uri", uri, "--count", 30
    )
    assert not (command.folder / "data").exists()


async def test_a_running_router_delivers_what_the_commands_publish_beside_it(tmp_path: Path) -> None:
    async with router_process(tmp_path) as router:
        await works(tmp_path, "publish", "--target", f"{router.url}/api/test/success")
        said = await works(tmp_path, "seed", "--router", router.url, "--count", 60, "--groups", 7)
        assert said.startswith(f"60 messages published to queue default (router {router.url}) in ")
        await works(tmp_path, "seed", "--router", f"{router.url}/", "--endpoint", "random", "--count", 5)
        stats = await stats_of(router.url, 66)
        code, _ = await router.terminate()
    assert code == 0
    assert stats["orderViolations"] == 0
    assert 1 <= stats["groups"] <= 7 + 8


async def stats_of(url: str, requests: int) -> dict[str, int]:
    """What the receivers of a router saw, once they saw so many requests."""
    async with asyncio.timeout(PATIENCE_S), aiohttp.ClientSession() as session:
        while True:
            async with session.get(f"{url}/api/test/stats") as response:
                stats: dict[str, int] = await response.json()
            if stats["totalRequests"] >= requests:
                return stats
            await asyncio.sleep(0.05)


@pytest.mark.parametrize(
    ("groups", "made"),
    [("unique", {f"msg-{n}" for n in range(40)}), ("single", {"single-group"}), ("2", {"group-0", "group-1"})],
)
def test_seeded_ids_carry_their_place(command: Command, groups: str, made: set[str]) -> None:
    said = command.works("seed", "--count", 40, "--groups", groups, "--queue", "low")
    messages = command.pointers("low")
    places = [SeededId.parse(message.id) for message in messages]
    positions: dict[str, list[int]] = {}
    for place in places:
        assert place is not None
        assert said.endswith(f"run {place.run}, for http://127.0.0.1:8080/api/test/fast\n")
        positions.setdefault(place.group, []).append(place.position)
    assert positions.keys() == made
    assert all(found == list(range(1, len(found) + 1)) for found in positions.values())
    assert {message.mediation_target for message in messages} == {"http://127.0.0.1:8080/api/test/fast"}
    assert {message.pool_code for message in messages} == {"POOL-LOW"}


@pytest.mark.parametrize(
    ("settings", "router"),
    [
        ("port = 9090", "http://127.0.0.1:9090"),
        ('host = "::1"', "http://[::1]:8080"),
    ],
)
def test_seeded_messages_go_to_the_router_of_the_settings(command: Command, settings: str, router: str) -> None:
    (command.folder / "flowcatalyst.toml").write_text(settings)
    command.works("seed", "--count", 1)
    [message] = command.pointers("default")
    assert message.mediation_target == f"{router}/api/test/fast"


def test_seeded_messages_go_to_the_router_that_has_the_data_folder_open(command: Command) -> None:
    command.works("publish", "--target", TARGET)
    locks = [OwnerLock(command.file, f"{number}-a") for number in (1, 2)]
    locks[0].hold()
    locks[0].announce("http://127.0.0.1:7070")
    assert "for http://127.0.0.1:7070/api/test/fast" in command.works("seed", "--count", 1)
    locks[1].hold()  # a command, which cannot be reached
    assert "for http://127.0.0.1:7070/api/test/fast" in command.works("seed", "--count", 1)
    locks[1].announce("http://127.0.0.1:6060")
    assert "several routers have this data folder open" in " ".join(command.misused("seed").split())
    for lock in locks:
        lock.remove()
    assert "for http://127.0.0.1:8080/api/test/fast" in command.works("seed", "--count", 1)


@pytest.mark.parametrize("name", ["publish", "seed"])
def test_a_key_without_a_router_is_refused(command: Command, name: str) -> None:
    args = ["--target", TARGET, "--api-key", "x"]
    assert "an --api-key is for a --router" in " ".join(command.misused(name, *args).split())


def test_a_pool_that_the_settings_do_not_have_is_told(command: Command) -> None:
    code, said, errors = command.run("publish", "--target", TARGET, "--pool", "NOPE")
    note = "the settings have no pool 'NOPE': DEFAULT-POOL will take it, unless the router has that pool"
    assert (code, said.count("\n"), errors) == (0, 1, f"flowcatalyst: {note}\n")
    file = lines({"mediationTarget": TARGET, "poolCode": "NOPE"}, {"mediationTarget": TARGET})
    code, said, errors = command.run("publish", "--file", "-", given=file)
    assert (code, said.startswith("2 messages published"), errors) == (0, True, f"flowcatalyst: {note}\n")
    assert command.run("publish", "--target", TARGET, "--pool", "DEFAULT-POOL")[2] == ""


def test_where_the_port_is_any_free_one_the_router_has_to_be_named(command: Command) -> None:
    (command.folder / "flowcatalyst.toml").write_text("port = 0")
    assert "name the router with --router" in command.misused("seed", "--count", "1")
    command.works("seed", "--count", 1, "--target", TARGET)


@pytest.mark.parametrize(
    ("args", "why"),
    [
        (["--count", "0"], "--count"),
        (["--groups", "0"], "--groups is a number from 1 to 1,000,000, or unique, 1of8, single"),
        (["--groups", "many"], "--groups is a number"),
        (["--target", TARGET, "--endpoint", "fast"], "either to a --target or to an --endpoint"),
        (["--endpoint", "nope"], "one of fast, slow"),
        (["--endpoint", TARGET], "name a URL with --target"),
        (["--target", "ftp://h/"], "only http and https"),
        (["--router", "127.0.0.1:8080"], "--router is no URL of a router"),
    ],
)
def test_what_cannot_be_seeded_is_a_usage_error(command: Command, args: Sequence[str], why: str) -> None:
    assert why in command.misused("seed", *args)
    assert not (command.folder / "data").exists()


async def test_messages_published_to_nats_are_delivered_by_a_router(tmp_path: Path) -> None:
    with nats_server(tmp_path / "nats", user="ann", password="s3cret") as nats:
        uri = f"nats://127.0.0.1:{nats.port}/ORDERS?consumer=router&create=true"
        env = {
            "FLOWCATALYST_QUEUES": json.dumps([{"name": "orders", "uri": uri}]),
            "FLOWCATALYST_NATS__USER": "ann",
            "FLOWCATALYST_NATS__PASSWORD": "s3cret",
        }
        async with router_process(tmp_path, env=env) as router:
            to = ("publish", "--queue", "orders", "--target", f"{router.url}/api/test/fast", "--id", "run.g.1")
            assert "is published to queue orders" in await works(tmp_path, *to, env=env)
            assert "was published before to queue orders" in await works(tmp_path, *to, env=env)
            await works(tmp_path, "seed", "--uri", uri, "--router", router.url, "--count", 40, env=env)
            stats = await stats_of(router.url, 41)
            code, output, errors = await run(tmp_path, *to, env=env | {"FLOWCATALYST_NATS__PASSWORD": "wr0ng"})
            assert (await router.terminate())[0] == 0
        assert (stats["totalRequests"], stats["orderViolations"]) == (41, 0)
        assert (code, output) == (1, "")
        assert errors.startswith("flowcatalyst: ")
        assert errors.count("\n") == 1
        assert "wr0ng" not in errors


@pytest.mark.parametrize("args", [["publish", "--target", TARGET], ["seed"], ["publish", "--file", "-"]])
def test_no_queue_is_made_where_nobody_reads_it_unless_asked_for(command: Command, args: Sequence[str]) -> None:
    command.creates = False
    said = command.fails(*args, given=lines(*numbered(1)), code=2)
    assert f"there is no queue file {command.file}: name the data folder of the router with --data-dir" in said
    assert "--router URL" in said
    assert "--create" in said
    assert not (command.folder / "data").exists()
    command.works("publish", "--target", TARGET, "--create")
    command.works(*args, given=lines(*numbered(1)))
    assert len(command.pointers()) > 1


def test_through_a_router_nobody_promises_that_nothing_is_published_twice(command: Command) -> None:
    away = f"http://127.0.0.1:{free_port()}"
    said = command.fails("publish", "--router", away, "--file", "-", given=lines(*numbered(1)))
    assert "go on with --from-line 1: some may be published twice, unless the broker of that queue deduplicates" in said


def test_who_looks_for_the_queue_of_the_demo_is_told_where_it_is(command: Command) -> None:
    command.creates = False
    demo = command.folder / "data" / "demo" / "queue.db"
    demo.parent.mkdir(parents=True)
    demo.touch()
    assert "with --data-dir (that of the demo is data/demo), send to" in command.fails("seed", code=2)


def test_each_command_is_described_in_a_line_that_is_not_cut_off(command: Command) -> None:
    command.creates = False
    code, output, _ = command.run("-h")
    _, _, commands = output.partition("Commands:")
    assert code == 0
    assert commands.count("\n  ") >= 11
    assert "..." not in commands


def test_a_queue_of_a_broker_needs_no_file(command: Command) -> None:
    command.creates = False
    uri = f"nats://127.0.0.1:{free_port()}/ORDERS?consumer=router"
    assert "there is no queue file" not in command.fails("publish", "--uri", uri, "--target", TARGET)


@pytest.mark.parametrize("args", [["publish", "--target", TARGET], ["seed"], ["publish", "--file", "-"]])
def test_a_queue_that_nobody_reads_gets_nothing_unless_it_is_to_be_created(
    command: Command, args: Sequence[str]
) -> None:
    command.works("publish", "--target", TARGET)
    command.works("publish", "--target", TARGET, "--uri", "embedded:bills")
    command.creates = False
    said = command.fails(*args, "--uri", "embedded:orders", given=lines(*numbered(1)), code=2)
    assert "nobody is known to read the embedded queue 'orders'" in said
    assert "there are bills, default, high, low, medium" in said
    assert "--create" in said
    assert command.pointers("orders") == []
    for known in ("bills", "high"):
        command.works(*args, "--uri", f"embedded:{known}", given=lines(*numbered(1)))
        assert command.pointers(known)
    command.works(*args, "--uri", "embedded:orders", "--create", given=lines(*numbered(1)))
    command.works(*args, "--uri", "embedded:orders", given=lines(*numbered(1)))
    assert command.pointers("orders")


def test_a_queue_of_the_settings_needs_no_create_by_its_uri_either(command: Command) -> None:
    command.works("publish", "--target", TARGET)
    command.creates = False
    (command.folder / "flowcatalyst.toml").write_text('[[queues]]\nname = "shop"\nuri = "embedded:orders"\n')
    command.works("publish", "--target", TARGET, "--uri", "embedded://orders")
    assert len(command.pointers("orders")) == 1
