"""Which queue a command publishes to, and the way into it: straight, or through a router that runs."""

import asyncio
import os
import sys
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Annotated, Any, Final, Protocol

import typer
import uvloop

from flowcatalyst.app.router import config_of
from flowcatalyst.control.settings import Settings
from flowcatalyst.core.clock import SystemClock
from flowcatalyst.core.errors import ConfigurationError
from flowcatalyst.core.files import is_there
from flowcatalyst.core.logs import configure_logs
from flowcatalyst.core.message import DEFAULT_POOL
from flowcatalyst.queues.address import (
    AmqpAddress,
    EmbeddedAddress,
    NatsAddress,
    PostgresAddress,
    SqsAddress,
    parse_queue_uri,
)
from flowcatalyst.queues.contract import Outgoing, Published
from flowcatalyst.queues.embedded.store import EmbeddedStore
from flowcatalyst.queues.factory import QueueFactory
from flowcatalyst.queues.settings import QueueConfig

EXIT_INTERRUPTED: Final = 130

QueueName = Annotated[
    str | None, typer.Option("--queue", metavar="NAME", help="A queue of the settings  [default: the first]")
]
QueueUri = Annotated[str | None, typer.Option("--uri", metavar="QUEUEURI", help="Any queue: see docs/queues.md")]
Create = Annotated[
    bool, typer.Option("--create", help="Make the embedded queue, and the file of these, if it is not there")
]


class QueueAccess(Protocol):
    """Where a command publishes to."""

    name: str  # of the queue
    place: str  # where that is, to be shown; empty: its broker
    deduplicates: bool | None  # None: not known here

    async def publish(self, messages: Sequence[Outgoing]) -> list[Published]: ...

    def notes(self, pools: Iterable[str]) -> set[str]:
        """What the sender of messages that were published, for these pools, may not have meant."""
        ...

    async def aclose(self) -> None: ...


def choose_queue(settings: Settings, name: str | None, uri: str | None) -> QueueConfig:
    """The queue that is meant. Raises `ConfigurationError` if there is none."""
    if name is not None and uri is not None:
        raise typer.BadParameter("a queue has either --queue or --uri")
    if uri is not None:
        try:
            address = parse_queue_uri(uri)
        except ConfigurationError as error:
            raise ConfigurationError(f"--uri cannot be used: {error}") from None
        match address:
            case EmbeddedAddress(name) | SqsAddress(name) | NatsAddress(stream=name):
                return QueueConfig(name, uri)
            case AmqpAddress(queue=name) | PostgresAddress(queue=name):
                return QueueConfig(name, uri)
    queues = config_of(settings).queues
    if not queues:
        raise ConfigurationError(
            "the queues come from a config URL, which only the router reads: name the queue with --uri"
        )
    if name is None:
        return next(iter(queues.values()))
    if name not in queues:
        raise ConfigurationError(f"the settings have no queue {name!r}; the queues are: {', '.join(queues)}")
    return queues[name]


class StraightWayIn:
    """A queue that needs no router. An embedded one has to be there, unless it is to be created."""

    def __init__(self, settings: Settings, config: QueueConfig, create: bool) -> None:
        """Raises `ConfigurationError`."""
        self.name, self.place = config.name, ""
        self._read: set[str] | None = None  # the embedded queues that the settings name; None: any queue will do
        # Those of a config URL are not known here.
        self._pools = config_of(settings).pools if settings.sync.config_url is None else {}
        clock = SystemClock()
        file = settings.data_dir / "queue.db"
        self._store = EmbeddedStore(file, clock)
        factory = QueueFactory(self._store, settings, clock)
        if problem := factory.problem_with(config):
            raise ConfigurationError(problem)
        if (address := _embedded(config)) is not None:
            self.place = str(file.absolute())
            known = {one.name for queue in config_of(settings).queues.values() if (one := _embedded(queue))}
            self._read = None if create or address.name in known else known
            if not create and not is_there(file):
                demo = settings.data_dir / "demo"
                hint = f" (that of the demo is {demo})" if is_there(demo / "queue.db") else ""
                raise ConfigurationError(
                    f"there is no queue file {self.place}: name the data folder of the router with --data-dir{hint}, "
                    "send to a router that runs with --router URL, or make a new queue with --create"
                )
            try:
                settings.data_dir.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise ConfigurationError(
                    f"data folder {settings.data_dir} cannot be made ({error.strerror}): choose another"
                ) from None
        factory.add_publishers([config])
        self._queue = factory.publishers[config.name]
        self.deduplicates: bool | None = self._queue.capabilities.deduplicates
        self._is_open = False

    async def publish(self, messages: Sequence[Outgoing]) -> list[Published]:
        if not self._is_open:
            await self._queue.open()
            self._is_open = True
            # A queue that neither the settings nor the file know is a typo: its messages would wait for ever.
            if self._read is not None and self._queue.name not in (in_file := await self._store.queue_names()):
                raise ConfigurationError(
                    f"nobody is known to read the embedded queue {self._queue.name!r} of {self.place}: there are "
                    f"{', '.join(sorted(self._read | in_file))}; name one of them, or make a new one with --create"
                )
        return await self._queue.publish(messages)

    def notes(self, pools: Iterable[str]) -> set[str]:
        unknown = {*pools} - {*self._pools, DEFAULT_POOL} if self._pools else ()
        how = f"{DEFAULT_POOL} will take it, unless the router has that pool"
        return {f"the settings have no pool {pool!r}: {how}" for pool in unknown}

    async def aclose(self) -> None:
        await self._queue.close()
        await self._store.close()


def _embedded(config: QueueConfig) -> EmbeddedAddress | None:
    address = parse_queue_uri(config.uri)
    return address if isinstance(address, EmbeddedAddress) else None


def shown(way: QueueAccess) -> str:
    return f"queue {way.name} ({way.place})" if way.place else f"queue {way.name}"


def run_to_end(work: Coroutine[Any, Any, None], how_far: Callable[[], str]) -> None:
    """Do the work. Ctrl-C ends it and says how far it came."""
    os.umask(0o077)  # as the router does: the embedded queue holds tokens
    configure_logs("error", "console", None)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        try:
            runner.run(work)
        except KeyboardInterrupt:
            print(f"\nflowcatalyst: stopped; {how_far()}", file=sys.stderr)
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(EXIT_INTERRUPTED)  # a thread may still wait for standard input, and nobody can wake it


def counted(number: int, what: str = "message") -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"
