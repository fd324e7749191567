"""The commands for a terminal at a router process that asks for its key, and what they bring about there."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from flowcatalyst.core.credentials import hash_key
from tests.api.running import Client, until
from tests.support.fake_router import Commands
from tests.support.http_servers import Call, RawServer, raw_server, reply
from tests.support.router_process import RouterProcess, Waits, router_process

KEY = "a-key-of-this-test"
LOCKED = {
    "FLOWCATALYST_AUTH__MODE": "api_key",
    "FLOWCATALYST_AUTH__ADMIN": hash_key(KEY.encode()),
    "FLOWCATALYST_EGRESS__ALLOW_PRIVATE": "true",
}
POOL = "DEFAULT-POOL"
# What failed stays in its queue until somebody acts: nothing here may happen by itself meanwhile.
UNTIL_SOMEBODY_ACTS = Waits(timeout_ms=60_000, nack_delay_s=300.0)


@dataclass(slots=True)
class Receiver:
    """Knows what it is sent by the last part of the path, and refuses what it is told to refuse."""

    refuses: set[str] = field(default_factory=set)
    taken: list[str] = field(default_factory=list)

    async def __call__(self, call: Call) -> None:
        name = call.path.rpartition("/")[2]
        if name in self.refuses:
            await call.send(reply(500, b"no stock"))
        else:
            self.taken.append(name)
            await call.send(reply())


@dataclass(slots=True)
class Scene:
    """A router of which one group is blocked: b1 fails, b2 and b3 wait behind it."""

    router: RouterProcess
    receiver: Receiver
    server: RawServer
    api: Client
    commands: Commands

    def target(self, name: str) -> str:
        return self.server.url(f"/hook/{name}")

    async def send(self, group: str, *names: str) -> None:
        for name in names:
            pointer = {"id": name, "mediationTarget": self.target(name), "messageGroupId": group}
            sent = await self.api.post("/api/messages", pointer)
            assert sent.status < 300, sent.text

    async def group(self) -> Any:
        return (await self.api.get("/monitoring/groups/blocked")).json

    async def letters(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = (await self.api.get("/monitoring/dead-letters")).json
        return found

    async def until_taken(self, *names: str) -> None:
        """These, in this order, and nothing else."""
        await holds(lambda: len(self.receiver.taken) >= len(names))
        assert self.receiver.taken == list(names)

    async def block(self) -> None:
        self.receiver.refuses = {"b1"}
        await self.send("blocked", "b1", "b2", "b3")

        async def is_blocked() -> bool:
            answer = await self.api.get("/monitoring/groups/blocked")
            found = answer.json if answer.status == 200 else {}
            return bool(found) and found["state"] == "BLOCKED" and (found["nextAttemptInMs"] or 0) > 60_000

        await until(is_blocked)


async def holds(condition: Callable[[], bool]) -> None:
    async def asked() -> bool:
        await asyncio.sleep(0)
        return condition()

    await until(asked)


@pytest.fixture
async def scene(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> AsyncIterator[Scene]:
    receiver = Receiver()
    async with (
        raw_server(receiver) as server,
        router_process(tmp_path, UNTIL_SOMEBODY_ACTS, env=LOCKED) as router,
        aiohttp.ClientSession(router.url, headers={"X-API-Key": KEY}) as session,
    ):
        commands = Commands(router, monkeypatch, capsys)
        monkeypatch.setenv("MESSAGE_ROUTER_API_KEY", KEY)
        found = Scene(router, receiver, server, Client(session), commands)
        await found.block()
        yield found


# To look


async def test_status_and_one_frame_of_top_show_the_blocked_group(scene: Scene) -> None:
    code, said, errors = scene.commands.run("status")
    assert (code, errors) == (0, ""), said
    assert said.startswith(f"HEALTHY  the router at {scene.router.url} is primary")
    assert "\nblocked groups  1\n" in said
    overview = json.loads(scene.commands.works("status", "--json"))
    assert (overview["level"], overview["blockedGroups"], overview["deadLetters"]) == ("HEALTHY", 1, 0)
    said = scene.commands.works("top", "--once")
    [row] = [row for row in map(str.split, said.splitlines()) if row[:1] == ["blocked"] and POOL in row]
    assert "HTTP 500: no stock" in " ".join(row)


async def test_explain_names_the_head_and_a_command_that_gets_its_group_moving(scene: Scene) -> None:
    said = scene.commands.works("explain", "b3")
    assert "the first is message b1" in said
    [command] = [line.split() for line in said.splitlines() if line.split()[:2] == ["flowcatalyst", "retry"]]
    assert command[2:4] == ["--router", scene.router.url]
    assert (
        json.loads(scene.commands.works("explain", "b1", "--kind", "message", "--json"))["lastAnswer"]["status"] == 500
    )
    scene.receiver.refuses.clear()
    scene.commands.works(command[1], command[-1])
    await scene.until_taken("b1", "b2", "b3")

    async def is_delivered() -> bool:
        return "was delivered" in scene.commands.works("explain", "b1")

    await until(is_delivered)
    code, said, _ = scene.commands.run("explain", "nobody-knows-it")
    assert code == 1
    assert "looked in:" in said


async def test_groups_are_listed_and_shown(scene: Scene) -> None:
    _, row = (scene.commands.works("groups", "--blocked", "--pool", POOL, "--prefix", "blo")).splitlines()
    assert row.split()[:2] == ["blocked", "BLOCKED"]
    assert row.endswith("HTTP 500: no stock")
    assert scene.commands.works("groups", "--blocked", "--prefix", "another") == "No group is blocked or held there.\n"
    [listed] = json.loads(scene.commands.works("groups", "--json"))
    shown = json.loads(scene.commands.works("groups", "show", "blocked", "--json"))
    assert listed["head"] == shown["head"]
    assert "404: " in scene.commands.fails("groups", "show", "unknown")


# To act


async def test_a_head_that_is_retried_is_tried_at_once_and_its_group_follows(scene: Scene) -> None:
    assert "b1" in scene.commands.works("groups", "retry", "blocked")

    async def failed_again() -> bool:
        return int((await scene.group())["head"]["failures"]) > 3

    await until(failed_again)
    scene.receiver.refuses.clear()
    assert "b1" in scene.commands.works("retry", "b1")
    await scene.until_taken("b1", "b2", "b3")
    assert "404: " in scene.commands.fails("retry", "nobody-knows-it")


async def test_a_held_group_starts_nothing_until_it_is_released(scene: Scene) -> None:
    scene.commands.works("groups", "hold", "blocked")
    scene.receiver.refuses.clear()
    assert "waits for its group to be released" in scene.commands.fails("groups", "retry", "blocked")
    await scene.send("other", "o1")
    await scene.until_taken("o1")
    assert (await scene.group())["state"] == "HELD"
    scene.commands.works("groups", "release", "blocked")
    await scene.until_taken("o1", "b1", "b2", "b3")
    assert "nobody held group blocked" in scene.commands.fails("groups", "release", "blocked")


async def test_a_paused_pool_and_a_paused_endpoint_start_nothing_until_they_are_resumed(scene: Scene) -> None:
    for what, name, one, names in (
        ("pool", POOL, "p1", ["p1"]),
        ("endpoint", scene.target("e1"), "e1", ["p1", "o1", "e1"]),
    ):
        assert " is paused" in scene.commands.works("pause", what, name)
        await scene.send(f"group of {one}", one)
        if what == "endpoint":
            await scene.send("other", "o1")  # to another one
            await scene.until_taken("p1", "o1")
        found = json.loads(scene.commands.works("explain", one, "--json"))
        assert found["state"] == "PAUSED", found
        assert one not in scene.receiver.taken
        assert " is not paused any more" in scene.commands.works("resume", what, name)
        await scene.until_taken(*names)


@pytest.mark.parametrize(
    "command",
    [["groups", "skip", "blocked"], ["skip", "--group", "blocked"], ["skip", "b1"]],
    ids=" ".join,
)
async def test_a_skipped_head_is_a_dead_letter_and_its_group_goes_on(scene: Scene, command: list[str]) -> None:
    code, _, errors = scene.commands.run(*command)
    assert code == 1
    assert "add --yes" in errors
    assert "b1" in scene.commands.works(*command, "--yes")
    await scene.until_taken("b2", "b3")
    assert [letter["messageId"] for letter in await scene.letters()] == ["b1"]


async def test_dead_letters_are_listed_and_replayed_to_another_target(scene: Scene) -> None:
    scene.commands.works("skip", "b1", "--yes")
    await scene.until_taken("b2", "b3")
    _, row = (scene.commands.works("dead-letters", "--group", "blocked", "--status", 500, "--since", "1h")).splitlines()
    number = row.split()[0]
    assert row.split()[3:5] == ["b1", "blocked"]
    assert scene.commands.works("dead-letters", "--status", 404) == "There are no such dead letters.\n"
    shown = json.loads(scene.commands.works("dead-letters", "show", number, "--json"))
    assert shown["message"]["mediationTarget"] == scene.target("b1")
    assert scene.commands.works("replay", number, "--dry-run") == f"Dead letter {number} would be replayed.\n"
    assert len(await scene.letters()) == 1
    scene.commands.works("replay", number, "--set-target", scene.target("elsewhere"))
    await scene.until_taken("b2", "b3", "elsewhere")
    assert await scene.letters() == []
    assert "404: " in scene.commands.fails("replay", number)


async def test_many_dead_letters_end_in_front_of_their_group_in_their_order(scene: Scene) -> None:
    scene.receiver.refuses = {"b1", "b2"}
    for name in ("b1", "b2"):
        await until_its_turn(scene, name)
        scene.commands.works("skip", name, "--yes")
        await holds_letters(scene, name)
    await scene.until_taken("b3")
    scene.commands.works("groups", "hold", "blocked")
    await scene.send("blocked", "b4")
    chosen = ("replay", "--group", "blocked", "--front")
    assert scene.commands.works(*chosen, "--dry-run") == "2 dead letters would be replayed.\n"
    assert "add --yes" in scene.commands.fails(*chosen)
    assert scene.commands.works(*chosen, "--yes") == "2 dead letters replayed in front.\n"
    assert (await scene.group())["state"] == "HELD"  # a person held it before
    scene.receiver.refuses.clear()
    scene.commands.works("groups", "release", "blocked")
    await scene.until_taken("b3", "b1", "b2", "b4")


async def test_what_is_removed_is_gone_for_good(scene: Scene) -> None:
    scene.commands.works("skip", "b1", "--yes")
    await holds_letters(scene, "b1")
    assert scene.commands.works("dead-letters", "delete", "--all", "--yes") == "1 dead letter removed.\n"
    assert scene.commands.works("dead-letters") == "There are no dead letters.\n"
    assert scene.commands.works("replay", "--all", "--yes") == "There are no dead letters.\n"


async def test_without_the_key_nothing_is_told_and_nothing_done(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MESSAGE_ROUTER_API_KEY")
    for command in (
        ["status"],
        ["top", "--once"],
        ["explain", "b1"],
        ["groups"],
        ["groups", "hold", "blocked"],
        ["retry", "b1"],
        ["skip", "b1", "--yes"],
        ["pause", "pool", POOL],
        ["dead-letters"],
        ["replay", "--all", "--yes"],
    ):
        said = scene.commands.fails(*command, code=2)
        assert "set MESSAGE_ROUTER_API_KEY to an API key" in said
    assert (await scene.group())["state"] == "BLOCKED"
    assert await scene.letters() == []


async def until_its_turn(scene: Scene, name: str) -> None:
    """Until this is the head of its group, and has failed."""

    async def it_is() -> bool:
        found = await scene.group()
        head = found["head"]
        return head is not None and head["id"] == name and (found["nextAttemptInMs"] or 0) > 60_000

    await until(it_is)


async def holds_letters(scene: Scene, latest: str) -> None:
    async def is_there() -> bool:
        return latest in [letter["messageId"] for letter in await scene.letters()]

    await until(is_there)
