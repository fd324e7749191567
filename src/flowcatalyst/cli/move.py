"""`flowcatalyst move`: all messages of one queue into another, in the order of each group."""

import asyncio
import signal
import sys
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Final

import typer

from flowcatalyst.app.router import config_of
from flowcatalyst.cli.options import DataDir, SettingsFile
from flowcatalyst.cli.progress import progress_bar
from flowcatalyst.cli.queue_access import EXIT_INTERRUPTED, Create, choose_queue, counted, run_to_end
from flowcatalyst.control.settings import Settings, load_settings
from flowcatalyst.core.clock import SystemClock
from flowcatalyst.core.errors import ConfigurationError, InvalidMessageError, QueueUnavailableError
from flowcatalyst.core.files import is_there
from flowcatalyst.core.terminal import visible
from flowcatalyst.queues.address import Address, EmbeddedAddress, NatsAddress, SqsAddress, parse_queue_uri
from flowcatalyst.queues.contract import BrokerQueue, Depth, Queue
from flowcatalyst.queues.embedded.store import EmbeddedStore, routers_on
from flowcatalyst.queues.factory import QueueFactory
from flowcatalyst.queues.moving import Move, held
from flowcatalyst.queues.raw import reader_of
from flowcatalyst.queues.settings import QueueConfig

PATIENCE_S: Final = 60.0
QUEUE_FORM: Final = "A queue of the settings, or any queueUri: see docs/queues.md"


def move(
    source: Annotated[str, typer.Option("--from", metavar="QUEUE", help=QUEUE_FORM)],
    target: Annotated[str, typer.Option("--to", metavar="QUEUE", help=QUEUE_FORM)],
    limit: Annotated[int | None, typer.Option(min=1, metavar="N", help="Most messages to move  [default: all]")] = None,
    wait: Annotated[
        float, typer.Option(min=0, metavar="SECONDS", help="How long for what waits for its next attempt")
    ] = PATIENCE_S,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only count them")] = False,
    force: Annotated[bool, typer.Option("--force", help="Even if somebody seems to receive from the source")] = False,
    create: Create = False,
    data_dir: DataDir = None,
    config: SettingsFile = None,
) -> None:
    """Move messages from one queue into another, in order.

    No router may poll the first queue meanwhile. Interrupted, it can be run again: then one message of each group may
    be there twice, unless the second queue deduplicates and it is run again within five minutes, which is for how long
    queues remember. None is lost, and none overtakes another of its group.
    """
    settings = load_settings(config, data_dir=data_dir)
    ends = _Ends(settings, _chosen(settings, "--from", source), _chosen(settings, "--to", target), create)
    work = _Work(ends, limit, wait, force)
    run_to_end(work.count() if dry_run else work.move(), work.how_far)
    if work.code:
        raise typer.Exit(work.code)


def _chosen(settings: Settings, option: str, text: str) -> QueueConfig:
    """A queue by its name, else by its address. That of the settings counts, which may say more of it."""
    queues = config_of(settings).queues
    if text in queues:
        return queues[text]
    if ":" not in text:
        return choose_queue(settings, text, None)
    try:
        return next((one for one in queues.values() if one.uri == text), None) or choose_queue(settings, None, text)
    except ConfigurationError as error:
        raise ConfigurationError(str(error).replace("--uri", option)) from None


class _Ends:
    """Both queues."""

    def __init__(self, settings: Settings, source: QueueConfig, target: QueueConfig, create: bool) -> None:
        """Raises `ConfigurationError`."""
        self.source, self.target = source, target
        self.source_address, self.target_address = parse_queue_uri(source.uri), parse_queue_uri(target.uri)
        if _place(self.source_address) == _place(self.target_address):
            raise ConfigurationError("--from and --to are the same queue")
        self.file = settings.data_dir / "queue.db"
        self.store = EmbeddedStore(self.file, SystemClock())
        self.factory = QueueFactory(self.store, settings, SystemClock())
        for config in (source, target):
            if problem := self.factory.problem_with(config):
                raise ConfigurationError(problem)
        self._settings = settings
        self._create = create
        is_embedded = isinstance(self.source_address, EmbeddedAddress)
        needs_file = is_embedded or (isinstance(self.target_address, EmbeddedAddress) and not create)
        if needs_file and not is_there(self.file):
            hint = "" if is_embedded else ", or make it with --create"
            raise ConfigurationError(f"there is no queue file {self.file}: name its folder with --data-dir{hint}")

    async def open(self, stack: AsyncExitStack) -> tuple[Queue, BrokerQueue]:
        """Raises `ConfigurationError` if an embedded queue is meant that nobody knows: its name may be misspelt."""
        self._settings.data_dir.mkdir(parents=True, exist_ok=True)
        source = await self.factory.open(self.source)
        stack.push_async_callback(source.close)
        known = {one.name for one in map(parse_queue_uri, self._uris()) if isinstance(one, EmbeddedAddress)}
        self.factory.add_publishers([self.target])
        target = self.factory.publishers[self.target.name]
        await target.open()
        stack.push_async_callback(target.close)
        for address in (self.source_address, self.target_address):
            if isinstance(address, EmbeddedAddress) and address.name not in known | await self.store.queue_names():
                if address is self.target_address and self._create:
                    continue
                raise ConfigurationError(
                    f"neither the settings nor {self.file} know an embedded queue {address.name!r}"
                )
        return source, target

    async def depth(self, source: Queue) -> Depth | None:
        """What the source holds now. A client of SQS that received messages remembers for a minute what it was told."""
        if not isinstance(self.source_address, SqsAddress):
            return await source.depth()
        another = await self.factory.open(self.source)
        try:
            return await another.depth()
        finally:
            await another.close()

    def _uris(self) -> list[str]:
        return [one.uri for one in config_of(self._settings).queues.values()]

    def obstacle(self) -> str:
        """Why nobody should receive from the source now, as far as its file tells."""
        if not isinstance(self.source_address, EmbeddedAddress):
            return ""
        for url, process in routers_on(self.file).items():
            return f"the router at {url} (process {process}) has {self.file} open and may poll it: stop it first"
        return ""


def _place(address: Address) -> object:
    """The same for two addresses of one queue."""
    match address:
        case NatsAddress(servers=servers, stream=stream):
            return "nats", servers, stream  # whatever consumer receives from it
        case SqsAddress():
            return replace(address, create=False)
    return address


@dataclass(slots=True)
class _Work:
    """What is to be done, and how far it came."""

    ends: _Ends
    limit: int | None
    wait_s: float
    force: bool
    code: int = 0
    _move: Move | None = None

    @property
    def _names(self) -> str:
        return f"from queue {self.ends.source.name} to queue {self.ends.target.name}"

    def how_far(self) -> str:
        moved = 0 if self._move is None else self._move.moved
        return f"{counted(moved)} moved {self._names} so far; run it again to go on"

    async def count(self) -> None:
        async with AsyncExitStack() as stack:
            source, _ = await self.ends.open(stack)
            depth = await source.depth()
        if depth is None:
            print(visible(f"Queue {source.name} cannot be counted: its broker does not tell."))
            return
        total = held(depth) or 0
        parts = f"{depth.waiting:,} waiting, {depth.leased:,} leased, {depth.delayed:,} delayed"
        most = total if self.limit is None else min(total, self.limit)
        print(visible(f"{counted(most)} would be moved {self._names}; it holds {total:,}: {parts}."))
        if problem := self.ends.obstacle():
            print(visible(f"flowcatalyst: {problem}"), file=sys.stderr)

    async def move(self) -> None:
        if not self.force and (problem := self.ends.obstacle()):
            raise ConfigurationError(f"{problem}, or add --force")
        async with AsyncExitStack() as stack:
            source, target = await self.ends.open(stack)
            total = await self._look_before(source, target)
            self._move = made = Move(
                source,
                target,
                SystemClock(),
                read=reader_of(self.ends.source.raw),
                limit=self.limit,
                patience_s=self.wait_s,
                depth=partial(self.ends.depth, source),
                obstacle=str if self.force else self.ends.obstacle,
            )
            interrupted = _stop_at_a_signal(made)
            try:
                with progress_bar(f"moving {self._names}", total) as progress:
                    await made.run(lambda: progress(made.moved))
            except (QueueUnavailableError, InvalidMessageError) as error:
                raise type(error)(f"{error}; {self.how_far()}") from None
            left = held(await self.ends.depth(source))
        self._tell(made, left, interrupted())

    async def _look_before(self, source: Queue, target: BrokerQueue) -> int | None:
        """How many there are to move. Raises `ConfigurationError` if others have some of them."""
        depth = await source.depth()
        if depth is not None and depth.leased and source.capabilities.locks_groups and not self.force:
            raise ConfigurationError(
                f"queue {source.name} has {counted(depth.leased, 'leased message')}: stop the router that polls it, or "
                "wait until the leases of one that died have ended, or add --force"
            )
        notes = []
        if not isinstance(self.ends.source_address, EmbeddedAddress):
            notes.append(
                f"whether a router polls queue {source.name} cannot be told for sure: make sure that none does"
            )
        if not target.capabilities.deduplicates:
            notes.append(f"queue {target.name} does not deduplicate: an interruption may leave messages there twice")
        for queue in (source, target):
            if not queue.capabilities.ordered_receive:
                notes.append(f"queue {queue.name} keeps no order")
        for note in notes:
            print(visible(f"flowcatalyst: {note}"), file=sys.stderr)
        total = held(depth)
        return total if total is None or self.limit is None else min(total, self.limit)

    def _tell(self, made: Move, left: int | None, interrupted: bool) -> None:
        there = f", {made.doubles:,} of them were there already" if made.doubles else ""
        print(visible(f"{counted(made.moved)} moved {self._names}{there}."))
        if interrupted:
            print("flowcatalyst: stopped; run it again to go on", file=sys.stderr)
            self.code = EXIT_INTERRUPTED
        elif left and (self.limit is None or made.moved < self.limit):
            why = f"not shown within {self.wait_s:g} s, since they are delayed, or somebody else has them"
            print(
                visible(f"flowcatalyst: {counted(left)} stay in queue {self.ends.source.name}: {why}"), file=sys.stderr
            )
            self.code = 1


def _stop_at_a_signal(made: Move) -> Callable[[], bool]:
    """The first Ctrl-C ends it when what is published is acked, another one at once. Tells whether one came."""
    loop = asyncio.get_running_loop()
    came: list[int] = []

    def stop(number: int) -> None:
        came.append(number)
        made.stop()
        loop.remove_signal_handler(number)

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop, number)
    return lambda: bool(came)
