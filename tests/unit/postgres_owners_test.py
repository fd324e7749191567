"""When an owner counts as dead: for itself always before it does for the others, whatever their clocks say."""

from hypothesis import given
from hypothesis import strategies as st

from flowcatalyst.queues.postgres.owners import LAPSE_S, MARGIN_S, RENEW_EVERY_S, OwnerWatch, Session


def test_a_session_lives_until_shortly_before_others_may_end_it() -> None:
    session = Session(1, sent_at=100.0)
    assert session.is_alive(100.0 + LAPSE_S - MARGIN_S - 0.01)
    assert not session.is_alive(100.0 + LAPSE_S - MARGIN_S)


def test_a_renewal_counts_from_when_it_was_sent() -> None:
    session = Session(1, sent_at=100.0)
    session.renewed(sent_at=102.0, now=106.0)
    assert session.until == 102.0 + LAPSE_S - MARGIN_S


def test_a_session_that_lapsed_never_comes_back() -> None:
    """What it held may have been let go meanwhile."""
    session = Session(1, sent_at=100.0)
    session.renewed(sent_at=101.0, now=100.0 + LAPSE_S)
    assert session.ended
    session.renewed(sent_at=101.5, now=101.6)
    assert not session.is_alive(101.7)


def test_an_owner_whose_row_moves_is_alive_and_one_whose_row_stands_still_is_not() -> None:
    watch = OwnerWatch()
    for second in range(int(LAPSE_S)):
        assert watch.dead_among({1: 5, 2: second}, float(second)) == {}
    assert watch.dead_among({1: 5, 2: 99}, LAPSE_S) == {1: 5}


def test_an_owner_that_was_not_seen_for_a_while_is_watched_anew() -> None:
    watch = OwnerWatch()
    watch.dead_among({1: 5}, 0.0)
    watch.dead_among({}, 1.0)
    assert watch.dead_among({1: 5}, LAPSE_S) == {}


def test_one_renewal_may_be_lost_without_harm() -> None:
    assert 3 * RENEW_EVERY_S < LAPSE_S - MARGIN_S


@given(
    answers=st.lists(st.tuples(st.floats(0.0, 5.0), st.floats(0.0, 3.0), st.booleans()), min_size=1, max_size=8),
    looks=st.lists(st.floats(0.01, 4.0), min_size=1, max_size=20),
    offset=st.floats(-1e6, 1e6),
)
def test_nobody_ends_an_owner_that_takes_itself_for_alive(
    answers: list[tuple[float, float, bool]], looks: list[float], offset: float
) -> None:
    """Renewals are sent, take a while to be stored, and some answers are lost; the other's clock is any other clock."""
    session, watch = Session(1, sent_at=0.0), OwnerWatch()
    stored = [(0.0, 1)]  # when the row changed, and to what
    at = 0.0
    told: list[tuple[float, float]] = []  # (answered at, sent at)
    for pause, delay, arrives in answers:
        at += pause
        stored.append((at + delay, stored[-1][1] + 1))
        if arrives:
            told.append((at + 2 * delay, at))
        at += 2 * delay
    now = 0.0
    for pause in looks:
        now += pause
        for answered_at, sent_at in [one for one in told if one[0] <= now]:
            session.renewed(sent_at, answered_at)
            told.remove((answered_at, sent_at))
        beat = max(beat for moment, beat in stored if moment <= now)
        if watch.dead_among({1: beat}, now + offset):
            assert not session.is_alive(now)
