"""`flowcatalyst publish`: messages into a queue, straight or through a router that runs."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import ExitStack, aclosing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, BinaryIO, Final

import msgspec
import typer

from flowcatalyst.cli.run import DataDir, SettingsFile
from flowcatalyst.cli.running_router import ApiKey, RunningRouter
from flowcatalyst.cli.way_in import (
    Create,
    QueueName,
    QueueUri,
    StraightWayIn,
    WayIn,
    choose_queue,
    counted,
    run_to_end,
    shown,
)
from flowcatalyst.clock import IdSource, SystemClock
from flowcatalyst.config import load_settings
from flowcatalyst.errors import ConfigurationError, InvalidMessageError, QueueUnavailableError
from flowcatalyst.intake import NewMessage, Ready, prepare
from flowcatalyst.message import DEFAULT_POOL, DispatchMode
from flowcatalyst.terminal import visible
from flowcatalyst.web.bodies import decode_json
from flowcatalyst.web.problems import ProblemError

AUTH_TOKEN_VARIABLE: Final = "MESSAGE_AUTH_TOKEN"  # noqa: S105  its name, not its value
STANDARD_INPUT: Final = "-"
CHUNK: Final = 500
READ_BYTES: Final = 1024 * 1024
MAX_LINE_BYTES: Final = 4 * 1024 * 1024  # many times what a message may have
BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"

_decoder = msgspec.json.Decoder(NewMessage)


def publish(
    target: Annotated[str | None, typer.Option(metavar="URL", help="Where the message is to be delivered")] = None,
    file: Annotated[
        str | None, typer.Option(metavar="FILE", help="Many messages instead: a file of JSON lines, - for stdin")
    ] = None,
    queue: QueueName = None,
    uri: QueueUri = None,
    group: Annotated[str | None, typer.Option(help="Messages of a group are delivered in order")] = None,
    pool: Annotated[str | None, typer.Option(help=f"Pool that delivers it  [default: {DEFAULT_POOL}]")] = None,
    message_id: Annotated[str | None, typer.Option("--id", help="Id of the message  [default: a new one]")] = None,
    mode: Annotated[
        DispatchMode | None, typer.Option(help="What a failure means for its group", case_sensitive=False)
    ] = None,
    deduplication_id: Annotated[
        str | None, typer.Option(help="Not published again within some minutes  [default: the --id]")
    ] = None,
    auth_token: Annotated[
        str | None, typer.Option(help=f"Bearer token for the target; better as variable {AUTH_TOKEN_VARIABLE}")
    ] = None,
    high_priority: Annotated[bool, typer.Option("--high-priority", help="Before others of its group")] = False,
    from_line: Annotated[int, typer.Option(min=1, help="With --file: leave out the lines before")] = 1,
    router: Annotated[str | None, typer.Option(metavar="URL", help="Send to this router, which runs")] = None,
    api_key: ApiKey = None,
    create: Create = False,
    data_dir: DataDir = None,
    config: SettingsFile = None,
) -> None:
    """Put a message, or a file of them, into a queue. No router has to run, unless --router names one.

    A line of a file is a message as POST /api/messages takes it: {"mediationTarget": "https://..."}, perhaps with id,
    messageGroupId, poolCode, dispatchMode, highPriority, authToken, mediationType and deduplicationId.
    """
    of_one = (target, group, pool, message_id, mode, deduplication_id, auth_token, high_priority or None)
    if file is not None and of_one.count(None) < len(of_one):
        raise typer.BadParameter("the messages of a --file say everything themselves: leave out the options of one")
    if router is not None:
        if uri or create or data_dir or config:
            raise typer.BadParameter(
                "a --router has its own queues: leave out --uri, --create, --data-dir and --config"
            )
        way_in: Callable[[], WayIn] = partial(RunningRouter, router, queue, api_key)
    else:
        settings = load_settings(config, data_dir=data_dir)
        way_in = partial(StraightWayIn, settings, choose_queue(settings, queue, uri), create)
    if file is not None:
        _publish_file(way_in, file, from_line)
        return
    if target is None:
        raise typer.BadParameter("name a --target, or a --file with messages")
    message = NewMessage(
        mediation_target=target,
        id=message_id,
        pool_code=DEFAULT_POOL if pool is None else pool,
        auth_token=os.environ.get(AUTH_TOKEN_VARIABLE) if auth_token is None else auth_token,
        message_group_id=group,
        high_priority=high_priority,
        dispatch_mode=mode,
        deduplication_id=deduplication_id,
    )
    _publish_message(way_in, message)


def _publish_message(way_in: Callable[[], WayIn], message: NewMessage) -> None:
    """What options say is judged like the options themselves: a wrong target is a usage error."""
    try:
        ready = prepare(message, IdSource(SystemClock()))
    except InvalidMessageError as error:
        raise typer.BadParameter(str(error)) from None
    run_to_end(_publish_one(way_in, ready), lambda: "the message may be published or not")


async def _publish_one(way_in: Callable[[], WayIn], ready: Ready) -> None:
    async with aclosing(way_in()) as queue:
        [published] = await queue.publish([ready.outgoing])
    said = "was published before" if published.duplicate else "is published"
    where = f" as {published.broker_id}" if published.broker_id else ""
    print(visible(f"message {ready.id} {said} to {shown(queue)}{where}"))


def _publish_file(way_in: Callable[[], WayIn], file: str, from_line: int) -> None:
    with ExitStack() as stack:
        source = sys.stdin.buffer if file == STANDARD_INPUT else stack.enter_context(_opened(file))
        work = _FileToQueue(source, from_line)
        run_to_end(work.publish(way_in), lambda: work.how_far("at least "))


def _opened(file: str) -> BinaryIO:
    try:
        return Path(file).open("rb")
    except OSError as error:
        raise ConfigurationError(f"file {file} cannot be read: {error.strerror}") from None


@dataclass(slots=True, frozen=True)
class _Line:
    number: int
    text: bytes


class _FileToQueue:
    """Publishes the lines of a file in chunks, and can always say how far it came."""

    def __init__(self, source: BinaryIO, from_line: int) -> None:
        self._source = source
        self._from_line = from_line
        self._ids = IdSource(SystemClock())
        self._next_line = from_line  # everything before it is published
        self._published = 0
        self._duplicates = 0

    async def publish(self, way_in: Callable[[], WayIn]) -> None:
        if self._source.seekable():
            await self._check()
        async with aclosing(way_in()) as queue:
            async for lines in self._lines():
                for start in range(0, len(lines), CHUNK):
                    await self._publish_chunk(queue, lines[start : start + CHUNK])
        already = f", {self._duplicates:,} more were there already" if self._duplicates else ""
        print(f"{counted(self._published)} published to {shown(queue)}{already}")

    def how_far(self, surely: str = "") -> str:
        done = self._published + self._duplicates
        return f"published so far: {surely}{done:,}; go on with --from-line {self._next_line}"

    async def _check(self) -> None:
        """Read it to the end once, so that a wrong line far down stops it before anything is published."""
        start = self._source.tell()
        async for lines in self._lines():
            for line in lines:
                try:
                    self._ready(line)
                except InvalidMessageError as error:
                    raise InvalidMessageError(f"{error}; nothing is published") from None
        self._source.seek(start)

    async def _publish_chunk(self, queue: WayIn, lines: Sequence[_Line]) -> None:
        """All of them, or those before a wrong one."""
        good: list[Ready] = []
        for line in lines:
            try:
                good.append(self._ready(line))
            except InvalidMessageError as error:
                await self._publish_good(queue, lines[: len(good)], good)
                raise InvalidMessageError(f"{error}; {self.how_far()}") from None
        await self._publish_good(queue, lines, good)

    async def _publish_good(self, queue: WayIn, lines: Sequence[_Line], good: Sequence[Ready]) -> None:
        if not good:
            return
        try:
            results = await queue.publish([ready.outgoing for ready in good])
        except (QueueUnavailableError, InvalidMessageError) as error:
            raise type(error)(f"{_span(lines)}: {error}; {self._how_to_repeat(queue, lines, good)}") from None
        duplicates = sum(result.duplicate for result in results)
        self._duplicates += duplicates
        self._published += len(results) - duplicates
        self._next_line = lines[-1].number + 1

    def _how_to_repeat(self, queue: WayIn, lines: Sequence[_Line], good: Sequence[Ready]) -> str:
        if queue.deduplicates is None:
            twice = "some may be published twice, unless the broker of that queue deduplicates"
        elif not queue.deduplicates:
            twice = "some may be published twice, because this broker does not deduplicate"
        elif not all(ready.outgoing.deduplication_id for ready in good):
            twice = "some may be published twice, because not all have an id"
        else:
            twice = "nothing is published twice if that is within two minutes"
        before = f"published before that: {self._published + self._duplicates:,}, and perhaps some of these"
        return f"{before}; go on with --from-line {lines[0].number}: {twice}"

    def _ready(self, line: _Line) -> Ready:
        try:
            return prepare(decode_json(line.text, _decoder), self._ids)
        except ProblemError as error:
            why = error.detail.replace("the body is", "it is")
            raise InvalidMessageError(f"line {line.number}: {why}") from None
        except InvalidMessageError as error:
            raise InvalidMessageError(f"line {line.number}: {error}") from None

    async def _lines(self) -> AsyncIterator[list[_Line]]:
        """The lines that are not blank, as they come: whoever writes them may take his time."""
        rest, number = b"", 0
        while data := await asyncio.to_thread(self._read):
            *complete, rest = (rest + data).split(b"\n")
            if len(rest) > MAX_LINE_BYTES:
                raise InvalidMessageError(f"line {number + len(complete) + 1} is too long for a message")
            yield self._wanted(complete, number)
            number += len(complete)
        yield self._wanted([rest], number)

    def _read(self) -> bytes:
        try:
            return self._source.read1(READ_BYTES)  # type: ignore[attr-defined, no-any-return]
        except OSError as error:
            raise ConfigurationError(f"the messages cannot be read: {error.strerror}") from None

    def _wanted(self, lines: Sequence[bytes], before: int) -> list[_Line]:
        numbered = [_Line(number, text) for number, text in enumerate(lines, before + 1)]
        if not before and numbered:
            numbered[0] = _Line(1, numbered[0].text.removeprefix(BYTE_ORDER_MARK))
        return [line for line in numbered if line.number >= self._from_line and line.text.strip()]


def _span(lines: Sequence[_Line]) -> str:
    first, last = lines[0].number, lines[-1].number
    return f"line {first}" if first == last else f"lines {first} to {last}"
