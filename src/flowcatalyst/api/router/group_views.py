"""Groups and what was done to them, as the API shows them."""

import msgspec

from flowcatalyst.api.secrets import mask_echo, secrets_of
from flowcatalyst.control.group_states import Answer, GroupState, Head, Standing, Where
from flowcatalyst.core.message import MessagePointer


class HeadView(msgspec.Struct, rename="camel"):
    """The message that its group waits for, or that is tried next."""

    id: str
    broker_id: str
    where: Where
    failures: int
    endpoint: str | None  # null: it was not read here

    @classmethod
    def of(cls, head: Head) -> "HeadView":
        return cls(head.id, head.broker_id, head.where, head.failures, head.endpoint)


class AnswerView(msgspec.Struct, rename="camel"):
    """What the latest attempt got. What repeats a secret of the message is masked."""

    status: int | None
    detail: str
    excerpt: str
    ago_ms: int

    @classmethod
    def of(cls, answer: Answer, pointer: MessagePointer | None) -> "AnswerView":
        secrets = [] if pointer is None else secrets_of(pointer)
        detail, excerpt = mask_echo(answer.detail, secrets), mask_echo(answer.excerpt, secrets)
        return cls(answer.status, detail, excerpt, milliseconds(answer.ago_s) or 0)


class BlockableGroup(msgspec.Struct, rename="camel"):
    """A group: whether it stands still, behind which message, since when and until when."""

    group: str
    pool: str
    queue: str | None
    state: Standing
    blocked_for_ms: int | None
    head: HeadView | None
    last_answer: AnswerView | None
    next_attempt_in_ms: int | None
    waiting_behind: int
    waiting_behind_exact: bool  # false: its queue may hold more that nobody can count
    waits_for: str
    held_by: str | None
    held_for_ms: int | None

    @classmethod
    def of(cls, state: GroupState) -> "BlockableGroup":
        return cls(
            group=state.group,
            pool=state.pool,
            queue=state.queue,
            state=state.state,
            blocked_for_ms=milliseconds(state.blocked_s),
            head=None if state.head is None else HeadView.of(state.head),
            last_answer=None if state.last_answer is None else AnswerView.of(state.last_answer, state.pointer),
            next_attempt_in_ms=milliseconds(state.next_attempt_in_s),
            waiting_behind=state.behind,
            waiting_behind_exact=state.behind_is_exact,
            waits_for=state.waits_for,
            held_by=state.held_by,
            held_for_ms=milliseconds(state.held_s),
        )


class DoneView(msgspec.Struct, rename="camel"):
    """Whether it was done, and in one sentence what, or why not and what to do instead."""

    done: bool
    text: str
    group: BlockableGroup | None


def milliseconds(seconds: float | None) -> int | None:
    return None if seconds is None else max(0, round(seconds * 1000))
