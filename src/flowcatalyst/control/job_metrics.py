"""Metrics of events and dispatch jobs: what this process counted, and what their store holds."""

from collections.abc import Iterator
from itertools import pairwise

from flowcatalyst.control.metric_text import buckets, counter, gauge, head
from flowcatalyst.dispatch.event_counts import JOBS_BUCKETS, MATCHING_BUCKETS_S, EventCounts
from flowcatalyst.dispatch.job_counts import DURATION_BUCKETS_S, JobCounts
from flowcatalyst.dispatch.store.contract import GROUP_SIZES, Figures


def event_lines(counts: EventCounts) -> Iterator[str]:
    yield counter("events_accepted_total", "Events that were kept, each with its jobs", counts.accepted)
    yield counter("events_deduplicated_total", "Events that were known already: nothing was kept", counts.repeated)
    yield head("event_jobs", "histogram", "Dispatch jobs that each event made when it came")
    yield buckets("flowcatalyst_event_jobs", "", JOBS_BUCKETS, counts.jobs_counts, counts.jobs_sum)
    yield head("event_matching_seconds", "histogram", "How long it took to find the subscriptions that want an event")
    name = "flowcatalyst_event_matching_seconds"
    yield buckets(name, "", MATCHING_BUCKETS_S, counts.matching_counts, counts.matching_sum_s)


def job_lines(counts: JobCounts, figures: Figures | None, now: float) -> Iterator[str]:
    """The text, a few lines at a time. Without figures, what the store holds is left out: it did not answer yet."""
    yield counter("jobs_created_total", "Dispatch jobs that were made", counts.created)
    yield counter("jobs_completed_total", "Dispatch jobs that were delivered", counts.completed)
    yield counter("jobs_failed_total", "Failed attempts at dispatch jobs", counts.failed)
    yield counter("jobs_parked_total", "Dispatch jobs that failed for the last time", counts.parked)
    yield counter("jobs_cancelled_total", "Dispatch jobs that somebody cancelled", counts.cancelled)
    yield counter("jobs_expired_total", "Dispatch jobs that waited for too long", counts.expired)
    yield counter("jobs_dropped_total", "Finished dispatch jobs that were too old to be kept", counts.dropped)
    yield head("job_duration_seconds", "histogram", "From when a dispatch job could start to when it was delivered")
    name = "flowcatalyst_job_duration_seconds"
    yield buckets(name, "", DURATION_BUCKETS_S, counts.duration_counts, counts.duration_sum_s)
    if figures is None:
        return
    yield gauge("jobs_waiting", "Dispatch jobs that wait, neither scheduled nor parked", figures.waiting)
    yield gauge("jobs_scheduled", "Dispatch jobs whose time has not come", figures.scheduled)
    yield gauge("jobs_parked", "Dispatch jobs that wait for a person", figures.parked)
    oldest_at = figures.oldest_waiting_at
    text = "How long ago the oldest dispatch job was made that could start; 0: there is none"
    yield gauge("jobs_oldest_waiting_seconds", text, 0 if oldest_at is None else max(0.0, now - oldest_at))
    # Named as in the guide of message groups.
    yield gauge("dispatch_groups_active", "Groups with unfinished dispatch jobs", figures.groups, prefix="")
    text = "Groups that wait for a dispatch job that failed"
    yield gauge("dispatch_groups_blocked", text, figures.blocked, prefix="")
    yield head("dispatch_messages_in_group", "histogram", "Unfinished dispatch jobs of each group", prefix="")
    upto = [0, *(figures.jobs_in_groups.get(size, 0) for size in GROUP_SIZES), figures.groups]
    counts_of = [max(0, more - less) for less, more in pairwise(upto)]
    yield buckets("dispatch_messages_in_group", "", GROUP_SIZES, counts_of, None)
