"""What was delivered and could not be acked is acked when its queue shows it again, as it was delivered."""

from collections.abc import Sequence

from flowcatalyst.core.message import Delivery, Settled
from flowcatalyst.queues.memory import MemoryQueue
from flowcatalyst.router.settler import Settler
from flowcatalyst.router.tracker import InFlightTracker
from tests.support.clocks import SetClock
from tests.support.deliveries import delivery


class LateQueue(MemoryQueue):
    """Takes the first ack for one that comes too late."""

    acks: int = 0

    async def ack(self, deliveries: Sequence[Delivery]) -> list[Settled]:
        self.acks += 1
        return [Settled.GONE if self.acks == 1 else Settled.OK for _ in deliveries]


async def test_a_repeated_ack_names_the_position_that_the_request_had() -> None:
    settler = Settler(LateQueue("jobs", SetClock()), InFlightTracker())
    sent, again = delivery("m1"), delivery("m1")
    sent.position, again.position = 4, 6
    settler.ack(sent)
    await settler.settle()
    assert settler.ends_already(again)
    assert again.position == 4
