"""Messages that wait in a queue whose storage is ours, and that this router has no memory of: it was started since, or
has not received them yet."""

from flowcatalyst.control.view import RouterView
from flowcatalyst.core.errors import InvalidMessageError
from flowcatalyst.core.message import DEFAULT_POOL, MessagePointer, parse_pointer
from flowcatalyst.core.words import count
from flowcatalyst.queues.inspection import StoredMessage, inspectable
from flowcatalyst.router.blocked import FailedMessage


async def find(app: RouterView, name: str) -> tuple[str, StoredMessage] | None:
    """By application id or broker id: its queue, and how it stands there. Raises `QueueUnavailableError`."""
    for queue in inspectable(app.engine.queues.values()):
        if (stored := await queue.find(name)) is not None:
            return queue.name, stored
    return None


async def head_of(app: RouterView, group: str, pool: str | None = None) -> FailedMessage | None:
    """The first message of a group in its queue, as one that failed and waits there. `pool`: only if it is of that."""
    for queue in inspectable(app.engine.queues.values()):
        lane = (await queue.look_at([group])).get(group)
        if lane is None or pool not in (None, lane.pool):
            continue
        if (stored := await queue.find(lane.head_id)) is not None:
            return as_failed(app, queue.name, stored)
    return None


def as_failed(app: RouterView, queue: str, stored: StoredMessage) -> FailedMessage:
    now, pointer = app.clock.monotonic(), pointer_of(stored)
    failed = f"{count(stored.failures, 'failed attempt')} before this router was started"
    return FailedMessage(
        group=stored.group.group or "",
        pool=pool_of(app, stored.group.pool),
        broker_id=stored.broker_id,
        message_id=stored.broker_id if pointer is None else pointer.id,
        since=now,
        due_at=now + (stored.group.due_in_s or 0.0),
        detail=failed if stored.failures else "never tried",
        queue=queue,
        pointer=pointer,
        failures=stored.failures,
        is_nacked=True,
    )


def pool_of(app: RouterView, code: str) -> str:
    """The pool that takes what names this one."""
    pools = app.router.pools
    return code if code in pools or DEFAULT_POOL not in pools else DEFAULT_POOL


def pointer_of(stored: StoredMessage) -> MessagePointer | None:
    """None: its body is no message of ours."""
    try:
        return parse_pointer(stored.body)
    except InvalidMessageError:
        return None
