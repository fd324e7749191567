"""Messages to try a router out with. Their ids carry their place in the group, which the built-in receivers judge."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from flowcatalyst.core.clock import IdSource
from flowcatalyst.core.errors import InvalidMessageError
from flowcatalyst.core.message import DEFAULT_POOL, MessagePointer, check_target
from flowcatalyst.queues.contract import Outgoing
from flowcatalyst.queues.intake import outgoing_of
from flowcatalyst.sandbox.order_judge import SeededId
from flowcatalyst.sandbox.receivers import RECEIVERS

CHUNK: Final = 500
RANDOM: Final = "random"
RANDOM_ENDPOINTS: Final = ("fast", "slow", "faulty")
POOL_OF_QUEUE: Final = {
    "high": "POOL-HIGH",
    "medium": "POOL-MEDIUM",
    "low": "POOL-LOW",
    "default": DEFAULT_POOL,
}


class GroupMode(StrEnum):
    """How many groups the messages are spread over."""

    UNIQUE = "unique"
    ONE_OF_8 = "1of8"
    SINGLE = "single"


@dataclass(slots=True, frozen=True)
class Seed:
    """The messages of one run. Groups belong to their run, so two runs never wait for each other."""

    run: str
    queues: Sequence[str]  # chance decides for each group
    targets: Sequence[str]  # chance decides for each message
    groups: GroupMode | int  # a number: so many
    ids: IdSource

    def messages(self, count: int) -> Iterator[tuple[str, Outgoing]]:
        """Queue and message, in order."""
        positions: Counter[str] = Counter()
        queue_of_group: dict[str, str] = {}
        for index in range(count):
            match self.groups:
                case GroupMode.UNIQUE:
                    group = f"msg-{index}"
                case GroupMode.ONE_OF_8:
                    group = f"group-{self.ids.rng.randrange(8)}"
                case GroupMode.SINGLE:
                    group = "single-group"
                case int(number):
                    group = f"group-{self.ids.rng.randrange(number)}"
            if self.groups is GroupMode.UNIQUE:
                queue, position = self._one_of(self.queues), 1  # not remembered: there may be millions
            else:
                # A group stays in one queue: across queues there is no order to judge.
                queue = queue_of_group.get(group) or queue_of_group.setdefault(group, self._one_of(self.queues))
                positions[group] += 1
                position = positions[group]
            pointer = MessagePointer(
                id=str(SeededId(self.run, group, position)),
                mediation_target=self._one_of(self.targets),
                pool_code=POOL_OF_QUEUE.get(queue, DEFAULT_POOL),
                message_group_id=f"{self.run}-{group}",
            )
            yield queue, outgoing_of(pointer, pointer.id)

    def _one_of(self, choices: Sequence[str]) -> str:
        return choices[0] if len(choices) == 1 else self.ids.rng.choice(choices)


def targets_of(endpoint: str, router_url: str) -> list[str]:
    """The URLs that an endpoint means: built-in receivers of the router at this URL, or itself if it is one.

    Raises `InvalidMessageError` if it is neither.
    """
    if endpoint in RECEIVERS or endpoint == RANDOM:
        names = RANDOM_ENDPOINTS if endpoint == RANDOM else [endpoint]
        return [f"{router_url}/api/test/{name}" for name in names]
    if "/" not in endpoint:
        raise InvalidMessageError(f"endpoint has to be a URL or one of {', '.join(RECEIVERS)}, {RANDOM}")
    try:
        check_target(endpoint)
    except InvalidMessageError as error:
        raise InvalidMessageError(f"endpoint cannot be called: {error}") from None
    return [endpoint]
