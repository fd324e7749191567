from sys import getsizeof
from typing import Any

import pytest

from flowcatalyst.router.tracker import Double, Duplicate, InFlightTracker
from tests.support.deliveries import RecordingSource, delivery


def test_message_is_owned_from_track_to_remove() -> None:
    tracker, message = InFlightTracker(), delivery("app-1", broker_id="b-1")
    assert tracker.get("app-1") is None
    assert tracker.track(message)
    assert (len(tracker), list(tracker), tracker.get("app-1")) == (1, [message], message)
    assert repr(tracker) == "<InFlightTracker b-1>"
    assert tracker.remove(message)
    assert (len(tracker), list(tracker), tracker.get("app-1")) == (0, [], None)
    assert repr(tracker) == "<InFlightTracker empty>"


def test_message_nobody_owns_is_no_duplicate() -> None:
    tracker = InFlightTracker()
    tracker.track(delivery("app-1", broker_id="b-1"))
    assert tracker.find_duplicate(delivery("app-2", broker_id="b-2")) is None


def test_same_broker_id_is_a_physical_redelivery() -> None:
    tracker, owned = InFlightTracker(), delivery("app-1", broker_id="b-1")
    tracker.track(owned)
    assert tracker.find_duplicate(delivery("app-1", broker_id="b-1")) == (Duplicate.REDELIVERED, owned)


def test_broker_id_decides_before_the_application_id() -> None:
    tracker = InFlightTracker()
    first, second = delivery("app-1", broker_id="b-1"), delivery("app-2", broker_id="b-2")
    tracker.track(first)
    tracker.track(second)
    assert tracker.find_duplicate(delivery("app-2", broker_id="b-1")) == (Duplicate.REDELIVERED, first)


def test_same_application_id_under_another_broker_id_is_a_logical_requeue() -> None:
    tracker, owned = InFlightTracker(), delivery("app-1", broker_id="b-1")
    tracker.track(owned)
    assert tracker.find_duplicate(delivery("app-1", broker_id="b-2")) == (Duplicate.COPY, owned)


@pytest.mark.parametrize(("owned_id", "new_id"), [("", ""), ("", "b-1"), ("b-1", "")])
def test_same_application_id_is_a_redelivery_where_a_broker_id_is_missing(owned_id: str, new_id: str) -> None:
    tracker, owned = InFlightTracker(), delivery("app-1", broker_id=owned_id)
    tracker.track(owned)
    assert tracker.find_duplicate(delivery("app-1", broker_id=new_id)) == (Duplicate.REDELIVERED, owned)


OTHER_WAYS = [
    {"group": "another group"},
    {"target": "http://127.0.0.1:9/another"},
    {"source": RecordingSource(name="another queue")},
]


@pytest.mark.parametrize("ids", [("b-1", "b-2"), ("", "")])
@pytest.mark.parametrize("other_way", OTHER_WAYS)
def test_same_application_id_on_another_way_is_another_message(other_way: dict[str, Any], ids: tuple[str, str]) -> None:
    tracker, owned = InFlightTracker(), delivery("app-1", broker_id=ids[0])
    tracker.track(owned)
    other = delivery("app-1", broker_id=ids[1], **other_way)
    assert tracker.find_duplicate(other) is None
    assert tracker.sort_out([other]) == ([other], [])
    assert (list(tracker), tracker.get("app-1")) == ([owned, other], owned)
    assert tracker.remove(owned)
    assert (list(tracker), tracker.get("app-1")) == ([other], other)
    assert tracker.remove(other)
    assert tracker.get("app-1") is None


def test_group_that_the_pointer_names_is_the_one_that_the_queue_names() -> None:
    tracker, owned = InFlightTracker(), delivery("app-1", "g", broker_id="b-1")
    tracker.track(owned)
    copy = delivery("app-1", "g", broker_id="b-2")
    copy.group = None
    assert tracker.find_duplicate(copy) == (Duplicate.COPY, owned)


def test_batch_is_sorted_into_new_messages_redeliveries_and_copies() -> None:
    tracker, owned = InFlightTracker(), delivery("app-1", broker_id="b-1")
    tracker.track(owned)
    again, copy = delivery("app-1", broker_id="b-1"), delivery("app-1", broker_id="b-2")
    new, new_again, new_copy = (delivery("app-2", broker_id=one) for one in ("b-3", "b-3", "b-4"))
    different = delivery("app-2", "another group", broker_id="b-5")
    assert tracker.sort_out([again, copy, new, new_again, different, new_copy]) == (
        [new, different],
        [
            Double(Duplicate.REDELIVERED, again, owned),
            Double(Duplicate.COPY, copy, owned),
            Double(Duplicate.REDELIVERED, new_again, new),
            Double(Duplicate.COPY, new_copy, new),
        ],
    )
    assert tracker.dropped == {"test-queue": 2}
    assert list(tracker) == [owned, new, different]


def test_finding_a_duplicate_changes_nothing() -> None:
    tracker, owned = InFlightTracker(), delivery("app-1", broker_id="b-1")
    tracker.track(owned)
    again = delivery("app-1", broker_id="b-1")
    tracker.find_duplicate(again)
    assert list(tracker) == [owned]
    assert owned.receipt == "receipt-app-1"


@pytest.mark.parametrize(("app_id", "broker_id"), [("app-1", "b-1"), ("app-1", "b-2"), ("app-2", "b-1"), ("app-1", "")])
def test_duplicate_is_not_tracked_and_leaves_no_trace(app_id: str, broker_id: str) -> None:
    tracker, owned = InFlightTracker(), delivery("app-1", broker_id="b-1")
    tracker.track(owned)
    assert not tracker.track(delivery(app_id, broker_id=broker_id))
    assert (len(tracker), list(tracker), tracker.get("app-1"), tracker.get("app-2")) == (1, [owned], owned, None)
    assert tracker.remove(owned)
    assert tracker.track(delivery(app_id, broker_id=broker_id))


def test_tracking_the_same_delivery_twice_owns_it_once() -> None:
    tracker, message = InFlightTracker(), delivery("app-1")
    assert tracker.track(message)
    assert not tracker.track(message)
    assert tracker.remove(message)
    assert not tracker.remove(message)
    assert len(tracker) == 0


@pytest.mark.parametrize(
    ("app_id", "broker_id"), [("app-1", "b-1"), ("app-1", "b-2"), ("app-2", "b-1"), ("app-3", "b-3")]
)
def test_removing_a_delivery_that_is_not_the_owned_one_changes_nothing(app_id: str, broker_id: str) -> None:
    tracker, owned = InFlightTracker(), delivery("app-1", broker_id="b-1")
    tracker.track(owned)
    assert not tracker.remove(delivery(app_id, broker_id=broker_id))
    assert (list(tracker), tracker.get("app-1")) == ([owned], owned)


def test_removed_message_can_be_owned_again_under_its_next_delivery() -> None:
    tracker, first, second = InFlightTracker(), delivery("app-1"), delivery("app-1")
    tracker.track(first)
    tracker.remove(first)
    assert tracker.find_duplicate(second) is None
    assert tracker.track(second)
    assert not tracker.remove(first)
    assert tracker.get("app-1") is second


def test_message_that_adopted_a_new_receipt_is_still_the_owned_one() -> None:
    tracker, owned = InFlightTracker(), delivery("app-1")
    tracker.track(owned)
    owned.receipt = "receipt-of-the-redelivery"
    assert tracker.remove(owned)
    assert len(tracker) == 0


def test_owned_messages_can_be_removed_while_going_through_them() -> None:
    tracker = InFlightTracker()
    for n in range(100):
        tracker.track(delivery(f"app-{n}"))
    for message in tracker:
        assert tracker.remove(message)
    assert len(tracker) == 0


def test_removed_message_leaves_nothing_behind_while_others_are_owned() -> None:
    tracker, leaving = InFlightTracker(), delivery("app-1", broker_id="b-1")
    tracker.track(delivery("app-2", broker_id="b-2"))
    tracker.track(leaving)
    tracker.remove(leaving)
    assert tracker.get("app-1") is None
    assert tracker.find_duplicate(delivery("app-1", broker_id="b-3")) is None
    assert tracker.track(delivery("app-1", broker_id="b-3"))


def test_memory_of_a_burst_is_nacked() -> None:
    tracker = InFlightTracker()
    for n in range(1000):
        tracker.track(delivery(f"app-{n}"))
    for message in tracker:
        tracker.remove(message)
    assert [getsizeof(table) for table in (tracker._by_key, tracker._by_app_id)] == [getsizeof({})] * 2


def test_both_maps_are_empty_when_nothing_is_owned() -> None:
    tracker = InFlightTracker()
    messages = [delivery(f"app-{n}", broker_id="" if n % 3 else f"b-{n}") for n in range(30)]
    for message in messages:
        assert tracker.track(message)
        assert not tracker.track(delivery(message.pointer.id, broker_id="other"))
    for message in messages:
        assert tracker.remove(message)
    assert (tracker._by_key, tracker._by_app_id) == ({}, {})
