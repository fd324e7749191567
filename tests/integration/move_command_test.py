"""`flowcatalyst move`: what it says and refuses, between embedded queues."""

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from flowcatalyst.core.clock import SystemClock
from flowcatalyst.queues.contract import Outgoing
from flowcatalyst.queues.embedded.queue import EmbeddedQueue, EmbeddedStore
from tests.support.command import Command
from tests.support.router_process import ROOT, router_process, run_cli

MESSAGES = [Outgoing(f'{{"id": "{group}{number}"}}', group) for number in range(5) for group in "abc"]


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    made = Command(tmp_path, monkeypatch, capsys)
    made.creates = False
    return made


def fill(folder: Path, queue: str = "default", messages: list[Outgoing] = MESSAGES, delayed_s: float = 0.0) -> None:
    async def publish() -> None:
        (folder / "data").mkdir(exist_ok=True)
        opened = EmbeddedQueue(EmbeddedStore(folder / "data" / "queue.db", SystemClock()), queue)
        await opened.open()
        await opened.publish(messages)
        if delayed_s:
            await opened.nack(await opened.receive(1, 0.0), delayed_s)
        await opened.close()

    asyncio.run(publish())


def bodies(command: Command, queue: str, group: str) -> list[str]:
    return [str(one.body) for one in command.held(queue) if one.group == group]


def of_group(group: str) -> list[str]:
    return [one.body for one in MESSAGES if one.group == group]


def test_all_messages_of_a_queue_are_in_the_other_in_the_order_of_their_groups(command: Command) -> None:
    fill(command.folder)
    said = command.works("move", "--from", "default", "--to", "embedded:high")
    assert said == "15 messages moved from queue default to queue high.\n"
    assert command.held() == []
    for group in "abc":
        assert bodies(command, "high", group) == of_group(group)


def test_a_dry_run_counts_and_leaves_everything_where_it_is(command: Command) -> None:
    fill(command.folder)
    said = command.works("move", "--from", "default", "--to", "high", "--dry-run")
    parts = "it holds 15: 15 waiting, 0 leased, 0 delayed"
    assert said == f"15 messages would be moved from queue default to queue high; {parts}.\n"
    limited = command.works("move", "--from", "default", "--to", "high", "--dry-run", "--limit", 4)
    assert limited.startswith("4 messages would be moved ")
    assert (len(command.held()), command.held("high")) == (15, [])


def test_a_limit_leaves_the_rest_for_the_next_time(command: Command) -> None:
    fill(command.folder)
    assert command.works("move", "--from", "default", "--to", "high", "--limit", 4).startswith("4 messages moved ")
    assert command.works("move", "--from", "default", "--to", "high").startswith("11 messages moved ")
    for group in "abc":
        assert bodies(command, "high", group) == of_group(group)


def test_what_waits_for_its_next_attempt_stays_if_nobody_waits_for_it(command: Command) -> None:
    fill(command.folder, messages=[Outgoing("a0", "a"), Outgoing("a1", "a"), Outgoing("b0", "b")], delayed_s=3600.0)
    code, output, errors = command.run("move", "--from", "default", "--to", "high", "--wait", 0)
    assert (code, output) == (1, "1 message moved from queue default to queue high.\n")
    assert "2 messages stay in queue default: not shown within 0 s, since they are delayed" in errors


@pytest.mark.parametrize(
    ("source", "target", "said"),
    [
        ("default", "default", "--from and --to are the same queue"),
        ("default", "embedded:default", "--from and --to are the same queue"),
        ("nats://h:1/S?consumer=a", "nats://h:1/S?consumer=b", "--from and --to are the same queue"),
        ("sqs://q.fifo?create=true", "sqs://q.fifo", "--from and --to are the same queue"),
        ("nope", "default", "the settings have no queue 'nope'; the queues are: default, high, medium, low"),
        ("embedded:nope", "default", "know an embedded queue 'nope'"),
        ("default", "embedded:nope", "know an embedded queue 'nope'"),
        ("default", "kafka://x/y", "--to cannot be used: its queueUri has no known scheme"),
    ],
)
def test_what_cannot_be_meant_is_refused(command: Command, source: str, target: str, said: str) -> None:
    fill(command.folder)
    assert said in command.fails("move", "--from", source, "--to", target, code=2)
    assert len(command.held()) == 15


def test_a_new_embedded_queue_is_made_only_if_asked_for(command: Command) -> None:
    fill(command.folder)
    assert command.works("move", "--from", "default", "--to", "embedded:new", "--create").startswith("15 messages")
    assert len(command.held("new")) == 15


def test_without_a_queue_file_nothing_is_made(command: Command) -> None:
    assert "there is no queue file" in command.fails("move", "--from", "default", "--to", "high", code=2)
    assert not command.file.exists()


def test_what_somebody_has_leased_is_not_moved_from_under_him(command: Command) -> None:
    fill(command.folder)

    async def move_beside_a_receiver() -> tuple[int, str, str]:
        queue = EmbeddedQueue(EmbeddedStore(command.file, SystemClock()), "default")
        await queue.open()
        await queue.receive(1, 0.0)
        try:
            return await run_cli("move", "--from", "default", "--to", "high", "--data-dir", command.file.parent)
        finally:
            await queue.close()

    code, output, errors = asyncio.run(move_beside_a_receiver())
    assert (code, output) == (2, "")
    assert "queue default has 1 leased message: stop the router that polls it" in errors
    assert len(command.held()) == 15


async def test_a_router_on_the_folder_is_named_and_nothing_is_moved(tmp_path: Path) -> None:
    async with router_process(tmp_path) as router:
        given = ("move", "--from", "default", "--to", "embedded:new", "--create", "--data-dir", router.data_dir)
        code, output, errors = await run_cli(*given)
        assert (code, output) == (2, "")
        who = f"the router at {router.url} (process {router.process.pid})"
        assert errors.startswith(
            f"flowcatalyst: {who} has {router.data_dir / 'queue.db'} open and may poll it: stop it"
        )
        assert errors.count("\n") == 1
        code, output, errors = await run_cli(*given, "--force")
        assert (code, output) == (0, "0 messages moved from queue default to queue new.\n")


async def test_ctrl_c_ends_it_between_two_messages_and_says_how_far_it_came(tmp_path: Path) -> None:
    messages = [Outgoing(f"a{number}", "a") for number in range(20_000)]
    await asyncio.to_thread(fill, tmp_path, "default", messages)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "flowcatalyst", "move", "--from", "default", "--to", "high"),
        *("--data-dir", tmp_path / "data"),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        cwd=ROOT,
        env=dict(os.environ),
    )
    target = EmbeddedQueue(EmbeddedStore(tmp_path / "data" / "queue.db", SystemClock()), "high")
    await target.open()
    while not (await target.depth()).waiting:
        await asyncio.sleep(0.01)
    process.send_signal(signal.SIGINT)
    output, errors = await process.communicate()
    assert process.returncode == 130, errors
    moved = int(output.decode().split()[0].replace(",", ""))
    assert output.decode().endswith("moved from queue default to queue high.\n")
    assert errors.decode() == "flowcatalyst: stopped; run it again to go on\n"
    depth = await target.depth()
    assert 0 < moved < len(messages)
    assert depth.waiting == moved  # none is in both queues
    await target.close()
