"""Times as people see them are those by which they ask: nothing is lost between two forms of one time."""

from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from flowcatalyst.dispatch.job import as_seconds, as_time


@given(seconds=st.floats(0.0, 4e9))
def test_what_came_at_a_time_came_no_earlier_than_the_time_that_is_shown(seconds: float) -> None:
    """So `from` that time it is there, and `before` it is not."""
    shown = as_seconds(as_time(seconds))
    assert shown is not None
    assert shown <= seconds < shown + 2e-6


@given(time=st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30), timezones=st.just(UTC)))
def test_a_time_that_was_given_is_shown_as_it_was(time: datetime) -> None:
    if datetime(1900, 1, 1, tzinfo=UTC) < time < datetime(2200, 1, 1, tzinfo=UTC):
        assert as_time(as_seconds(time)) == time
    seconds = as_seconds(time)
    assert as_seconds(as_time(seconds)) == seconds
