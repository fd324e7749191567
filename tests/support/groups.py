"""A scheduler of groups, filled and run dry."""

from collections.abc import Iterable
from functools import partial

from flowcatalyst.core.message import Delivery, DispatchMode
from flowcatalyst.router.group import FailureScope
from flowcatalyst.router.groups import GroupScheduler
from tests.support import deliveries
from tests.support.deliveries import RecordingSource

delivery = partial(deliveries.delivery, source=RecordingSource())  # all of one queue
IMMEDIATE = DispatchMode.IMMEDIATE
EMPTY = "<GroupScheduler in_flight=0 buffered=0 empty>"


def scheduler_with(*messages: Delivery) -> GroupScheduler:
    scheduler = GroupScheduler()
    for message in messages:
        scheduler.submit(message)
    return scheduler


def ids(messages: Iterable[Delivery]) -> list[str]:
    return [message.pointer.id for message in messages]


def take(scheduler: GroupScheduler) -> Delivery:
    message = scheduler.take()
    assert message is not None, f"nothing ready in {scheduler!r}"
    return message


def take_all(scheduler: GroupScheduler) -> list[Delivery]:
    """Everything that may be in flight at once."""
    return list(iter(scheduler.take, None))


def run_dry(scheduler: GroupScheduler) -> list[str]:
    """Take and finish one message after the other until nothing may start."""
    taken: list[str] = []
    while (message := scheduler.take()) is not None:
        taken.append(message.pointer.id)
        scheduler.finish(message)
    return taken


def run(scheduler: GroupScheduler, failing: set[str], scope: FailureScope) -> tuple[list[str], list[str]]:
    """Deliver everything, one after the other; returns who was acked and who went back, in order."""
    acked: list[str] = []
    nacked: list[str] = []
    while (message := scheduler.take()) is not None:
        if message.pointer.id in failing:
            nacked += ids([message, *scheduler.fail(message, scope)])
        else:
            scheduler.finish(message)
            acked.append(message.pointer.id)
    return acked, nacked
