import asyncio
from dataclasses import dataclass

import pytest

from flowcatalyst.api.reception import STARTS_PER_TURN, TURN_S, ConnectionLimits, Reception, connections_for
from tests.support.clocks import SteppedClock


@dataclass(eq=False)
class Talker:
    """A connection with so many pieces to parse, each of which takes its time and brings so many requests."""

    desk: Reception
    clock: SteppedClock
    pieces: int = 1
    piece_s: float = 0.0
    requests: int = 0
    turns: int = 0
    started: int = 0
    aborted: bool = False

    def take_turn(self) -> bool:
        self.turns += 1
        self.pieces -= 1
        self.clock.pass_(self.piece_s)
        for _ in range(self.requests):
            self.desk.start_soon(self._start)
        return self.pieces > 0

    def _start(self) -> None:
        self.started += 1

    def late(self, now: float) -> str:
        return ""

    def abort(self) -> None:
        self.aborted = True


def reception(clock: SteppedClock, connections: int = 10) -> Reception:
    return Reception(ConnectionLimits(connections=connections), clock, asyncio.get_running_loop())


async def test_one_pass_of_the_loop_parses_no_longer_than_its_time() -> None:
    clock = SteppedClock()
    desk = reception(clock)
    talkers = [Talker(desk, clock, pieces=1000, piece_s=0.6 * TURN_S) for _ in range(3)]
    for talker in talkers:
        desk.join_line(talker)
    await asyncio.sleep(0)
    assert [talker.turns for talker in talkers] == [1, 1, 0]
    await asyncio.sleep(0)
    assert [talker.turns for talker in talkers] == [2, 1, 1]


async def test_one_pass_of_the_loop_starts_few_requests_and_parses_no_others_meanwhile() -> None:
    clock = SteppedClock()
    desk = reception(clock)
    assert STARTS_PER_TURN == 8
    talkers = [Talker(desk, clock, requests=6) for _ in range(3)]
    for talker in talkers:
        desk.join_line(talker)
    seen = []
    for _ in range(3):
        await asyncio.sleep(0)
        seen.append([(talker.turns, talker.started) for talker in talkers])
    assert seen == [[(1, 6), (1, 2), (0, 0)], [(1, 6), (1, 6), (1, 4)], [(1, 6), (1, 6), (1, 6)]]


async def test_who_has_something_to_say_does_not_make_way() -> None:
    clock = SteppedClock()
    desk = reception(clock, connections=2)
    first, second, third, fourth = (Talker(desk, clock) for _ in range(4))
    seen = [desk.welcome(first), desk.welcome(second)]
    desk.join_line(first)
    seen.append(desk.welcome(third))
    assert (first.aborted, second.aborted) == (False, True)
    desk.join_line(third)
    assert [*seen, desk.has_capacity, desk.welcome(fourth)] == [True, True, True, False, False]
    desk.close()


async def test_there_is_room_again_when_one_is_idle_or_gone_but_not_before_its_socket_is_closed() -> None:
    clock = SteppedClock()
    desk = reception(clock, connections=2)
    first, second, third = (Talker(desk, clock) for _ in range(3))
    seen = []
    for talker in (first, second, third):
        desk.socket_opened()
        seen.append(desk.welcome(talker))
    assert (seen, first.aborted) == ([True, True, True], True)
    seen = [desk.has_capacity]  # three sockets are open, one of them about to be closed
    desk.socket_closed()
    seen.append(desk.has_capacity)
    desk.join_line(second)
    desk.join_line(third)
    seen.append(desk.has_capacity)
    desk.is_idle(second)
    seen.append(desk.has_capacity)
    assert seen == [False, True, False, True]
    desk.close()


@pytest.mark.parametrize(
    ("files", "wanted", "most"), [(64, 512, 6), (1024, 512, 246), (20_000, 512, 512), (20_000, 8, 8), (8, 512, 4)]
)
def test_connections_take_a_quarter_of_the_files_at_most(files: int, wanted: int, most: int) -> None:
    assert connections_for(files, wanted) == most
