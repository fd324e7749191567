"""Dead letters: durable, listed, replayed in order, purged."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from flowcatalyst.control import dead_letters
from flowcatalyst.control.dead_letters import DeadLetters, UnknownQueueError
from flowcatalyst.core.errors import InvalidMessageError
from flowcatalyst.core.message import Delivery, DispatchMode, MessagePointer, encode_pointer, parse_pointer
from flowcatalyst.http.interpret import interpret
from flowcatalyst.queues.memory import MemoryQueue
from tests.support.clocks import SetClock
from tests.support.deliveries import RecordingSource

NOT_FOUND = interpret(404, None, b"no such order", 0.0)


@pytest.fixture
async def letters(tmp_path: Path) -> AsyncIterator[DeadLetters]:
    store = DeadLetters(tmp_path / "dead.db", SetClock())
    await store.open()
    yield store
    await store.close()


def dead(name: str, group: str = "g", mode: DispatchMode | None = None, queue: str = "q") -> Delivery:
    pointer = MessagePointer(id=name, mediation_target="http://x.test/", auth_token="t", dispatch_mode=mode)
    delivery = Delivery(f"q-{name}", 1, encode_pointer(pointer).decode(), group, failures=3)
    delivery.pointer = pointer
    delivery.source = RecordingSource()
    delivery.source.name = queue
    return delivery


async def test_a_letter_tells_what_the_message_was_and_why_it_ended(letters: DeadLetters) -> None:
    delivery = dead("m1")
    await letters.record(delivery, "HTTP 404", NOT_FOUND)
    [letter] = await letters.page()
    assert letter == await letters.get(letter.number)
    assert (letter.message_id, letter.queue, letter.group, letter.body) == ("m1", "q", "g", delivery.body)
    assert (letter.reason, letter.status, letter.excerpt) == ("HTTP 404", 404, "no such order")
    assert (letter.failures, letter.recorded_at) == (3, 1_000_000.0)


async def test_an_unreadable_body_is_kept_as_it_is(letters: DeadLetters) -> None:
    delivery = Delivery("q-1", 1, b"\xff{", "g")
    delivery.source = RecordingSource()
    await letters.record(delivery, "not JSON", None)
    [letter] = await letters.page()
    assert (letter.message_id, letter.body, letter.status) == ("", "\\xff{", None)


async def test_letters_survive_a_restart_and_can_be_paged(tmp_path: Path) -> None:
    for name in ("m1", "m2", "m3"):
        letters = DeadLetters(tmp_path / "dead.db", SetClock())
        await letters.open()
        await letters.record(dead(name), "HTTP 404", NOT_FOUND)
        await letters.close()
    await (letters := DeadLetters(tmp_path / "dead.db", SetClock())).open()
    first = await letters.page(limit=2)
    rest = await letters.page(limit=2, after=first[-1].number)
    assert [letter.message_id for letter in first + rest] == ["m1", "m2", "m3"]
    assert await letters.count() == 3
    await letters.close()


async def test_replaying_all_publishes_in_order_and_forgets_the_letters(letters: DeadLetters) -> None:
    queue = MemoryQueue("q", SetClock())
    for number in range(250):
        await letters.record(dead(f"m{number}"), "HTTP 404", NOT_FOUND)
    await letters.record(dead("alone", mode=DispatchMode.IMMEDIATE), "HTTP 404", NOT_FOUND)
    assert sum([count async for count in letters.replay_all({"q": queue})]) == 251
    assert await letters.count() == 0
    replayed = await queue.receive(300, 0)
    assert [delivery.group for delivery in replayed] == ["g"] * 250 + [None]
    assert [str(delivery.body) for delivery in replayed[:3]] == [dead(f"m{n}").body for n in range(3)]


async def test_a_letter_of_an_unknown_queue_is_kept_and_says_so(letters: DeadLetters) -> None:
    await letters.record(dead("m1"), "HTTP 404", NOT_FOUND)
    [letter] = await letters.page()
    with pytest.raises(UnknownQueueError, match="'q' is not known here"):
        await letters.replay(letter, {})
    assert await letters.count() == 1


async def replayed_until_it_fails(letters: DeadLetters, queues: dict[str, MemoryQueue]) -> tuple[int, str]:
    """How many, and what the end says."""
    replayed = 0
    try:
        async for count in letters.replay_all(queues):
            replayed += count
    except UnknownQueueError as error:
        return replayed, str(error)
    pytest.fail("it did not say that a queue is unknown")


async def test_letters_of_unknown_queues_stay_when_all_others_are_replayed_and_the_end_says_how_many_of_which(
    letters: DeadLetters,
) -> None:
    queue = MemoryQueue("q", SetClock())
    for name, of in (("m1", "gone"), ("m2", "q"), ("m3", "away"), ("m4", "gone"), ("m5", "q")):
        await letters.record(dead(name, queue=of), "HTTP 404", NOT_FOUND)
    assert await replayed_until_it_fails(letters, {"q": queue}) == (
        2,
        "2 dead letters were replayed, 2 of queue 'gone' and 1 of queue 'away' were not: these queues are not known "
        "here",
    )
    assert [parse_pointer(delivery.body).id for delivery in await queue.receive(10, 0)] == ["m2", "m5"]
    assert [letter.message_id for letter in await letters.page()] == ["m1", "m3", "m4"]


async def test_letters_of_an_unknown_queue_keep_none_behind_them_from_being_replayed(
    letters: DeadLetters, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dead_letters, "REPLAY_BATCH", 2)
    queue = MemoryQueue("q", SetClock())
    for number in range(5):
        await letters.record(dead(f"gone{number}", queue="gone"), "HTTP 404", NOT_FOUND)
    await letters.record(dead("m1"), "HTTP 404", NOT_FOUND)
    said = "1 dead letter was replayed, 5 of queue 'gone' were not: that queue is not known here"
    assert await replayed_until_it_fails(letters, {"q": queue}) == (1, said)
    assert len(queue) == 1


async def test_purging_removes_one_or_all(letters: DeadLetters) -> None:
    for name in ("m1", "m2", "m3"):
        await letters.record(dead(name), "HTTP 404", NOT_FOUND)
    [first, *_] = await letters.page()
    assert await letters.purge(first.number)
    assert not await letters.purge(first.number)
    assert await letters.get(first.number) is None
    assert sum([count async for count in letters.purge_all()]) == 2


async def test_a_body_that_is_not_text_stays_when_the_others_are_replayed(letters: DeadLetters) -> None:
    binary = Delivery("q-1", 1, b"\xff\x00", "g")
    binary.source = RecordingSource(name="q")
    await letters.record(binary, "HTTP 404", None)
    await letters.record(dead("m1"), "HTTP 404", NOT_FOUND)
    queue = MemoryQueue("q", SetClock())
    await queue.open()
    assert [count async for count in letters.replay_all({"q": queue})] == [1]
    [left] = await letters.page()
    assert (left.body, left.is_text) == ("\\xff\x00", False)
    with pytest.raises(InvalidMessageError, match="the body is not UTF-8 text"):
        await letters.replay(left, {"q": queue})
    assert await letters.count() == 1
