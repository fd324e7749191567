"""`flowcatalyst seed`: messages to try a router out with, into any queue."""

from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass
from itertools import islice
from typing import Annotated, Final

import typer

from flowcatalyst.cli.options import DataDir, SettingsFile
from flowcatalyst.cli.progress import progress_bar
from flowcatalyst.cli.queue_access import (
    Create,
    QueueAccess,
    QueueName,
    QueueUri,
    StraightWayIn,
    choose_queue,
    counted,
    run_to_end,
    shown,
)
from flowcatalyst.cli.remote_queue import ApiKey, RemoteQueue, refuse_key_without_router
from flowcatalyst.cli.router_api import router_of
from flowcatalyst.control.settings import load_settings
from flowcatalyst.core.clock import IdSource, SystemClock
from flowcatalyst.core.errors import InvalidMessageError, QueueUnavailableError
from flowcatalyst.sandbox.seeding import CHUNK, RANDOM, GroupMode, Seed, targets_of

MAX_GROUPS: Final = 1_000_000  # each is remembered
DEFAULT_ENDPOINT: Final = "fast"


def seed(
    count: Annotated[int, typer.Option(min=1, help="How many messages")] = 1000,
    groups: Annotated[
        str, typer.Option(metavar="N", help="Spread over so many groups; single: over one; unique: a group each")
    ] = GroupMode.ONE_OF_8.value,
    queue: QueueName = None,
    uri: QueueUri = None,
    target: Annotated[
        str | None, typer.Option(metavar="URL", help="Where to deliver them, instead of the built-in receivers")
    ] = None,
    router: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Send to this router, for its receivers; with --uri only its receivers count  [default: the router "
            "that has the data folder open, else host and port of these settings]",
        ),
    ] = None,
    endpoint: Annotated[
        str | None, typer.Option(help=f"Which of its receivers, or {RANDOM}  [default: {DEFAULT_ENDPOINT}]")
    ] = None,
    api_key: ApiKey = None,
    create: Create = False,
    data_dir: DataDir = None,
    config: SettingsFile = None,
) -> None:
    """Fill a queue with messages to try a router out with.

    They are for the built-in receivers of `flowcatalyst up`, which judge their order.
    """
    if target is not None and (endpoint is not None or (router is not None and uri is not None)):
        raise typer.BadParameter("messages go either to a --target or to an --endpoint of a --router")
    if router is not None and uri is None and (create or data_dir or config):
        raise typer.BadParameter("a --router has its own queues: leave out --create, --data-dir and --config")
    if target is None and endpoint is not None and "/" in endpoint:
        raise typer.BadParameter("an --endpoint is the name of a receiver: name a URL with --target")
    if router is not None and uri is None:
        running = RemoteQueue(router, queue, api_key)
        name, router_url = running.name, running.base_url
    else:
        running = None
        refuse_key_without_router(api_key)
        settings = load_settings(config, data_dir=data_dir)
        chosen = choose_queue(settings, queue, uri)
        name, router_url = chosen.name, "" if target else (router or router_of(settings)).rstrip("/")
    ids = IdSource(SystemClock())
    sowing = Seed(
        run=ids.new_id(),
        queues=[name],
        targets=_targets(target or endpoint or DEFAULT_ENDPOINT, router_url),
        groups=_groups(groups),
        ids=ids,
    )
    sown = _Sown(count)
    run_to_end(_sow(lambda: running or StraightWayIn(settings, chosen, create), sowing, sown), lambda: str(sown))


@dataclass(slots=True)
class _Sown:
    """How far it came."""

    wanted: int
    published: int = 0

    def __str__(self) -> str:
        return f"at least {self.published:,} of {counted(self.wanted)} were published before that"


def _groups(text: str) -> GroupMode | int:
    if text in list(GroupMode):
        return GroupMode(text)
    if not (text.isascii() and text.isdigit() and len(text) < 9 and 1 <= int(text) <= MAX_GROUPS):
        raise typer.BadParameter(f"--groups is a number from 1 to {MAX_GROUPS:,}, or {', '.join(GroupMode)}")
    return int(text)


def _targets(endpoint: str, router_url: str) -> list[str]:
    try:
        found = targets_of(endpoint, router_url)
        for target in found:
            targets_of(target, router_url)  # the router's URL may be wrong
    except InvalidMessageError as error:
        raise typer.BadParameter(str(error)) from None
    return found


async def _sow(queue_access: Callable[[], QueueAccess], sowing: Seed, sown: _Sown) -> None:
    clock = SystemClock()
    messages = sowing.messages(sown.wanted)
    async with aclosing(queue_access()) as queue:
        started_at = clock.monotonic()
        with progress_bar(f"seeding for {sowing.targets[0]}", sown.wanted) as progress:
            while chunk := [message for _, message in islice(messages, CHUNK)]:
                try:
                    sown.published += len(await queue.publish(chunk))
                except (QueueUnavailableError, InvalidMessageError) as error:
                    raise type(error)(f"{error}; {sown}") from None
                progress(sown.published)
        seconds = max(clock.monotonic() - started_at, 0.001)
    print(
        f"{counted(sown.published)} published to {shown(queue)} in {seconds:.1f} s, "
        f"{sown.published / seconds:,.0f} messages/s; run {sowing.run}, "
        f"for {sowing.targets[0]}{' and others' if len(sowing.targets) > 1 else ''}"
    )
