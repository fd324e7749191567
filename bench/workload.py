"""The messages of the benchmark: 1,000 groups whose sizes follow Zipf's law."""

import random
from dataclasses import dataclass
from itertools import accumulate

from flowcatalyst.core.message import MessagePointer, encode_pointer


@dataclass(frozen=True, slots=True)
class Workload:
    messages: int = 30_000
    groups: int = 1_000
    zipf: float = 1.1
    slots: int = 64
    seed: int = 7

    def bodies(self, target: str) -> list[tuple[str, str, str]]:
        """(id, group, body) of each message, in publishing order; the same for the same seed."""
        rng = random.Random(self.seed)
        weights = list(accumulate(1 / rank**self.zipf for rank in range(1, self.groups + 1)))
        picked = rng.choices(range(self.groups), cum_weights=weights, k=self.messages)
        return [_message(number, f"group-{group}", target) for number, group in enumerate(picked)]


def _message(number: int, group: str, target: str) -> tuple[str, str, str]:
    pointer = MessagePointer(id=f"m{number}", mediation_target=target, auth_token="secret", message_group_id=group)
    return pointer.id, group, encode_pointer(pointer).decode()
