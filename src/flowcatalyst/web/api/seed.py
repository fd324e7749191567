"""POST /api/seed/messages: a sender to try the router out with."""

from collections import Counter
from dataclasses import dataclass
from enum import StrEnum
from http import HTTPStatus
from typing import Annotated, Any, Final

import msgspec
from litestar import Request, post
from litestar.params import QueryParameter

from flowcatalyst.app import App
from flowcatalyst.clock import IdSource
from flowcatalyst.errors import InvalidMessageError
from flowcatalyst.message import DEFAULT_POOL, MessagePointer, check_target
from flowcatalyst.queues.contract import Outgoing
from flowcatalyst.web.api.messages import outgoing_of
from flowcatalyst.web.api.test_endpoints import RECEIVERS
from flowcatalyst.web.bodies import read_optional_json
from flowcatalyst.web.dependencies import TheApp
from flowcatalyst.web.openapi import with_json_body
from flowcatalyst.web.order_judge import SeededId
from flowcatalyst.web.problems import FieldProblem, ProblemError

MAX_COUNT: Final = 10_000
CHUNK: Final = 500
RANDOM: Final = "random"
RANDOM_ENDPOINTS: Final = ("fast", "slow", "faulty")
POOL_OF_QUEUE: Final = {
    "high": "POOL-HIGH",
    "medium": "POOL-MEDIUM",
    "low": "POOL-LOW",
    "default": DEFAULT_POOL,
}


class GroupMode(StrEnum):
    """How many groups the messages are spread over."""

    UNIQUE = "unique"
    ONE_OF_8 = "1of8"
    SINGLE = "single"


Count = Annotated[int, msgspec.Meta(ge=1, le=MAX_COUNT)]


class SeedRequest(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    """What to seed; a field that is left out comes from the query, else it is the default."""

    count: Count | msgspec.UnsetType = msgspec.UNSET
    endpoint: str | msgspec.UnsetType = msgspec.UNSET
    queue: str | msgspec.UnsetType = msgspec.UNSET
    message_group_mode: GroupMode | msgspec.UnsetType = msgspec.UNSET


class SeedResult(msgspec.Struct, rename="camel"):
    """What was seeded. `run` is the first part of every message id: `{run}.{group}.{position}`."""

    run: str
    count: int
    queue: str
    endpoint: str
    message_group_mode: GroupMode
    published: int


_decoder = msgspec.json.Decoder(SeedRequest)


@post(
    "/api/seed/messages",
    status_code=HTTPStatus.ACCEPTED,
    tags=["Try it out"],
    summary="Seed messages",
    operation_class=with_json_body(SeedRequest, "The same fields as in the query; these win", required=False),
)
async def seed_messages(
    request: Request[Any, Any, Any],
    app: TheApp,
    count: Annotated[int, QueryParameter(ge=1, le=MAX_COUNT, description="How many messages")] = 10,
    endpoint: Annotated[
        str, QueryParameter(description="Name of a built-in receiver, random (fast, slow or faulty), or a full URL")
    ] = "fast",
    queue: Annotated[
        str,
        QueryParameter(
            description="high, medium, low, default or random", schema_extra={"enum": [*POOL_OF_QUEUE, RANDOM]}
        ),
    ] = "default",
    group_mode: Annotated[
        GroupMode,
        QueryParameter(
            name="messageGroupMode",
            description="unique: a group each; 1of8: eight groups; single: one group",
        ),
    ] = GroupMode.ONE_OF_8,
) -> SeedResult:
    """Publish messages for the built-in receivers, which judge the order they arrive in: see GET /api/test/stats.

    Groups belong to their run, so two runs never wait for each other.
    """
    given = await read_optional_json(request, _decoder) or SeedRequest()
    seed = _Seed(
        run=app.ids.tsid(),
        endpoint=endpoint if given.endpoint is msgspec.UNSET else given.endpoint,
        queue=queue if given.queue is msgspec.UNSET else given.queue,
        mode=group_mode if given.message_group_mode is msgspec.UNSET else given.message_group_mode,
        base_url=_own_url(request),
        ids=app.ids,
    )
    seed.check()
    wanted = count if given.count is msgspec.UNSET else given.count
    published = await _publish(app, seed.messages(wanted))
    return SeedResult(seed.run, wanted, seed.queue, seed.endpoint, seed.mode, published)


@dataclass(slots=True, frozen=True)
class _Seed:
    """The messages of one run."""

    run: str
    endpoint: str
    queue: str
    mode: GroupMode
    base_url: str
    ids: IdSource

    def check(self) -> None:
        queues = [*POOL_OF_QUEUE, RANDOM]
        if self.queue not in queues:
            raise _wrong("queue", f"queue has to be one of {', '.join(queues)}")
        if self.endpoint in RECEIVERS or self.endpoint == RANDOM:
            return
        if "/" not in self.endpoint:
            raise _wrong("endpoint", f"endpoint has to be a URL or one of {', '.join(RECEIVERS)}, {RANDOM}")
        try:
            check_target(self.endpoint)
        except InvalidMessageError as error:
            raise _wrong("endpoint", f"endpoint is no URL to send to: {error}") from None

    def messages(self, count: int) -> list[tuple[str, Outgoing]]:
        """Queue and message, in order."""
        positions: Counter[str] = Counter()
        queue_of_group: dict[str, str] = {}
        made: list[tuple[str, Outgoing]] = []
        for index in range(count):
            group = self._group(index)
            positions[group] += 1
            # A group stays in one queue: across queues there is no order to judge.
            queue = queue_of_group.setdefault(group, self._one_of(self.queue, list(POOL_OF_QUEUE)))
            pointer = MessagePointer(
                id=str(SeededId(self.run, group, positions[group])),
                mediation_target=self._target(),
                pool_code=POOL_OF_QUEUE[queue],
                message_group_id=f"{self.run}-{group}",
            )
            made.append((queue, outgoing_of(pointer, pointer.id)))
        return made

    def _group(self, index: int) -> str:
        match self.mode:
            case GroupMode.UNIQUE:
                return f"msg-{index}"
            case GroupMode.ONE_OF_8:
                return f"group-{self.ids.rng.randrange(8)}"
            case GroupMode.SINGLE:
                return "single-group"

    def _target(self) -> str:
        name = self._one_of(self.endpoint, RANDOM_ENDPOINTS)
        return f"{self.base_url}/api/test/{name}" if name in RECEIVERS else name

    def _one_of(self, asked: str, choices: list[str] | tuple[str, ...]) -> str:
        return self.ids.rng.choice(choices) if asked == RANDOM else asked


async def _publish(app: App, messages: list[tuple[str, Outgoing]]) -> int:
    first_queue = next(iter(app.queues.values()))
    published = 0
    for start in range(0, len(messages), CHUNK):
        by_queue: dict[str, list[Outgoing]] = {}
        for name, message in messages[start : start + CHUNK]:
            by_queue.setdefault(name, []).append(message)
        for name, chunk in by_queue.items():
            published += len(await app.queues.get(name, first_queue).publish(chunk))
    return published


def _own_url(request: Request[Any, Any, Any]) -> str:
    """Where this request came in: the socket's own address, not what the client calls it."""
    server = request.scope["server"]
    assert server is not None, "served over TCP"
    host, port = server
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def _wrong(field: str, detail: str) -> ProblemError:
    return ProblemError(HTTPStatus.BAD_REQUEST, detail, [FieldProblem(field, detail)])
