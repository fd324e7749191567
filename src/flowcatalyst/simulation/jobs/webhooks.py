"""Rules about what a receiver sees: signatures, positions in groups, and what its guard says of them."""

from collections.abc import Iterator

from flowcatalyst.dispatch.catalog_entries import StoredSubscription
from flowcatalyst.receiver import Verdict
from flowcatalyst.simulation.jobs.history import Event, Kind, Received, Rotation
from flowcatalyst.simulation.jobs.story import GRAIN_S, Known, Story


def signed_with_what_is_valid(event: Event, story: Story) -> Iterator[str]:
    """Every request has a signature of each secret that is valid then, as far as its process knows, and no other."""
    received: Received = event.value
    facts, code = story.facts, received.subscription or ""
    versions = facts.since(code, facts.revision_seen(event.process, code))
    valid = [_valid(one.document, event.wall) for one in versions if one.document is not None]
    if received.signed_by not in valid or received.signatures != len(received.signed_by):
        yield (
            f"has {received.signatures} signatures, of which {len(received.signed_by)} are of secrets that it had; "
            f"{' or '.join(str(len(one)) for one in valid) or 'none'} are valid"
        )


def secrets_overlap(event: Event, story: Story) -> Iterator[str]:
    """Whoever rotates a secret has those before it sign for as long as he said."""
    asked: Rotation = event.value
    documents = [one.document for one in story.facts.versions[event.job] if one.document is not None]
    new = next(n for n, one in enumerate(documents) if asked.secret in _valid(one, asked.wall))
    before, at = documents[new - 1], asked.wall + asked.overlap_s - GRAIN_S
    missing = _valid(before, max(at, asked.wall)) - _valid(documents[new], at) if asked.overlap_s else frozenset()
    if missing:
        yield f"{len(missing)} secrets do not sign for {asked.overlap_s:g} s after a rotation"


def _valid(document: StoredSubscription, wall: float) -> frozenset[str]:
    """As the simulation seals them: the code, a space, the secret."""
    return frozenset(one.sealed.partition(" ")[2] for one in document.secrets if one.until is None or wall < one.until)


def a_position_is_of_one_job(event: Event, story: Story) -> Iterator[str]:
    received: Received = event.value
    if received.group is None or received.seq is None:
        return
    first = story.facts.of_group(received.group).job_at.get(received.seq, event.job)
    if first != event.job:
        yield f"has position {received.seq} of {received.group}, which {first} had"


def what_is_ordered_has_a_position(event: Event, story: Story) -> Iterator[str]:
    received, known = event.value, story.jobs[event.job]
    is_ordered = known.job.group is not None and known.sent_in_order.get(event.process, False)
    if received.signatures and is_ordered is (received.seq is None):
        yield f"is {'' if is_ordered else 'not '}ordered and has position {received.seq}"


def positions_go_up(event: Event, story: Story) -> Iterator[str]:
    """The first attempt of a job in the order of its group has a higher position than all before it."""
    received: Received = event.value
    known = story.jobs[event.job]
    if received.group is None or received.seq is None or not _is_first(known, event.process):
        return
    begun_to = story.facts.of_group(received.group).begun_to
    if received.seq <= begun_to:
        yield f"has position {received.seq} in its first attempt, and another one of {received.group} had {begun_to}"


def _is_first(known: Known, process: str) -> bool:
    return known.requests == 1 and known.in_lane_since is not None


def a_position_stays(event: Event, story: Story) -> Iterator[str]:
    """Once an attempt of a job has failed its position stays."""
    seq, stays = event.value.seq, story.facts.stays.get(event.job)
    if seq is not None and stays is not None and seq != stays:
        yield f"has position {seq} and had {stays} when it failed"


def names_what_was_delivered_before(event: Event, story: Story) -> Iterator[str]:
    """Group-Prev is the position of the job of the group that was delivered last, as far as its process can know: by
    itself, or as its store said when it handed out this job or another one of the group."""
    received: Received = event.value
    if received.group is None or received.prev is None:
        return
    known, facts = story.jobs[event.job], story.facts
    places = facts.of_group(received.group)
    if received.prev and received.prev not in places.delivered:
        yield f"says that {received.prev} of {received.group} was delivered, and it was not"
    hold = known.hold
    if hold is None or hold.process != event.process or hold.index != hold.taken:
        return  # it has it from before: what it knew then is as good
    expected = facts.prev.get((event.process, hold.number, story.lane_of(known)))
    who = event.process, received.group
    if expected is None:
        return
    own, told = facts.own.get(who, expected), facts.told.get(who, expected)
    heard = {expected.position, own.position, told.position if told.at > expected.at else expected.position}
    if received.prev not in heard:
        yield f"says that {received.prev} of {received.group} was delivered last, and it was {expected.position}"


def guards_see_no_gap(event: Event, story: Story) -> Iterator[str]:
    """Nothing that was delivered is missing at its receiver, so that a guard that says so is wrong."""
    if event.value.verdict is Verdict.GAP:
        yield f"its receiver has a gap: {event.value.seq}/{event.value.prev} of {event.value.group}"


def guards_see_no_false_repeat(event: Event, story: Story) -> Iterator[str]:
    if event.value.verdict is Verdict.REPEAT and not event.value.was_done:
        yield f"its receiver takes it for a repeat, and it was never handled: {event.value.seq} of {event.value.group}"


def late_only_beside_its_group(event: Event, story: Story) -> Iterator[str]:
    """A job comes late at its receiver only if it left its group, or was begun there before."""
    known = story.jobs[event.job]
    if event.value.verdict is Verdict.REGRESSION and _is_first(known, event.process):
        yield f"comes late in its first attempt: {event.value.seq}/{event.value.prev} of {event.value.group}"


_RECEIVED = frozenset({Kind.RECEIVED})
RULES = {
    "signed with what is valid": (_RECEIVED, signed_with_what_is_valid),
    "secrets overlap": (frozenset({Kind.ROTATE_TOLD}), secrets_overlap),
    "a position is of one job": (_RECEIVED, a_position_is_of_one_job),
    "what is ordered has a position": (_RECEIVED, what_is_ordered_has_a_position),
    "positions go up": (_RECEIVED, positions_go_up),
    "a position stays": (_RECEIVED, a_position_stays),
    "names what was delivered before": (_RECEIVED, names_what_was_delivered_before),
    "guards see no gap": (_RECEIVED, guards_see_no_gap),
    "guards see no false repeat": (_RECEIVED, guards_see_no_false_repeat),
    "late only beside its group": (_RECEIVED, late_only_beside_its_group),
}
