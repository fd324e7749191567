"""What a person does to a router, kept and noted: the act itself is `router.acting`."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from flowcatalyst.control import stored_messages
from flowcatalyst.control.audit import Actor, AuditAction
from flowcatalyst.control.dead_letters import DeadLetter
from flowcatalyst.control.view import RouterView
from flowcatalyst.core.errors import StorageError
from flowcatalyst.core.message import Delivery
from flowcatalyst.core.tasks import uninterrupted
from flowcatalyst.queues.front import GroupInHandError
from flowcatalyst.router.acting import Done, Found
from flowcatalyst.router.blocked import FailedMessage
from flowcatalyst.router.pauses import Pause, PauseKind

OUT_OF_HAND_S: Final = 2.0  # longer than it takes to put something in front
_PAUSED: Final = {
    PauseKind.POOL: (AuditAction.PAUSE, AuditAction.RESUME, "pool"),
    PauseKind.ENDPOINT: (AuditAction.PAUSE, AuditAction.RESUME, "endpoint"),
    PauseKind.GROUP: (AuditAction.GROUP_HOLD, AuditAction.GROUP_RELEASE, "group"),
}

_DONE: Final = {
    AuditAction.PAUSE: "paused",
    AuditAction.RESUME: "resumed",
    AuditAction.GROUP_HOLD: "held",
    AuditAction.GROUP_RELEASE: "released",
}


async def pause(app: RouterView, kind: PauseKind, name: str, actor: Actor) -> None:
    """Across restarts, so it is kept first. Raises `StorageError` if it cannot be: then nothing is changed."""
    action, _, what = _PAUSED[kind]

    async def keep_and_do() -> None:
        in_force = app.engine.pauses.of_kind(kind).get(name) or Pause(actor.who, app.clock.wall())
        with _not_done(f"{what} {name} is not {_DONE[action]}"):
            await app.pause_store.put(kind, name, in_force)
        app.engine.acts.pause(kind, name, in_force.by, in_force.since)
        app.audit.record(actor, action, f"{what} {name}", "", 1)

    async with app.pause_store.changing:
        await uninterrupted(keep_and_do())


async def resume(app: RouterView, kind: PauseKind, name: str, actor: Actor) -> bool:
    """Whether it was paused. Raises `StorageError` if that cannot be kept: then nothing is changed."""
    _, action, what = _PAUSED[kind]

    async def keep_and_do() -> bool:
        with _not_done(f"{what} {name} is not {_DONE[action]}"):
            await app.pause_store.remove(kind, name)
        was_paused = await app.engine.acts.resume(kind, name)
        app.audit.record(actor, action, f"{what} {name}", "" if was_paused else "it was not paused", int(was_paused))
        return was_paused

    async with app.pause_store.changing:
        return await uninterrupted(keep_and_do())


async def retry(app: RouterView, found: Found, actor: Actor) -> Done:
    done = await app.engine.acts.retry(found)
    app.audit.record(actor, AuditAction.MESSAGE_RETRY, _what(found), done.text, int(done.done))
    return done


async def skip(app: RouterView, found: Found, actor: Actor) -> Done:
    done = await app.engine.acts.skip(found, actor.who)
    if reason := app.engine.skips.find(found.broker_id):
        done = await _kept(app, found.broker_id, reason, done)
        if not app.engine.skips.find(found.broker_id):  # it is settled meanwhile
            app.engine.skips.on_over(found.broker_id)
    app.audit.record(actor, AuditAction.MESSAGE_SKIP, _what(found), done.text, int(done.done))
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
    done = Done(True, f"message {name} becomes a dead letter when its turn in queue {queue} comes")
    done = await _kept(app, stored.broker_id, reason, done)
    app.audit.record(actor, AuditAction.MESSAGE_SKIP, f"message {name}", done.text, 1)
    return done


async def replay(app: RouterView, letter: DeadLetter, *, target: str | None, in_front: bool) -> None:
    """Send a dead letter once more. To be in front of its group, what waits of that in this router goes back to its
    queue for a moment; it is `GroupInHandError` only if an attempt is in flight, or another router has it."""
    try:
        await app.dead_letters.replay(letter, app.queues, target=target, in_front=in_front)
    except GroupInHandError:
        if letter.group is None or not await app.engine.acts.return_group(letter.group, OUT_OF_HAND_S):
            raise
        await app.dead_letters.replay(letter, app.queues, target=target, in_front=in_front)


async def _kept(app: RouterView, broker_id: str, reason: str, done: Done) -> Done:
    """A message that was given up stays so, also if that cannot be kept: its skip may have begun."""
    try:
        await app.pause_store.put_skip(broker_id, reason)
    except StorageError as error:
        return Done(done.done, f"{done.text}; if this router is stopped before that, skip it again, since {error}")
    return done


@contextmanager
def _not_done(what: str) -> Iterator[None]:
    try:
        yield
    except StorageError as error:
        raise StorageError(f"{what}, since that could not be kept: {error}") from None


def _what(found: Found) -> str:
    return f"message {found.message_id if isinstance(found, FailedMessage) else found.pointer.id}"
