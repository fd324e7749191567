"""Rules about how jobs end, and about what the store says of them."""

from collections.abc import Iterator

from flowcatalyst.core.message import DispatchMode, Settled
from flowcatalyst.dispatch.job import Status
from flowcatalyst.simulation.jobs.history import Counts, Event, Final, Kind
from flowcatalyst.simulation.jobs.story import Story


def completed_when_delivered(event: Event, story: Story) -> Iterator[str]:
    """A job is completed because its process got a 2xx for it."""
    known = story.jobs[event.job]
    if event.value.result is Settled.OK and known.finished is None and event.process not in known.delivered_by:
        yield "completed although it was not delivered"


def delivered_as_it_is(event: Event, story: Story) -> Iterator[str]:
    """A job that was changed is completed by a delivery of what it is since then."""
    known = story.jobs[event.job]
    if event.value.result is Settled.OK and known.finished is None:
        sent = known.delivered_to.get(event.process, known.target)
        if sent != known.target:
            yield f"completed by a delivery to {sent}, and it goes to {known.target} since somebody changed it"


def one_job_per_key(event: Event, story: Story) -> Iterator[str]:
    key = event.value.idempotency_key
    if key is not None and key in story.keys:
        yield f"made although {story.keys[key]} has the same idempotency key"


def nothing_lost(event: Event, story: Story) -> Iterator[str]:
    """In the end every job is finished, or waits for a person."""
    if event.kind is Kind.COUNTED:
        missing = story.jobs.keys() - event.value.scanned["jobs"]
        if missing:
            yield f"the store has no {', '.join(sorted(missing))}"
        return
    state = event.value.state
    parked = state.status is Status.ERROR and state.next_attempt_at is None
    if state.finished_at is None and not parked:
        yield f"still {state.status} in the end"


def status_is_true(event: Event, story: Story) -> Iterator[str]:
    """The store says of a job what happened to it."""
    known, state = story.jobs[event.job], event.value.state
    expected = known.finished or (Status.ERROR if known.in_error else Status.PENDING)
    if state.status is not expected:
        yield f"is {state.status} and should be {expected}"
    if known.finished is None and state.failures != known.failures:
        yield f"has {state.failures} failures and should have {known.failures}"
    if state.job.mode is not known.mode:
        yield f"has mode {state.job.mode} and should have {known.mode}"


def attempts_are_those_that_were_made(event: Event, story: Story) -> Iterator[str]:
    """Every attempt that was settled is written down once, numbered from 1, with its answer."""
    known, final = story.jobs[event.job], event.value
    assert isinstance(final, Final)
    numbers = [made.attempt for made in final.attempts]
    if numbers != list(range(1, len(numbers) + 1)):
        yield f"attempts are numbered {numbers}"
    told = [(made.status, made.error, made.counts) for made in final.attempts]
    known_of = [(outcome.status, str(outcome.error), outcome.counts) for outcome in known.settled]
    if told != known_of:
        yield f"attempts written down {told}, made and settled {known_of}"
    if final.state.attempts != len(known.settled):
        yield f"counts {final.state.attempts} attempts, {len(known.settled)} were made and settled"


def a_message_for_each_job_that_waits(event: Event, story: Story) -> Iterator[str]:
    """What is finished is in no lane; what waits is in the one that its mode says."""
    known, lanes = story.jobs[event.job], event.value.lanes
    if known.finished is not None:
        if lanes:
            yield f"is {known.finished} and still in lanes {lanes}"
        return
    group = None if known.mode is DispatchMode.IMMEDIATE or known.in_lane_since is None else known.job.group
    if lanes != (group,):
        yield f"is in lanes {lanes} and should be in {group}"


def figures_equal_a_scan(event: Event, story: Story) -> Iterator[str]:
    """What the store counts as it goes along is what is there."""
    counts: Counts = event.value
    for name, kept in counts.kept.items():
        if kept != counts.scanned[name]:
            yield f"{name}: counted {kept}, found {counts.scanned[name]}"


def nothing_leaks(event: Event, story: Story) -> Iterator[str]:
    """A process that ended in order has nothing left in memory."""
    if event.value:
        yield f"{event.process} stopped with {dict(event.value)}"
