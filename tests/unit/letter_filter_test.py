"""Which dead letters a filter finds, in which order, and what that costs."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from itertools import product
from pathlib import Path

import pytest

from flowcatalyst.control.dead_letters import DeadLetters
from flowcatalyst.control.letter_filter import LetterFilter, target_prefix
from flowcatalyst.core.errors import InvalidMessageError
from flowcatalyst.core.message import Delivery, MessagePointer, encode_pointer
from flowcatalyst.http.interpret import interpret
from flowcatalyst.queues.memory import MemoryQueue
from tests.support.clocks import SetClock
from tests.support.deliveries import RecordingSource

START = 1_000_000.0
GROUPS = ("a", "b", None)
TARGETS = ("https://h.test/x", "https://h.test/x/y?secret=1", "https://h.test/xy", "https://other.test:8443/x")
STATUSES = (404, 500)
QUEUES = ("q", "r")
FILTERS = {
    "group": LetterFilter(group="a"),
    "unknown group": LetterFilter(group="c"),
    "host": LetterFilter(target="https://h.test"),
    "path": LetterFilter(target="https://h.test/x"),
    "status": LetterFilter(status=500),
    "queue": LetterFilter(queue="r"),
    "since": LetterFilter(since=START + 7),
    "until": LetterFilter(until=START + 7),
    "all of them": LetterFilter("a", "https://h.test/x", 404, "q", START + 1, START + 40),
    "group and time": LetterFilter(group="b", since=START + 20),
}


def matches(wanted: LetterFilter, one: "Letter") -> bool:
    """What the filter says, said plainly."""
    endpoint = one.target.partition("?")[0]
    return (
        wanted.group in (None, one.group)
        and (wanted.target is None or endpoint == wanted.target or endpoint.startswith(f"{wanted.target}/"))
        and wanted.status in (None, one.status)
        and wanted.queue in (None, one.queue)
        and (wanted.since is None or one.at >= wanted.since)
        and (wanted.until is None or one.at < wanted.until)
    )


class Letter:
    """One of all kinds there are, by its number."""

    def __init__(self, number: int, kind: tuple[str | None, str, int, str]) -> None:
        self.number = number
        self.group, self.target, self.status, self.queue = kind
        self.at = START + number

    @property
    def delivery(self) -> Delivery:
        pointer = MessagePointer(id=f"m{self.number}", mediation_target=self.target)
        delivery = Delivery("broker", 1, encode_pointer(pointer).decode(), self.group)
        delivery.pointer, delivery.source = pointer, RecordingSource(name=self.queue)
        return delivery


KINDS = list(product(GROUPS, TARGETS, STATUSES, QUEUES))
ALL = [Letter(number, kind) for number, kind in enumerate([*KINDS, *reversed(KINDS)], 1)]


@pytest.fixture
async def letters(tmp_path: Path) -> AsyncIterator[DeadLetters]:
    clock = SetClock()
    store = DeadLetters(tmp_path / "dead.db", clock)
    await store.open()
    for one in ALL:
        clock.now = one.at
        await store.record(one.delivery, "HTTP", interpret(one.status, None, b"", 0.0))
    yield store
    await store.close()


async def paged(letters: DeadLetters, wanted: LetterFilter, *, newest_first: bool = False) -> list[int]:
    seen: list[int] = []
    while True:
        page = await letters.page(3, seen[-1] if seen else 0, wanted=wanted, newest_first=newest_first)
        seen += [one.number for one in page]
        if not page or not await letters.has_after(seen[-1], wanted, newest_first=newest_first):
            return seen


@pytest.mark.parametrize("name", FILTERS)
async def test_pages_bring_what_matches_in_order_both_ways(letters: DeadLetters, name: str) -> None:
    wanted = FILTERS[name]
    expected = [one.number for one in ALL if matches(wanted, one)]
    assert bool(expected) is (name != "unknown group")
    assert await paged(letters, wanted) == expected
    assert await paged(letters, wanted, newest_first=True) == expected[::-1]
    assert await letters.count_matching(wanted) == len(expected)


@pytest.mark.parametrize("name", FILTERS)
async def test_a_replay_of_a_filter_takes_what_matches_and_leaves_the_rest(letters: DeadLetters, name: str) -> None:
    wanted = FILTERS[name]
    expected = [one for one in ALL if matches(wanted, one)]
    queues = {queue: MemoryQueue(queue, SetClock(), ordered=False) for queue in QUEUES}
    assert sum([count async for count in letters.replay_all(queues, wanted)]) == len(expected)
    for queue, memory in queues.items():
        bodies = [one.body for one in await memory.receive(1000, 0)]
        assert bodies == [one.delivery.body for one in expected if one.queue == queue]
    left = [one.number for one in await letters.page(1000)]
    assert left == [one.number for one in ALL if one not in expected]


@pytest.mark.parametrize("name", FILTERS)
async def test_a_removal_of_a_filter_takes_what_matches_and_leaves_the_rest(letters: DeadLetters, name: str) -> None:
    wanted = FILTERS[name]
    assert sum([count async for count in letters.purge_all(wanted)]) == sum(matches(wanted, one) for one in ALL)
    left = [one.number for one in await letters.page(1000)]
    assert left == [one.number for one in ALL if not matches(wanted, one)]


async def test_what_ends_here_again_during_a_replay_of_a_filter_is_not_replayed_again(letters: DeadLetters) -> None:
    queue = MemoryQueue("q", SetClock(), ordered=False)
    counts = letters.replay_all({"q": queue}, LetterFilter(queue="q", group="a"))
    replayed = 0
    async for count in counts:
        replayed += count
        await letters.record(ALL[0].delivery, "HTTP", interpret(404, None, b"", 0.0))
    assert replayed == sum(one.queue == "q" and one.group == "a" for one in ALL)
    assert await letters.count_matching(LetterFilter(queue="q", group="a")) == 1


@pytest.mark.parametrize("name", FILTERS)
async def test_a_filter_reads_indexes_and_no_letters(letters: DeadLetters, name: str) -> None:
    seen: list[str] = []
    await letters.writer.read(lambda connection: connection.set_trace_callback(seen.append))
    await letters.has_after(1, FILTERS[name])
    await letters.count_matching(FILTERS[name])
    await letters.page(3, wanted=FILTERS[name])

    def explain(connection: sqlite3.Connection) -> list[str]:
        connection.set_trace_callback(None)
        return [row[3] for query in seen for row in connection.execute(f"EXPLAIN QUERY PLAN {query}")]

    plan = await letters.writer.read(explain)
    looks = [step for step in plan if "dead_letters" in step and "PRIMARY KEY" not in step]
    index = "dead_letters_by_number" if FILTERS[name].group is None else "dead_letters_by_group"
    assert len(looks) == 3
    assert all(f"SEARCH dead_letters USING COVERING INDEX {index}" in step for step in looks)
    assert not any("TEMP B-TREE" in step for step in plan)


@pytest.mark.parametrize(
    ("given", "prefix"),
    [
        ("https://Shop.test", "https://shop.test"),
        ("https://shop.test/", "https://shop.test"),
        ("https://shop.test:443/a/", "https://shop.test/a"),
        ("http://[::1]:8080/a", "http://[::1]:8080/a"),
    ],
)
def test_a_target_is_looked_for_as_endpoints_are_named(given: str, prefix: str) -> None:
    assert target_prefix(given) == prefix


def test_a_target_that_no_message_could_have_is_refused() -> None:
    with pytest.raises(InvalidMessageError, match="no scheme"):
        target_prefix("shop.test/a")


async def test_letters_of_an_older_version_are_found_by_their_target_a_moment_later(tmp_path: Path) -> None:
    path = tmp_path / "dead.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript((Path(__file__).parent / "data" / "dead_letters_version_2.sql").read_text())
    letters = DeadLetters(path, SetClock())
    await letters.open()
    assert [one.number for one in await letters.page(10)] == [1, 3, 4, 5]
    async with asyncio.timeout(10):
        while len(letters._tasks):
            await asyncio.sleep(0.001)
    assert await paged(letters, LetterFilter(target="http://x.test")) == [1, 3, 4]
    await letters.close()
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT count(*) FROM dead_letters WHERE target IS NULL").fetchone() == (0,)
        assert connection.execute("SELECT target FROM dead_letters WHERE number = 5").fetchone() == ("",)


async def test_many_letters_of_an_older_version_are_looked_at_in_parts(tmp_path: Path) -> None:
    path = tmp_path / "dead.db"
    letters = DeadLetters(path, SetClock())
    await letters.open()
    await letters.close()
    body = encode_pointer(MessagePointer(id="m", mediation_target="http://x.test/a")).decode()
    with closing(sqlite3.connect(path)) as connection:
        columns = "message_id, queue, body, reason, excerpt, failures, recorded_at"
        row = ("m", "q", body, "HTTP 404", "", 1, START)
        connection.executemany(f"INSERT INTO dead_letters ({columns}) VALUES (?, ?, ?, ?, ?, ?, ?)", [row] * 1000)
        connection.commit()
    await (letters := DeadLetters(path, SetClock())).open()
    async with asyncio.timeout(10):
        while len(letters._tasks):
            await asyncio.sleep(0.001)
    assert letters.writer.commits >= 5
    assert await letters.count_matching(LetterFilter(target="http://x.test/a")) == 1000
    await letters.close()
