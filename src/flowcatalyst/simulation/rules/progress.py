"""G8: what can start, starts. No backlog, refusal, backoff or hanging endpoint leaves it waiting."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from math import inf

from flowcatalyst.core.message import ErrorKind, Nack, Result, Retry
from flowcatalyst.router.policy import DEFAULT_DELAYS
from flowcatalyst.simulation.history import Event, Kind
from flowcatalyst.simulation.rules.common import LIFE_ENDS, Messages, Promises, Stopped, Violation
from flowcatalyst.simulation.rules.stretches import RECOVERY_S, SLOW_S, Pools, Watch

SHARE_S = 30.0
PROBE_S = 60.0
DUE_GRACE_S = 2.0
MOST_RECEIVES = 3
DISTURBANCES = (Kind.LIMITS, Kind.STOPPING, Kind.STARTED, Kind.CUT, *LIFE_ENDS)


def progress(events: Sequence[Event], promises: Promises) -> Iterator[Violation]:
    """A pool with a free slot and startable work in its queue starts it within 1 s, or one long poll of a broker."""
    for wait in Watch(events, promises, SHARE_S).waits():
        if not wait.holder and not wait.released:
            text = f"waited {wait.seconds:.1f} s although pool {wait.pool} had a free slot and nothing was in its way"
            yield Violation(wait.at, wait.message, text)


def what_is_released_goes_on(events: Sequence[Event], promises: Promises) -> Iterator[Violation]:
    """What somebody resumed or released is started as soon as anything else that could start then."""
    for wait in Watch(events, promises, SHARE_S).waits():
        if not wait.holder and wait.released:
            text = f"waited {wait.seconds:.1f} s after it was released, although pool {wait.pool} had a free slot"
            yield Violation(wait.at, wait.message, text)


def endpoints_share_their_pool(events: Sequence[Event], promises: Promises) -> Iterator[Violation]:
    """No endpoint keeps every slot of a pool, two or more, from a healthy one that waits."""
    for wait in Watch(events, promises, SHARE_S).waits():
        if wait.holder:
            text = f"waited {wait.seconds:.1f} s while {wait.holder} had all slots of pool {wait.pool}"
            yield Violation(wait.at, wait.message, text)


def recovered_endpoints_are_tried(events: Sequence[Event], promises: Promises) -> Iterator[Violation]:
    """An endpoint that answers again gets an attempt within a minute if there is something for it that may start.

    Attempts that hang since before are no excuse for other groups, unless they leave their pool no slot but the one
    that is for other endpoints.
    """
    messages, stopped, pools = Messages.of(events), Stopped(), Pools()
    busy_until: dict[str, float] = {}  # host -> when it had no slot to spare, or nothing that could start, last
    owed: dict[str, dict[str, None]] = defaultdict(dict)  # by host: published and not settled
    untried: dict[str, float] = {}  # host -> recovered at
    for event in events:
        for host, recovered_at in list(untried.items()):
            if pools.are_tight_for(host) or not any(messages.may_start(name, pools.in_flight()) for name in owed[host]):
                busy_until[host] = event.at
            if event.at <= recovered_at + PROBE_S:
                continue
            free_from = min((stopped.free_from(messages.facts[name]) for name in owed[host]), default=inf)
            if event.at > max(recovered_at, free_from, busy_until.get(host, 0.0)) + PROBE_S:
                del untried[host]
                yield Violation(event.at, "", f"{host} answers again since {recovered_at:.1f} s and was not tried")
        stopped.note(event)
        pools.note(event, messages)
        if event.kind is Kind.PUBLISHED and event.value.readable:
            owed[event.value.host][event.message] = None
        elif event.kind is Kind.RECOVERED and owed[event.value]:
            untried[event.value] = event.at
        elif event.kind is Kind.ATTEMPT:
            untried.pop(messages.host(event.message), None)
        elif event.kind is Kind.DEAD_LETTERED or (event.kind is Kind.ANSWER and event.value.result is Result.SUCCESS):
            owed[messages.host(event.message)].pop(event.message, None)
        elif event.kind in DISTURBANCES:
            untried.clear()


def waits_no_longer_than_asked(events: Sequence[Event], promises: Promises) -> Iterator[Violation]:
    """What an endpoint asked to have later gets its next attempt when that time is over, if a slot is free then.

    The first message of a group decides when its group is due; how many wait behind it does not matter. Judged for
    endpoints that only ever asked for patience: of others a circuit breaker may keep attempts away. A group that two
    queues feed may have to wait for the other one's.
    """
    messages, stopped = Messages.of(events), Stopped()
    copied = messages.copied()
    fed_by: dict[str | None, set[str]] = defaultdict(set)
    for name, facts in messages.facts.items():
        fed_by[messages.ordered_group(name)].add(facts.queue)
    pools = Pools()
    due: dict[str, float] = {}
    busy_until: dict[str | None, float] = {}  # by ordered group: its latest event, or when the last of it is due
    began: dict[str, float] = {}
    failing: set[str] = set()  # hosts, also slow ones
    judged_from = inf if promises.faulty else 0.0
    for event in events:
        stopped.note(event)
        if event.kind in DISTURBANCES:
            due.clear()
            if event.kind is Kind.CUT:
                judged_from = max(judged_from, event.value + RECOVERY_S)
            if event.kind in LIFE_ENDS:
                busy_until.clear()
        elif event.kind is Kind.HEALED:
            judged_from = event.at + RECOVERY_S if promises.faulty else judged_from
        elif event.kind in (Kind.ATTEMPT, Kind.ANSWER, Kind.UNKNOWN):
            host = messages.host(event.message)
            group = messages.ordered_group(event.message)
            if event.kind is Kind.ATTEMPT:
                due_at = due.pop(event.message, inf)
                free_from = max(pools[event.pool].free_from, stopped.free_from(messages.facts[event.message]))
                late_s = event.at - max(due_at, free_from, busy_until.get(group, 0.0) if group else 0.0)
                if late_s > DUE_GRACE_S and host not in failing:
                    text = f"attempted {event.at - due_at:.1f} s after it was due; a slot was free for {late_s:.1f} s"
                    yield Violation(event.at, event.message, text)
                began[event.message] = event.at
            elif event.at - began.pop(event.message, 0.0) > SLOW_S or not _asks_for_patience(event):
                failing.add(host)
            busy_until[group] = max(busy_until.get(group, 0.0), event.at)
        elif event.kind is Kind.VERDICT and isinstance(event.value, Nack | Retry) and event.message not in copied:
            wait_s = event.value.delay_s if isinstance(event.value, Nack) else event.value.after_s
            group = messages.ordered_group(event.message)
            if event.at >= judged_from and (group is None or len(fed_by[group]) == 1):
                due[event.message] = event.at + wait_s
                busy_until[group] = max(busy_until.get(group, 0.0), event.at + wait_s)  # one lane: the latest counts
        elif event.kind is Kind.UNRECORDED:  # it waits like one that failed
            group, again_at = messages.ordered_group(event.message), event.at + DEFAULT_DELAYS.nack_delay_s
            busy_until[group] = max(busy_until.get(group, 0.0), again_at)
        elif event.kind is Kind.NACK and not (facts := messages.facts[event.message]).readable:  # it locks its group
            busy_until[facts.group] = max(busy_until.get(facts.group, 0.0), event.at + event.value[0])
        pools.note(event, messages)


def _asks_for_patience(event: Event) -> bool:
    if event.kind is Kind.UNKNOWN:
        return False
    patience = (ErrorKind.NOT_ACKED, ErrorKind.RATE_LIMITED)
    return event.value.result is Result.SUCCESS or event.value.error in patience


def received_no_more_than_needed(events: Sequence[Event], promises: Promises) -> Iterator[Violation]:
    """A refusal is not a failure: what never had an attempt is not received again and again for want of room.

    Judged for endpoints that never failed: a message behind a failed one, or behind an open breaker, may come and go.
    """
    if not promises.parks_all:
        return
    messages = Messages.of(events)
    copied = messages.copied()
    receives: Counter[str] = Counter()
    attempted: set[str] = set()
    failing: set[str] = set()
    judged_from = inf if promises.faulty else 0.0
    for event in events:
        if event.kind is Kind.HEALED and promises.faulty:
            judged_from = event.at + RECOVERY_S
        elif event.kind in DISTURBANCES:
            receives.clear()
        elif event.kind is Kind.ATTEMPT:
            attempted.add(event.message)
        elif event.kind is Kind.UNKNOWN or (event.kind is Kind.ANSWER and event.value.result is not Result.SUCCESS):
            failing.add(messages.host(event.message))
        elif event.kind is Kind.RECEIVED and event.at >= judged_from:
            facts = messages.facts[event.message]
            if event.message in attempted or facts.copy_of is not None or event.message in copied or not facts.readable:
                continue
            receives[event.message] += 1
            if receives[event.message] > MOST_RECEIVES and facts.host not in failing:
                text = f"received {receives[event.message]} times without an attempt"
                yield Violation(event.at, event.message, text)
