"""The witness itself: what it writes down when a router gives up, dies or breaks the order."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import cast

from flowcatalyst.simulation.history import Kind
from tests.crash.scene import Scene, scene
from tests.support.faulty_receiver import OK

Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@asynccontextmanager
async def prepared(folder: Path) -> AsyncIterator[Scene]:
    """Two messages of one group are published, and no router runs: the test sends the requests."""
    (folder / "data").mkdir()
    async with scene(folder) as play:
        await play.publish(groups=1, per_group=2)
        yield play


async def connect(play: Scene) -> Connection:
    return await asyncio.open_connection("127.0.0.1", int(play.witness.url.split(":")[2].split("/")[0]))


def ask(connection: Connection, message_id: str) -> None:
    body = json.dumps({"messageId": message_id})
    connection[1].write(f"POST /hook HTTP/1.1\r\ncontent-length: {len(body)}\r\n\r\n{body}".encode())


async def get_answer(connection: Connection) -> None:
    await connection[0].readexactly(len(OK.encode()))


def end_writing(connection: Connection) -> None:
    """At once, in the kernel, what the other side sees of a close."""
    connection[1].get_extra_info("socket").shutdown(socket.SHUT_WR)


async def close(connection: Connection) -> None:
    connection[1].close()
    await connection[1].wait_closed()


def told(play: Scene, message_id: str) -> list[Kind]:
    return [event.kind for event in play.witness.history.about(message_id)][1:]


async def broken_rules(play: Scene) -> list[str]:
    return [violation.partition(":")[0] for violation in await play.witness.violations(play.data_dir)]


async def test_messages_that_are_asked_for_one_after_the_other_break_no_rule(tmp_path: Path) -> None:
    async with prepared(tmp_path) as play:
        connection = await connect(play)
        for message_id in ("run.g0.1", "run.g0.2"):
            ask(connection, message_id)
            await get_answer(connection)
        await close(connection)
        assert await broken_rules(play) == []
        assert told(play, "run.g0.2") == [Kind.ATTEMPT, Kind.ANSWER]


async def test_a_message_that_overtakes_and_one_that_is_repeated_are_found(tmp_path: Path) -> None:
    async with prepared(tmp_path) as play:
        connection = await connect(play)
        for message_id in ("run.g0.2", "run.g0.2", "run.g0.1"):
            ask(connection, message_id)
            await get_answer(connection)
        await close(connection)
        assert await broken_rules(play) == ["first attempts in order", "another attempt has a cause"]


async def test_a_message_that_is_in_flight_beside_its_predecessor_is_found(tmp_path: Path) -> None:
    async with prepared(tmp_path) as play:
        play.witness.script = {"run.g0.1": ["hang"]}
        first, second = await connect(play), await connect(play)
        ask(first, "run.g0.1")
        await play.witness.until_arrived(1)
        ask(second, "run.g0.2")
        await get_answer(second)
        await close(first)
        await close(second)
        assert "one attempt per group" in await broken_rules(play)


async def test_a_message_that_left_its_queue_without_an_answer_that_was_read_is_found(tmp_path: Path) -> None:
    async with prepared(tmp_path) as play:
        (play.data_dir / "queue.db").rename(tmp_path / "moved.db")
        async with scene(tmp_path) as empty:
            await empty.publish_these([])
        assert await broken_rules(play) == ["nothing lost", "nothing lost"]


async def test_an_answer_that_came_too_late_is_unknown(tmp_path: Path) -> None:
    async with prepared(tmp_path) as play:
        play.witness.script = {"run.g0.1": ["hang"]}
        connection = await connect(play)
        ask(connection, "run.g0.1")
        await play.witness.until_arrived(1)
        play.witness.end_hanging("ok")  # it is written in one of the next passes of the loop, and read by nobody
        connection[1].transport.abort()
        await play.witness.until_disconnected()
        assert told(play, "run.g0.1") == [Kind.ATTEMPT, Kind.UNKNOWN]


async def test_an_answer_that_lay_unread_when_the_connection_was_closed_is_unknown(tmp_path: Path) -> None:
    async with prepared(tmp_path) as play:
        connection = await connect(play)
        transport = cast(asyncio.Transport, connection[1].transport)
        transport.pause_reading()
        ask(connection, "run.g0.1")
        await play.witness.until_acked(1)
        transport.abort()
        await play.witness.until_disconnected()
        assert told(play, "run.g0.1") == [Kind.ATTEMPT, Kind.UNKNOWN]


async def test_an_attempt_that_is_given_up_is_over_before_the_next_one_arrives(tmp_path: Path) -> None:
    async with prepared(tmp_path) as play:
        play.witness.script = {"run.g0.1": ["hang"]}
        first, second = await connect(play), await connect(play)
        ask(first, "run.g0.1")
        await play.witness.until_arrived(1)
        end_writing(first)
        ask(second, "run.g0.1")  # both are ready when the witness looks
        await get_answer(second)
        await close(first)
        await close(second)
        assert await broken_rules(play) == []
        assert told(play, "run.g0.1") == [Kind.ATTEMPT, Kind.UNKNOWN, Kind.ATTEMPT, Kind.ANSWER]


async def test_a_request_whose_sender_is_gone_before_it_is_read_does_not_count(tmp_path: Path) -> None:
    async with prepared(tmp_path) as play:
        first, second = await connect(play), await connect(play)
        ask(second, "run.g0.1")
        end_writing(second)
        ask(first, "run.g0.1")
        await get_answer(first)
        await close(first)
        await close(second)
        assert await broken_rules(play) == []
        assert told(play, "run.g0.1") == [Kind.ATTEMPT, Kind.ANSWER]
