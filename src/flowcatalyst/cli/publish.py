"""`flowcatalyst publish`: messages into a queue, straight or through a router that runs."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import ExitStack, aclosing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, BinaryIO, Final

import msgspec
import typer

from flowcatalyst.api.bodies import decode_json
from flowcatalyst.api.problems import ProblemError
from flowcatalyst.cli.options import DataDir, SettingsFile
from flowcatalyst.cli.payload_options import (
    ContentType,
    Headers,
    PayloadFile,
    PayloadText,
    headers_of,
    not_for_raw,
    payload_of,
    payload_text,
)
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
from flowcatalyst.control.settings import load_settings
from flowcatalyst.core.clock import IdSource, SystemClock
from flowcatalyst.core.errors import ConfigurationError, InvalidMessageError, QueueUnavailableError
from flowcatalyst.core.message import DEFAULT_POOL, DispatchMode
from flowcatalyst.core.terminal import visible
from flowcatalyst.queues.contract import Outgoing
from flowcatalyst.queues.intake import NewMessage, Ready, prepare

AUTH_TOKEN_VARIABLE: Final = "MESSAGE_AUTH_TOKEN"  # noqa: S105  its name, not its value
STANDARD_INPUT: Final = "-"
CHUNK: Final = 500
NOTES_TOLD: Final = 10
READ_BYTES: Final = 1024 * 1024
MAX_LINE_BYTES: Final = 4 * 1024 * 1024  # many times what a message may have
BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"

_OPTION_OF: Final = {  # what an error calls a field, its writer calls an option
    "mediationTarget": "--target",
    "poolCode": "--pool",
    "messageGroupId": "--group",
    "deduplicationId": "--deduplication-id",
}

_decoder = msgspec.json.Decoder(NewMessage)

MessagesFile = Annotated[
    str | None, typer.Option(metavar="FILE", help="Many messages instead: a file of JSON lines, - for stdin")
]
Mode = Annotated[DispatchMode | None, typer.Option(help="What a failure means for its group", case_sensitive=False)]
DeduplicationId = Annotated[
    str | None, typer.Option(help="Not published again within some minutes  [default: the --id]")
]
AuthToken = Annotated[
    str | None, typer.Option(help=f"Bearer token for the target; better as variable {AUTH_TOKEN_VARIABLE}")
]


def publish(
    target: Annotated[str | None, typer.Option(metavar="URL", help="Where the message is to be delivered")] = None,
    file: MessagesFile = None,
    queue: QueueName = None,
    uri: QueueUri = None,
    group: Annotated[str | None, typer.Option(help="Messages of a group are delivered in order")] = None,
    pool: Annotated[str | None, typer.Option(help=f"Pool that delivers it  [default: {DEFAULT_POOL}]")] = None,
    message_id: Annotated[str | None, typer.Option("--id", help="Id of the message  [default: a new one]")] = None,
    mode: Mode = None,
    deduplication_id: DeduplicationId = None,
    auth_token: AuthToken = None,
    high_priority: Annotated[bool, typer.Option("--high-priority", help="Before others of its group")] = False,
    payload: PayloadText = None,
    payload_file: PayloadFile = None,
    content_type: ContentType = None,
    header: Headers = None,
    from_line: Annotated[int, typer.Option(min=1, help="With --file: leave out the lines before")] = 1,
    router: Annotated[str | None, typer.Option(metavar="URL", help="Send to this router, which runs")] = None,
    api_key: ApiKey = None,
    create: Create = False,
    data_dir: DataDir = None,
    config: SettingsFile = None,
) -> None:
    """Put a message, or a file of them, into a queue. No router has to run, unless --router names one.

    A line of a file is a message as POST /api/messages takes it, {"mediationTarget": "https://..."} at least: see
    docs/messages.md. To a raw queue of the settings goes a --payload, as it is, perhaps with its --group.
    """
    of_pointer = (target, pool, message_id, mode, auth_token, high_priority or None, content_type, header or None)
    of_one = (*of_pointer, group, deduplication_id, payload, payload_file)
    if file is not None and of_one.count(None) < len(of_one):
        raise typer.BadParameter("the messages of a --file say everything themselves: leave out the options of one")
    access, raw_queue = _way_in(router, queue, api_key, uri, create, data_dir, config)
    if raw_queue is not None:
        body = None if file or of_pointer.count(None) < len(of_pointer) else payload_text(payload, payload_file)
        _publish_raw(access, raw_queue, body, group, deduplication_id)
        return
    if file is not None:
        _publish_file(access, file, from_line)
        return
    if target is None or from_line != 1:
        what = "--from-line is for a --file: leave it out" if target else "name a --target, or a --file with messages"
        raise typer.BadParameter(what)
    message = NewMessage(
        mediation_target=target,
        id=message_id,
        pool_code=DEFAULT_POOL if pool is None else pool,
        auth_token=os.environ.get(AUTH_TOKEN_VARIABLE) if auth_token is None else auth_token,
        message_group_id=group,
        high_priority=high_priority,
        dispatch_mode=mode,
        deduplication_id=deduplication_id,
        payload=payload_of(payload, payload_file, content_type),
        content_type=content_type,
        headers=headers_of(header),
    )
    _publish_message(access, message)


def _way_in(
    router: str | None,
    queue: str | None,
    api_key: str | None,
    uri: str | None,
    create: bool,
    data_dir: Path | None,
    config: Path | None,
) -> tuple[Callable[[], QueueAccess], str | None]:
    """How to reach the queue that is meant, and its name if it is known to be raw."""
    if router is not None:
        if uri or create or data_dir or config:
            raise typer.BadParameter(
                "a --router has its own queues: leave out --uri, --create, --data-dir and --config"
            )
        return partial(RemoteQueue, router, queue, api_key), None
    refuse_key_without_router(api_key)
    settings = load_settings(config, data_dir=data_dir)
    chosen = choose_queue(settings, queue, uri)
    return partial(StraightWayIn, settings, chosen, create), None if chosen.raw is None else chosen.name


def _publish_raw(
    queue_access: Callable[[], QueueAccess],
    queue: str,
    body: str | None,
    group: str | None,
    deduplication_id: str | None,
) -> None:
    if body is None:
        raise typer.BadParameter(not_for_raw(queue))
    ready = Ready("of a raw queue", Outgoing(body, group, deduplication_id))
    run_to_end(_publish_one(queue_access, ready), lambda: "the message may be published or not")


def _publish_message(queue_access: Callable[[], QueueAccess], message: NewMessage) -> None:
    """What options say is judged like the options themselves: a wrong target is a usage error."""
    try:
        ready = prepare(message, IdSource(SystemClock()))
    except InvalidMessageError as error:
        said = str(error)
        for field, option in _OPTION_OF.items():
            said = said.replace(field, option)
        raise typer.BadParameter(said) from None
    run_to_end(_publish_one(queue_access, ready), lambda: "the message may be published or not")


async def _publish_one(queue_access: Callable[[], QueueAccess], ready: Ready) -> None:
    async with aclosing(queue_access()) as queue:
        [published] = await queue.publish([ready.outgoing])
    said = "was published before" if published.duplicate else "is published"
    where = f" as {published.broker_id}" if published.broker_id else ""
    print(visible(f"message {ready.id} {said} to {shown(queue)}{where}"))
    _tell_notes(queue, [ready.pool])


def _tell_notes(queue: QueueAccess, pools: Iterable[str]) -> None:
    """Not among the results, which somebody may count."""
    for note in sorted(queue.notes(pools))[:NOTES_TOLD]:
        print(visible(f"flowcatalyst: {note}"), file=sys.stderr)


def _publish_file(queue_access: Callable[[], QueueAccess], file: str, from_line: int) -> None:
    with ExitStack() as stack:
        try:
            source = sys.stdin.buffer if file == STANDARD_INPUT else stack.enter_context(Path(file).open("rb"))
        except OSError as error:
            raise ConfigurationError(f"file {file} cannot be read: {error.strerror}") from None
        work = _FileToQueue(source, from_line)
        run_to_end(work.publish(queue_access), lambda: work.how_far("at least "))


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
        self._pools: set[str] = set()  # of what is published

    async def publish(self, queue_access: Callable[[], QueueAccess]) -> None:
        if self._source.seekable():
            await self._check()
        async with aclosing(queue_access()) as queue:
            async for lines in self._lines():
                for start in range(0, len(lines), CHUNK):
                    await self._publish_chunk(queue, lines[start : start + CHUNK])
        already = f", {self._duplicates:,} more were there already" if self._duplicates else ""
        print(f"{counted(self._published)} published to {shown(queue)}{already}")
        _tell_notes(queue, self._pools)

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

    async def _publish_chunk(self, queue: QueueAccess, lines: Sequence[_Line]) -> None:
        """All of them, or those before a wrong one."""
        good: list[Ready] = []
        for line in lines:
            try:
                good.append(self._ready(line))
            except InvalidMessageError as error:
                await self._publish_good(queue, lines[: len(good)], good)
                raise InvalidMessageError(f"{error}; {self.how_far()}") from None
        await self._publish_good(queue, lines, good)

    async def _publish_good(self, queue: QueueAccess, lines: Sequence[_Line], good: Sequence[Ready]) -> None:
        if not good:
            return
        try:
            results = await queue.publish([ready.outgoing for ready in good])
        except (QueueUnavailableError, InvalidMessageError) as error:
            first, last = lines[0].number, lines[-1].number
            span = f"line {first}" if first == last else f"lines {first} to {last}"
            raise type(error)(f"{span}: {error}; {self._how_to_repeat(queue, lines, good)}") from None
        duplicates = sum(result.duplicate for result in results)
        self._duplicates += duplicates
        self._published += len(results) - duplicates
        self._next_line = lines[-1].number + 1
        self._pools.update(ready.pool for ready in good)

    def _how_to_repeat(self, queue: QueueAccess, lines: Sequence[_Line], good: Sequence[Ready]) -> str:
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
            return prepare(decode_json(line.text, _decoder, "it"), self._ids)
        except ProblemError as error:
            raise InvalidMessageError(f"line {line.number}: {error.detail}") from None
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
