"""The checker: judges a history of jobs by all rules, in one reading.

Each rule is a function of an event and of what was true just before it. docs/simulation.md has them in words.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from flowcatalyst.simulation.jobs import endings, order, ownership, schedule, shares, subscriptions, webhooks
from flowcatalyst.simulation.jobs.history import Event, Kind
from flowcatalyst.simulation.jobs.progress import progress
from flowcatalyst.simulation.jobs.story import Story
from flowcatalyst.simulation.rules.common import Violation

Rule = Callable[[Event, Story], Iterator[str]]

RULES: Final[dict[str, tuple[frozenset[Kind], Rule]]] = {
    "only what is held is started": (frozenset({Kind.ATTEMPT}), ownership.only_what_is_held_is_started),
    "one attempt per handing-out": (frozenset({Kind.ATTEMPT}), ownership.one_attempt_per_handing_out),
    "one process has a job": (frozenset({Kind.TAKEN}), ownership.one_process_has_a_job),
    "one process has a group": (frozenset({Kind.TAKEN}), ownership.one_process_has_a_group),
    "stale receipts change nothing": (frozenset({Kind.ACKED, Kind.NACKED}), ownership.stale_receipts_change_nothing),
    "what is in hand is not changed": (
        frozenset({Kind.RETRIED, Kind.CANCELLED, Kind.CHANGED, Kind.EXPIRED}),
        ownership.what_is_in_hand_is_not_changed,
    ),
    "what can be done is done": (frozenset({Kind.REFUSED}), ownership.what_can_be_done_is_done),
    "what is sent is what it says": (frozenset({Kind.ATTEMPT}), ownership.what_is_sent_is_what_it_says),
    "limits are of all processes": (frozenset({Kind.ATTEMPT}), shares.limits_are_of_all_processes),
    "order of a group": (frozenset({Kind.ATTEMPT}), order.order_of_a_group),
    "nothing of a held group": (frozenset({Kind.TAKEN}), order.nothing_of_a_held_group),
    "nothing of a held group starts": (frozenset({Kind.ATTEMPT}), order.nothing_of_a_held_group_starts),
    "waits for its time": (frozenset({Kind.TAKEN}), schedule.waits_for_its_time),
    "nothing after its end": (frozenset({Kind.TAKEN, Kind.ATTEMPT}), schedule.nothing_after_its_end),
    "expires in time": (frozenset({Kind.TAKEN, Kind.ATTEMPT, Kind.EXPIRED}), schedule.expires_in_time),
    "waits as its schedule says": (frozenset({Kind.TAKEN}), schedule.waits_as_its_schedule_says),
    "completed when delivered": (frozenset({Kind.ACKED}), endings.completed_when_delivered),
    "delivered as it is": (frozenset({Kind.ACKED}), endings.delivered_as_it_is),
    "one job per key": (frozenset({Kind.CREATED}), endings.one_job_per_key),
    "nothing lost": (frozenset({Kind.FINAL, Kind.COUNTED}), endings.nothing_lost),
    "status is true": (frozenset({Kind.FINAL}), endings.status_is_true),
    "attempts are those that were made": (frozenset({Kind.FINAL}), endings.attempts_are_those_that_were_made),
    "a message for each job that waits": (frozenset({Kind.FINAL}), endings.a_message_for_each_job_that_waits),
    "figures equal a scan": (frozenset({Kind.COUNTED}), endings.figures_equal_a_scan),
    "nothing leaks": (frozenset({Kind.STOPPED}), endings.nothing_leaks),
    **subscriptions.RULES,
    **webhooks.RULES,
}
KNOWN: Final = "nothing comes from nowhere"
PROGRESS: Final = "progress"
SEEN: Final = "changes are seen"
ALL_RULES: Final = (*RULES, KNOWN, PROGRESS, SEEN)
NOT_OF_JOBS: Final = (Kind.CREATED, Kind.HELD, Kind.HOLD_TOLD, Kind.RELEASED, Kind.STEPPED, Kind.HEALED, Kind.COUNTED)
OF_PROCESSES: Final = (
    Kind.STARTED,
    Kind.DIVIDED,
    Kind.STOPPING,
    Kind.STOPPED,
    Kind.CRASHED,
    Kind.SIGNED_OFF,
    Kind.PAUSED,
    Kind.RESUMED,
)
OF_EVENTS: Final = (
    Kind.INTAKE,
    Kind.KEPT,
    Kind.EVENT_TOLD,
    Kind.ENTRY,
    Kind.SEEN,
    Kind.PAUSE,
    Kind.PAUSE_TOLD,
    Kind.RESUME,
    Kind.RESUME_TOLD,
    Kind.REMOVE_TOLD,
    Kind.ROTATE_TOLD,
    Kind.REPLAY,
    Kind.REPLAY_TOLD,
)
OF_JOBS: Final = frozenset(Kind) - {*NOT_OF_JOBS, *OF_PROCESSES, *OF_EVENTS}


def check(events: Sequence[Event], *, nack_delay_s: float, prompt: bool) -> list[tuple[str, Violation]]:
    """Every violation with the name of its rule. `prompt`: nothing is wrong that could hold a healthy job up."""
    story = Story(nack_delay_s)
    by_kind: dict[Kind, list[tuple[str, Rule]]] = {kind: [] for kind in Kind}
    for name, (kinds, rule) in RULES.items():
        for kind in kinds:
            by_kind[kind].append((name, rule))
    found: list[tuple[str, Violation]] = []
    for event in events:
        if event.job not in story.jobs and event.kind in OF_JOBS:
            found.append((KNOWN, Violation(event.at, event.job, f"{event.kind} although nobody made it")))
            continue
        for name, rule in by_kind[event.kind]:
            found += [(name, Violation(event.at, event.job, text)) for text in rule(event, story)]
        story.read(event)
    if prompt:
        found += [(PROGRESS, violation) for violation in progress(events, nack_delay_s)]
        found += [(SEEN, violation) for violation in subscriptions.seen_in_time(events)]
    return found
