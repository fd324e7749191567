"""Traffic: the messages of a scenario, drawn from its seed."""

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from heapq import merge
from itertools import accumulate
from math import inf

from flowcatalyst.core.message import DispatchMode, MessagePointer, encode_pointer
from flowcatalyst.queues.contract import Outgoing
from flowcatalyst.simulation.history import Facts
from flowcatalyst.simulation.scenario import Scenario, Stream


@dataclass(slots=True, frozen=True)
class Arrival:
    """A message and when it is published. `name` is its id: the name of its group and its number in it."""

    at: float
    name: str
    outgoing: Outgoing
    facts: Facts


def arrivals_of(scenario: Scenario, seed: int) -> Iterator[Arrival]:
    """All messages of a scenario in the order they are published. Streams do not disturb each other's draws."""
    streams = (
        _arrivals(stream, scenario.duration, random.Random(f"{seed}/{stream.name}")) for stream in scenario.traffic
    )
    return merge(*streams, key=lambda arrival: arrival.at)


def _arrivals(stream: Stream, duration_s: float, rng: random.Random) -> Iterator[Arrival]:
    end = min(duration_s, inf if stream.end is None else stream.end)
    weights = None  # all groups are alike
    if stream.zipf is not None:  # by Zipf's law the n-th group gets 1 / n ** exponent of what the first one gets
        weights = list(accumulate(1.0 / number**stream.zipf for number in range(1, stream.groups + 1)))
    names = [f"{stream.name}-{number}" for number in range(1, stream.groups + 1)]
    target = f"http://{stream.endpoint}/"
    counts: Counter[str] = Counter()
    known: dict[tuple[str, bool], Facts] = {}  # messages of one group have the same facts
    for at in _times(stream, end, rng):
        group = rng.choice(names) if weights is None else rng.choices(names, cum_weights=weights)[0]
        high = stream.high_priority_share > 0 and rng.random() < stream.high_priority_share
        counts[group] += 1
        facts = known.get((group, high))
        if facts is None:
            facts = known[group, high] = Facts(group, stream.dispatch_mode, high, stream.pool, target)
        name = f"{group}#{counts[group]}"
        pointer = MessagePointer(
            id=name,
            mediation_target=target,
            pool_code=facts.pool,
            message_group_id=group,
            high_priority=high,
            dispatch_mode=facts.mode,
        )
        lane = None if facts.mode is DispatchMode.IMMEDIATE else group
        yield Arrival(at, name, Outgoing(encode_pointer(pointer).decode(), lane), facts)


def _times(stream: Stream, end: float, rng: random.Random) -> Iterator[float]:
    if stream.arrivals == "burst":
        assert stream.burst_size is not None
        at = stream.start
        while at < end:
            for _ in range(stream.burst_size):
                yield at
            at += inf if stream.every is None else stream.every
        return
    assert stream.per_minute is not None
    gap_s = 60.0 / stream.per_minute
    at = stream.start + (rng.expovariate(1 / gap_s) if stream.arrivals == "poisson" else 0.0)
    number = 0
    while at < end:
        yield at
        number += 1
        # Not the sum of steady gaps: a sum would drift.
        at = at + rng.expovariate(1 / gap_s) if stream.arrivals == "poisson" else stream.start + number * gap_s
