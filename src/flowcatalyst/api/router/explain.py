"""/monitoring/explain: why a message, job, event, group or pool is not there yet, and what a person can do."""

from typing import Annotated

import msgspec
from litestar import get
from litestar.params import PathParameter, QueryParameter

from flowcatalyst.api.dependencies import TheApp
from flowcatalyst.api.router.group_views import AnswerView, HeadView, milliseconds
from flowcatalyst.api.router.groups import name_of
from flowcatalyst.control import explaining
from flowcatalyst.control.explanation import Explanation, ThingKind, ThingState
from flowcatalyst.core.message import MAX_NAME_CHARS


class PossibleAct(msgspec.Struct, rename="camel"):
    """What a person can do, and the request that does it."""

    what: str
    method: str
    path: str
    text: str


class ExplanationView(msgspec.Struct, rename="camel"):
    """Where something is, why it is not further, what that comes down to, and what to do."""

    id: str
    kind: ThingKind
    state: ThingState
    cause: str
    summary: str
    chain: list[str]
    looked: list[str]
    pool: str | None
    group: str | None
    queue: str | None
    head: HeadView | None
    last_answer: AnswerView | None
    next_attempt_in_ms: int | None
    estimate_in_ms: int | None
    estimate_text: str
    safe_to_send_again: bool | None  # null: it is no message, or that cannot be told
    send_again_text: str  # the same in one sentence; empty: it is no message
    facts: dict[str, str | int | float | bool | None]
    actions: list[PossibleAct]

    @classmethod
    def of(cls, found: Explanation) -> "ExplanationView":
        return cls(
            id=found.id,
            kind=found.kind,
            state=found.state,
            cause=found.cause,
            summary=found.summary,
            chain=found.chain,
            looked=found.looked,
            pool=found.pool,
            group=found.group,
            queue=found.queue,
            head=None if found.head is None else HeadView.of(found.head),
            last_answer=None if found.last_answer is None else AnswerView.of(found.last_answer, found.pointer),
            next_attempt_in_ms=milliseconds(found.next_attempt_in_s),
            estimate_in_ms=milliseconds(found.estimate_s),
            estimate_text=found.estimate,
            safe_to_send_again=found.safe_to_send_again,
            send_again_text=found.send_again,
            facts=dict(found.facts),
            actions=[PossibleAct(one.what, one.method, one.path, one.text) for one in found.actions],
        )


@get("/monitoring/explain/{id:str}", tags=["Monitoring"], summary="Why is it not there yet?")
async def explain_anything(
    app: TheApp,
    id: Annotated[  # noqa: A002 - the name in the path
        str,
        PathParameter(
            schema_extra={"max_length": MAX_NAME_CHARS},
            description="Id of a message, job or event, or name of a group or pool, percent-encoded",
        ),
    ],
    kind: Annotated[ThingKind | None, QueryParameter(description="What it is; without it all are tried")] = None,
) -> ExplanationView:
    """Where it is, who is at the head of its group and what that got, when it is tried next, and what a person can do.
    One that nobody knows is NEVER_SEEN, with a list of where was looked. A message that only waits in its queue is
    looked for in queues whose storage is ours: that may take a second or two.
    """
    return ExplanationView.of(await explaining.explain_anything(app, name_of(id), kind))
