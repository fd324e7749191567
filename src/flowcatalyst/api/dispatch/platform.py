"""What all resources of the dispatch platform need of the router that serves them."""

from dataclasses import replace
from http import HTTPStatus

from flowcatalyst.api.dependencies import ServedRouter
from flowcatalyst.api.problems import ProblemError
from flowcatalyst.control.waits import wait_of
from flowcatalyst.dispatch.job import FINISHED, JobState, Status
from flowcatalyst.dispatch.platform import Platform
from flowcatalyst.dispatch.store.contract import JobStore, UnknownJobError
from flowcatalyst.dispatch.subscription import SubscriptionStatus
from flowcatalyst.router.explain import Wait


def store_of(app: ServedRouter) -> JobStore:
    if app.jobs is None:
        detail = "this router dispatches no jobs: set platform.enabled (FLOWCATALYST_PLATFORM__ENABLED=true)"
        raise ProblemError(HTTPStatus.NOT_FOUND, detail)
    return app.jobs


def platform_of(app: ServedRouter) -> Platform:
    store_of(app)
    assert app.platform is not None, "where there are jobs there is a platform"
    return app.platform


def in_hand(app: ServedRouter, job_id: str) -> Wait | None:
    """What a job waits for in this router; None if that does not have it."""
    delivery = app.tracker.get(job_id)
    return None if delivery is None or delivery.terms is None else wait_of(app, delivery)


def paused_of(app: ServedRouter, *states: JobState | None) -> set[str]:
    """Those of the subscriptions of jobs that are paused, as far as this process knows."""
    known = platform_of(app).catalog.subscriptions
    codes = {state.job.subscription for state in states if state is not None}
    found = {code: known[code].document.status for code in codes if code is not None and code in known}
    return {code for code, status in found.items() if status is SubscriptionStatus.PAUSED}


def as_shown(app: ServedRouter, state: JobState) -> JobState:
    """With IN_PROGRESS, which is not stored: only the router knows whose attempts are in flight."""
    if state.status in FINISHED:
        return state
    if app.processing is not None and state.job.id in app.processing.in_progress:
        return replace(state, status=Status.IN_PROGRESS)
    if (wait := in_hand(app, state.job.id)) is None:
        return state
    return replace(state, status=Status.IN_PROGRESS if wait.under_way else Status.QUEUED)


def checked_id(job_id: str) -> str:
    """An id that a database can look for."""
    if "\0" in job_id:
        raise UnknownJobError("there is no job with a NUL character in its id")
    return job_id
