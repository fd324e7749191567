"""The rule about progress: what could start does, within a second."""

from collections.abc import Iterator, Sequence

from flowcatalyst.simulation.jobs.history import Event
from flowcatalyst.simulation.rules.common import Violation


def progress(events: Sequence[Event], nack_delay_s: float) -> Iterator[Violation]:
    yield from ()
