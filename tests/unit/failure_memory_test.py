import pytest

from flowcatalyst.core.message import Delivery
from flowcatalyst.router import failure_memory
from flowcatalyst.router.failure_memory import FailureMemory
from tests.support.deliveries import delivery


def failed(name: str, failures: int, broker_id: str | None = None) -> Delivery:
    message = delivery(name, broker_id=broker_id)
    message.failures = failures
    return message


def restored(memory: FailureMemory, message: Delivery) -> int:
    memory.restore(message)
    return message.failures


def test_message_that_comes_again_has_the_failures_it_went_with() -> None:
    memory = FailureMemory()
    memory.note(failed("m1", 3))
    memory.note(failed("m2", 5))
    assert restored(memory, failed("m1", 0)) == 3
    assert restored(memory, failed("m2", 0)) == 5
    assert restored(memory, failed("m3", 0)) == 0


def test_what_its_queue_knows_counts_too() -> None:
    memory = FailureMemory()
    memory.note(failed("m1", 3))
    assert restored(memory, failed("m1", 7)) == 7
    memory.note(failed("m1", 9))
    assert restored(memory, failed("m1", 7)) == 9


def test_message_is_forgotten_once_it_is_back() -> None:
    memory = FailureMemory()
    memory.note(failed("m1", 3))
    restored(memory, failed("m1", 0))
    assert len(memory) == 0
    assert restored(memory, failed("m1", 0)) == 0


def test_newest_number_counts() -> None:
    memory = FailureMemory()
    for failures in (3, 6, 9):
        memory.note(failed("m1", failures))
    assert len(memory) == 1
    assert restored(memory, failed("m1", 0)) == 9


@pytest.mark.parametrize("message", [failed("m1", 0), failed("m1", 4, broker_id="")])
def test_message_that_never_failed_or_has_no_broker_id_is_not_remembered(message: Delivery) -> None:
    memory = FailureMemory()
    memory.note(message)
    assert len(memory) == 0


def test_of_more_messages_than_can_be_remembered_the_oldest_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    assert failure_memory.MOST_REMEMBERED == 100_000
    monkeypatch.setattr(failure_memory, "MOST_REMEMBERED", 3)
    memory = FailureMemory()
    for number in range(5):
        memory.note(failed(f"m{number}", number + 1))
    assert len(memory) == 3
    assert [restored(memory, failed(f"m{number}", 0)) for number in range(5)] == [0, 0, 3, 4, 5]


def test_messages_that_went_back_are_found_by_their_own_id_until_they_come_again() -> None:
    memory = FailureMemory()
    memory.note(failed("m1", 3, broker_id="b1"))
    memory.note(failed("m2", 4, broker_id="b2"))
    assert memory.find({"m1", "m3"}) == {"m1": 3}
    memory.restore(failed("m1", 0, broker_id="b1"))
    assert memory.find({"m1", "m2"}) == {"m2": 4}
