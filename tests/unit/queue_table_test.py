"""The table of capabilities in the manual says what the code claims; the conformance suite holds the code to it."""

from pathlib import Path

import pytest

from flowcatalyst.control.settings import Settings
from flowcatalyst.core.clock import SystemClock
from flowcatalyst.core.message import Capabilities
from flowcatalyst.queues.contract import Batching
from flowcatalyst.queues.embedded.queue import EmbeddedQueue
from flowcatalyst.queues.embedded.store import EmbeddedStore
from flowcatalyst.queues.factory import QueueFactory
from flowcatalyst.queues.front import FrontQueue
from flowcatalyst.queues.settings import QueueConfig

MANUAL = Path(__file__).parent.parent.parent / "docs" / "queues.md"
URIS = {
    "embedded": "embedded:q",
    "SQS FIFO": "sqs://q.fifo?region=eu-west-1",
    "SQS standard": "sqs://q?region=eu-west-1",
    "NATS JetStream": "nats://127.0.0.1/Q?consumer=router",
    "ActiveMQ": "amqp://127.0.0.1/q",
    "PostgreSQL": "postgresql://127.0.0.1/shop?queue=q",
}


def table() -> dict[str, dict[str, str]]:
    """Queue -> row -> cell."""
    lines = MANUAL.read_text().splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith("| | embedded |"))
    rows = []
    for line in lines[start:]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    names, _, *body = rows
    return {name: {row[0]: row[column] for row in body} for column, name in enumerate(names) if name}


def claimed(capabilities: Capabilities, batching: Batching, *, has_front: bool) -> dict[str, str]:
    def word(claim: bool) -> str:
        return "yes" if claim else "no"

    return {
        "shows a group in the order it was published": word(capabilities.ordered_receive),
        "shows a nacked message before its followers": word(capabilities.ordered_redelivery),
        "shows what a vanished router had before what came after it": word(capabilities.ordered_takeover),
        "locks a group while one of its messages is in flight": word(capabilities.locks_groups),
        "honours the delay of a nack": word(capabilities.delayed_nack),
        "leases, extended by the router": word(capabilities.extends),
        "is asked for what each pool has free capacity for": word(capabilities.selects_pools),
        "shows a nacked message before its delay is over, if a person wants it": word(capabilities.hurries),
        "drops repeated deduplication ids": word(capabilities.deduplicates),
        "takes a message in front of a group": word(has_front),
        "messages of one poll": str(batching.max_batch),
        "one poll waits": f"{capabilities.long_poll_s:g} s",
    }


@pytest.mark.parametrize("name", URIS)
def test_the_manual_says_what_the_code_claims(name: str, tmp_path: Path) -> None:
    clock = SystemClock()
    store = EmbeddedStore(tmp_path / "queue.db", clock)
    factory = QueueFactory(store, Settings(), clock)
    factory.add_publishers([QueueConfig("q", URIS[name])])
    queue = EmbeddedQueue(store, "q") if name == "embedded" else factory.publishers["q"]
    said = table()[name]
    said.pop("tells its depth")  # the suite asks each of them
    assert said == claimed(queue.capabilities, queue.batching, has_front=isinstance(queue, FrontQueue))
