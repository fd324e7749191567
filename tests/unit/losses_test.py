"""By what counters tell of a loss, and what they must not be taken for."""

from typing import Any

import pytest

from flowcatalyst.queues.contract import Depth
from flowcatalyst.queues.nats.losses import LossWatch
from flowcatalyst.queues.sqs.memory import VanishWatch


def state(seq: int, deliveries: int, pending: int, created: str = "noon", **config: str) -> dict[str, Any]:
    place = {"stream_seq": seq, "consumer_seq": deliveries}
    return {"delivered": place, "num_pending": pending, "created": created, "config": config}


def vanished(*states: dict[str, Any]) -> list[int | None]:
    watch = LossWatch("S", "router")
    for one in states:
        watch.look(one, keeps_acknowledged=False)
    return [loss.messages for loss in watch.found]


@pytest.mark.parametrize(
    ("states", "expected"),
    [
        ([state(500, 900, 3)], []),  # the first look tells nothing
        ([state(0, 0, 30), state(10, 10, 20)], []),
        ([state(0, 0, 30), state(10, 14, 20)], []),  # some were delivered again
        ([state(0, 0, 30), state(10, 10, 300)], []),  # others were published
        ([state(5, 5, 25), state(30, 5, 0)], [25]),  # a purge
        ([state(5, 5, 25), state(30, 5, 40)], [25]),  # and others were published
        ([state(5, 5, 25), state(9, 5, 0, filter_subject="a")], [25]),
        ([state(5, 5, 25), state(90, 15, 15, filter_subject="a")], []),  # the rest was not for it
        ([state(50, 60, 9), state(30, 40, 29)], []),  # a server that crashed
        ([state(5, 5, 25), state(0, 0, 30, created="one")], [0]),  # another consumer
        # The same one, told by a server that restarted; and another one.
        ([state(5, 5, 25, "2026-11-17T16:51:36.703404Z"), state(9, 9, 21, "2026-11-17T16:51:36.703528Z")], []),
        ([state(5, 5, 25, "2026-11-17T16:51:36.703404Z"), state(5, 5, 25, "2026-11-17T16:51:38.1Z")], [0]),
    ],
)
def test_of_two_looks_at_a_consumer(states: list[dict[str, Any]], expected: list[int]) -> None:
    assert vanished(*states) == expected


def test_a_message_that_is_handed_out_after_a_look_does_not_put_its_older_count_in_its_place() -> None:
    watch = LossWatch("S", "router")
    watch.look(state(100, 100, 50), keeps_acknowledged=False)
    watch.came(60, 90)
    watch.look(state(110, 110, 40), keeps_acknowledged=False)
    assert watch.found == []


def test_a_stream_that_was_made_anew_held_what_was_behind_the_newest_message_and_what_is_in_hand() -> None:
    watch = LossWatch("S", "router")
    watch.look(state(0, 0, 0), keeps_acknowledged=False)
    watch.came(2, 298)
    watch.stream_was_made_anew(in_hand=2)
    watch.look(state(0, 0, 0, created="one"), keeps_acknowledged=False)
    assert [loss.messages for loss in watch.found] == [300]


def test_an_sqs_queue_that_shrank_by_more_than_its_only_consumer_took_was_purged() -> None:
    watch = VanishWatch()
    assert watch.look(Depth(100, 5, 0), in_hand=5) == 0
    watch.removed(20)
    assert watch.look(Depth(0, 0, 0), in_hand=0) == 85


def test_what_we_removed_before_the_last_look_may_not_have_been_counted_there_yet() -> None:
    watch = VanishWatch()
    watch.look(Depth(100, 5, 0), in_hand=5)
    watch.removed(60)
    assert watch.look(Depth(100, 5, 0), in_hand=5) == 0
    watch.removed(45)
    assert watch.look(Depth(0, 0, 0), in_hand=0) == 0


@pytest.mark.parametrize(
    ("leased", "in_hand", "now"),
    [
        (9, 5, Depth(0, 0, 0)),  # somebody else had messages in hand
        (5, 5, Depth(60, 0, 0)),  # counts are approximate
        (5, 5, Depth(200, 5, 0)),
    ],
)
def test_otherwise_nothing_is_said(leased: int, in_hand: int, now: Depth) -> None:
    watch = VanishWatch()
    watch.look(Depth(100, leased, 0), in_hand)
    assert watch.look(now, in_hand=0) == 0
