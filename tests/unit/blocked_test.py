"""FailedMessages: what failed stays known until it is settled, wherever it waits."""

from flowcatalyst.core.message import ACK, Delivery, Nack, Reject, Retry, Verdict
from flowcatalyst.router.blocked import RETURN_S, FailedMessages
from tests.support.deliveries import delivery
from tests.support.rig import ERROR_400, ERROR_500, OK

LIMIT_S = 60.0


def nobody(broker_id: str) -> Delivery | None:
    return None


def failed(verdict: Verdict, name: str = "m1", at: float = 0.0) -> tuple[FailedMessages, Delivery]:
    """One that failed, and what followed from that."""
    messages, message = FailedMessages(), delivery(name)
    message.attempt_at = at
    messages.note(message, ERROR_500, verdict, "P", at)
    return messages, message


def test_one_that_is_given_up_stays_known_until_its_dead_letter_is_recorded() -> None:
    messages, message = failed(Nack(30.0))
    messages.note(message, ERROR_400, Reject("HTTP 400"), "P", 40.0)
    known = messages.of(message)
    assert known is not None
    assert (known.detail, known.blocks) == (ERROR_500.detail, True)
    messages.forget(message)
    assert messages.of(message) is None


def test_one_that_is_given_up_at_once_is_not_known() -> None:
    messages, message = failed(Reject("HTTP 400"))
    assert messages.of(message) is None


def test_one_that_is_delivered_at_last_is_forgotten() -> None:
    messages, message = failed(Retry(1.0))
    messages.note(message, OK, ACK, "P", 1.0)
    assert messages.of(message) is None


def test_one_that_did_not_come_when_it_was_due_is_forgotten_but_not_while_its_pool_is_paused() -> None:
    messages, _ = failed(Nack(30.0))
    overdue = 30.0 + RETURN_S + 1.0
    assert [one.message_id for one in messages.longer_than(LIMIT_S, overdue, nobody, {"P"})] == ["m1"]
    assert [one.message_id for one in messages.longer_than(LIMIT_S, overdue, nobody, {"Q"})] == []
    assert messages.by_message == {}
