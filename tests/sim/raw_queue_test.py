"""Every promise holds for raw queues too: the histories of the other tests, their bodies read as foreign ones."""

from functools import partial

import msgspec
import pytest

from flowcatalyst.core.message import DEFAULT_POOL, Delivery, MessagePointer, parse_pointer
from flowcatalyst.queues.raw import Missing, RawConfig, Reader, reader_of
from flowcatalyst.router import engine
from flowcatalyst.simulation.queue_kinds import KINDS
from tests.sim.play import play

SEEDS = range(1, 16)


def read_as_raw(delivery: Delivery, group: str) -> MessagePointer:
    """What a raw queue with the target of this message would make of its body. Its token is its name in the history."""
    meant = parse_pointer(delivery.body)
    raw = RawConfig(
        meant.mediation_target, meant.pool_code or DEFAULT_POOL, group, "$.id", Missing.DEFAULT, meant.dispatch_mode
    )
    pointer = reader_of(raw)(delivery)
    assert delivery.is_raw
    return msgspec.structs.replace(pointer, auth_token=meant.auth_token, high_priority=meant.high_priority)


def all_queues_are(reader: Reader, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(engine, "POINTERS", reader)


@pytest.mark.thorough
@pytest.mark.parametrize("group", ["broker", "$.messageGroupId"])
@pytest.mark.parametrize("kind", [*KINDS, "mixed"])
def test_no_promise_is_broken_on_raw_queues(kind: str, group: str, monkeypatch: pytest.MonkeyPatch) -> None:
    all_queues_are(partial(read_as_raw, group=group), monkeypatch)
    for seed in SEEDS:
        played = play(seed, kind)
        assert (played.violations, played.errors) == ([], []), f"seed {seed}"


def test_a_reader_that_forgets_the_group_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    all_queues_are(partial(read_as_raw, group="$.id"), monkeypatch)
    assert any(play(seed, "unordered").violations for seed in SEEDS)
