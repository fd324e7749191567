"""What a person does to a router, kept and noted: the act itself is `router.acting`."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final
from urllib.parse import quote

from flowcatalyst.control import stored_messages
from flowcatalyst.control.audit import Actor, AuditAction
from flowcatalyst.control.dead_letters import DeadLetter
from flowcatalyst.control.view import RouterView
from flowcatalyst.core.errors import FlowCatalystError, QueueUnavailableError, StorageError
from flowcatalyst.core.message import Delivery
from flowcatalyst.queues.front import GroupInHandError
from flowcatalyst.queues.inspection import inspectable
from flowcatalyst.router.acting import Done, Found
from flowcatalyst.router.blocked import FailedMessage
from flowcatalyst.router.pauses import PauseKind

OUT_OF_HAND_S: Final = 2.0  # longer than it takes to put something in front
ANSWER_WITHIN_S: Final = 2.0
MOST_PAUSES: Final = 10_000
_PAUSED: Final = {
    PauseKind.POOL: (AuditAction.PAUSE, AuditAction.RESUME, "pool"),
    PauseKind.ENDPOINT: (AuditAction.PAUSE, AuditAction.RESUME, "endpoint"),
    PauseKind.GROUP: (AuditAction.GROUP_HOLD, AuditAction.GROUP_RELEASE, "group"),
}


class NotKeptError(StorageError):
    """What a person did is in force, and a restart undoes it, since it could not be written."""


class TooManyPausesError(FlowCatalystError):
    """10,000 pools, endpoints and groups are paused or held, and no more can be: let some of them go on first."""


class JobGroupError(FlowCatalystError):
    """A group of dispatch jobs is held and released in the store of its jobs."""

    def __init__(self, group: str) -> None:
        super().__init__(
            f"all that is known of group {group!r} are dispatch jobs: hold and release them by "
            f"POST /api/message-groups/{quote(group, safe='')}/hold and /release"
        )


async def check_holds_messages(app: RouterView, group: str) -> None:
    """Raise `JobGroupError` if a hold could only be meant for dispatch jobs. Storage that does not answer keeps nobody
    from holding a group."""
    if app.jobs is None or group in app.engine.pauses.groups or app.engine.acts.has_messages(group):
        return
    with suppress(QueueUnavailableError, StorageError, TimeoutError):
        async with asyncio.timeout(ANSWER_WITHIN_S):
            if "\0" in group or not (await app.jobs.group(group)).jobs:
                return
            for queue in inspectable(app.engine.queues.values()):
                if group in await queue.look_at([group]):
                    return
            raise JobGroupError(group)


async def pause(app: RouterView, kind: PauseKind, name: str, actor: Actor) -> None:
    """At once, and across restarts. Raises `NotKeptError` if it cannot be kept: then it is paused until a restart."""
    action, _, what = _PAUSED[kind]
    async with app.pause_store.changing:
        if name not in app.engine.pauses.of_kind(kind) and len(app.engine.pauses) >= MOST_PAUSES:
            raise TooManyPausesError
        in_force = app.engine.acts.pause(kind, name, actor.who)
        app.audit.record(actor, action, f"{what} {name}", "", 1)
        stopped = "held" if kind is PauseKind.GROUP else "paused"
        with _kept(f"{what} {name} is {stopped} until somebody lets it go on or this router is restarted"):
            await app.pause_store.put(kind, name, in_force)


async def resume(app: RouterView, kind: PauseKind, name: str, actor: Actor) -> bool:
    """Whether it was paused. Queues are asked when it is done with: they may hang, and the next pause may not wait."""
    _, action, what = _PAUSED[kind]
    was_paused, stopped = False, "held" if kind is PauseKind.GROUP else "paused"
    try:
        async with app.pause_store.changing:
            was_paused = app.engine.acts.let_go(kind, name)
            detail = "" if was_paused else "it was not paused"
            app.audit.record(actor, action, f"{what} {name}", detail, int(was_paused))
            with _kept(f"{what} {name} goes on, and may be {stopped} again when this router is restarted"):
                await app.pause_store.remove(kind, name)
    finally:
        if was_paused and kind is PauseKind.GROUP:
            await app.engine.acts.show_group(name)
    return was_paused


async def retry(app: RouterView, found: Found, actor: Actor) -> Done:
    done = await app.engine.acts.retry(found)
    app.audit.record(actor, AuditAction.MESSAGE_RETRY, _what(found), done.text, int(done.done))
    return done


async def skip(app: RouterView, found: Found, actor: Actor) -> Done:
    done = await app.engine.acts.skip(found, actor.who)
    app.audit.record(actor, AuditAction.MESSAGE_SKIP, _what(found), done.text, int(done.done))
    if reason := app.engine.skips.find(found.broker_id):
        with _kept(f"{done.text}, unless this router is restarted before"):
            await app.pause_store.put_skip(found.broker_id, reason)
        if not app.engine.skips.find(found.broker_id):  # it is settled meanwhile
            app.engine.skips.on_over(found.broker_id)
    return done


async def skip_in_queue(app: RouterView, name: str, actor: Actor) -> Done | None:
    """The same for a message that its queue has not shown yet, where the storage is ours; None: there is none."""
    found = await stored_messages.find(app, name)
    if found is None:
        return None
    (queue, stored), reason = found, f"skipped by {actor.who}"
    app.engine.skips.add(stored.broker_id, reason)
    if isinstance(here := app.engine.acts.find(stored.broker_id), Delivery):  # it came while it was looked for
        return await skip(app, here, actor)
    text = f"message {name} becomes a dead letter when its turn in queue {queue} comes"
    app.audit.record(actor, AuditAction.MESSAGE_SKIP, f"message {name}", text, 1)
    with _kept(f"{text}, unless this router is restarted before"):
        await app.pause_store.put_skip(stored.broker_id, reason)
    return Done(True, text)


async def replay(app: RouterView, letter: DeadLetter, *, target: str | None, in_front: bool) -> None:
    """Send a dead letter once more. To be in front of its group, what waits of that in this router goes back to its
    queue for a moment; it is `GroupInHandError` only if an attempt is in flight, or another router has it."""
    try:
        await app.dead_letters.replay(letter, app.queues, target=target, in_front=in_front)
    except GroupInHandError:
        if letter.group is None or not await app.engine.acts.return_group(letter.group, letter.queue, OUT_OF_HAND_S):
            raise
        await app.dead_letters.replay(letter, app.queues, target=target, in_front=in_front)


@contextmanager
def _kept(in_force: str) -> Iterator[None]:
    try:
        yield
    except StorageError as error:
        raise NotKeptError(f"{in_force}: it could not be kept ({error})") from None


def _what(found: Found) -> str:
    return f"message {found.message_id if isinstance(found, FailedMessage) else found.pointer.id}"
