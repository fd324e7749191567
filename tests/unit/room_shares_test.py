import math
from dataclasses import dataclass
from typing import Any, cast

import pytest

from flowcatalyst.routing.pool import Pool
from flowcatalyst.routing.room_shares import HEEDED_S, Claim, RoomShares


@dataclass(eq=False)
class Room:
    room: int


A, B, C = "queue a", "queue b", "queue c"
NOW = 100.0


class Fixture:
    def __init__(self) -> None:
        self.shares = RoomShares()

    def left(self, owner: str, *pools: Room, now: float = NOW) -> int:
        return min(self.shares.left(owner, cast("list[Pool]", list(pools)), now))

    def claim(self, owner: str, *pools: Room, messages: int, brought: float = math.inf) -> Claim:
        return self.shares.claim(owner, cast("list[Pool]", list(pools)), messages, brought, NOW)

    def wait(self, owner: str, *pools: Room) -> None:
        self.shares.wait(owner, cast("list[Pool]", list(pools)))


@pytest.fixture
def room() -> Fixture:
    return Fixture()


def test_what_is_claimed_is_not_left(room: Fixture) -> None:
    pool = Room(50)
    assert room.left(A, pool) == 50
    room.claim(A, pool, messages=10)
    room.claim(B, pool, messages=5)
    assert (room.left(A, pool), room.left(B, pool), room.left(C, pool)) == (35, 35, 35)


def test_the_fullest_pool_counts_and_other_pools_do_not(room: Fixture) -> None:
    small, large, other = Room(5), Room(50), Room(50)
    room.claim(A, large, messages=47)
    assert room.left(B, small, large) == 3
    assert room.left(B, small) == 5
    assert room.left(B, other) == 50


def test_a_released_claim_is_left_again_and_a_second_release_changes_nothing(room: Fixture) -> None:
    pool = Room(10)
    claim = room.claim(A, pool, messages=10)
    room.shares.release(claim)
    room.shares.release(claim)
    assert room.left(B, pool) == 10


def test_a_claim_lapses_for_others_but_not_for_its_owner(room: Fixture) -> None:
    pool = Room(10)
    room.claim(A, pool, messages=10)
    soon, later = NOW + HEEDED_S - 0.01, NOW + HEEDED_S
    assert (room.left(B, pool, now=soon), room.left(B, pool, now=later)) == (0, 10)
    assert room.left(A, pool, now=NOW + 1000) == 0


def test_others_heed_a_claim_only_up_to_what_the_poll_before_it_brought(room: Fixture) -> None:
    pool = Room(50)
    room.claim(A, pool, messages=40, brought=3)
    room.claim(B, pool, messages=5, brought=0)
    assert (room.left(C, pool), room.left(B, pool), room.left(A, pool)) == (47, 42, 10)


def test_who_has_a_claim_does_not_wait_for_another_turn(room: Fixture) -> None:
    pool = Room(10)
    room.claim(A, pool, messages=10, brought=0)
    room.wait(A, pool)
    assert room.left(B, pool) == 10


def test_a_wish_for_many_is_heeded_for_a_while(room: Fixture) -> None:
    pool = Room(12)
    room.shares.wait(A, cast("list[Pool]", [pool]), 10, NOW + 1)
    assert (room.left(B, pool), room.left(B, pool, now=NOW + 1)) == (2, 12)


def test_who_waits_for_another_pool_now_keeps_its_place(room: Fixture) -> None:
    first, second = Room(0), Room(1)
    room.wait(A, first)
    room.wait(B, second)
    room.wait(A, second)
    assert (room.left(A, second), room.left(B, second)) == (1, 0)


def test_who_waits_longer_comes_first(room: Fixture) -> None:
    pool = Room(1)
    room.wait(B, pool)
    room.wait(C, pool)
    room.wait(B, pool)  # keeps its place
    assert (room.left(A, pool), room.left(C, pool), room.left(B, pool)) == (-1, 0, 1)
    room.claim(B, pool, messages=1)
    room.wait(B, pool)  # was served: behind C now
    pool.room = 2
    assert (room.left(C, pool), room.left(B, pool)) == (1, 0)


def test_who_waits_for_another_pool_comes_before_nobody_here(room: Fixture) -> None:
    pool, other = Room(1), Room(0)
    room.wait(B, other)
    assert room.left(A, pool) == 1


def test_a_queue_that_is_forgotten_claims_nothing_and_waits_for_nothing(room: Fixture) -> None:
    pool = Room(10)
    room.claim(A, pool, messages=9)
    room.wait(A, pool)
    room.shares.forget(A)
    assert room.left(B, pool) == 10


@pytest.mark.parametrize("how", ["release", "forget"])
async def test_those_who_wait_are_told_of_the_end_of_a_claim(room: Fixture, how: str) -> None:
    claim: Any = room.claim(A, Room(1), messages=1)
    first, given_up = room.shares.changed(), room.shares.changed()
    given_up.cancel()
    assert not first.done()
    getattr(room.shares, how)(claim if how == "release" else A)
    assert first.done()
    assert not room.shares.changed().done()
