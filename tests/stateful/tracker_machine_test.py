"""The InFlightTracker against a plain list of owned deliveries."""

from collections import Counter

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from flowcatalyst.core.message import Delivery
from flowcatalyst.router.tracker import Duplicate, InFlightTracker
from tests.support.deliveries import TARGET, RecordingSource, delivery

APP_IDS = ("app-1", "app-2", "app-3")
app_ids = st.sampled_from(APP_IDS)
broker_ids = st.sampled_from(["", "b-1", "b-2", "b-3"])
queues = st.sampled_from([RecordingSource(name="q-1"), RecordingSource(name="q-2")])
targets = st.sampled_from([TARGET, f"{TARGET}/other"])
groups = st.sampled_from(["g", "h"])
any_of_them = st.integers(0, 99)  # which one: modulo how many there are


class TrackerMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.tracker = InFlightTracker()
        self.owned: list[Delivery] = []
        self.seen: list[Delivery] = []
        self.dropped: Counter[str] = Counter()

    @rule(app_id=app_ids, broker_id=broker_ids, queue=queues, url=targets, group=groups, named=st.booleans())
    def receive(self, app_id: str, broker_id: str, queue: RecordingSource, url: str, group: str, named: bool) -> None:
        """A queue hands something over, as new, as a redelivery, as a requeued copy or as a namesake of another."""
        broker_id = broker_id and f"{queue.name}-{broker_id}"  # unique over all queues
        message = delivery(app_id, group, broker_id=broker_id, target=url, source=queue)
        if not named:
            message.group = None  # the queue knows no groups, the pointer names it
        self.seen.append(message)
        expected = self._expected_duplicate(message)
        assert self.tracker.find_duplicate(message) == expected
        assert self.tracker.track(message) is (expected is None)
        if expected is None:
            self.owned.append(message)

    @rule(batch=st.lists(any_of_them, max_size=6))
    def sort_out_a_batch(self, batch: list[int]) -> None:
        """Of deliveries that were seen before, in any order: what is new is owned, other copies are counted."""
        deliveries = [self.seen[which % len(self.seen)] for which in dict.fromkeys(batch)] if self.seen else []
        deliveries = list(dict.fromkeys(deliveries))
        new, doubles = self.tracker.sort_out(deliveries)
        assert [one for one in deliveries if one in new or one in {double.delivery for double in doubles}] == deliveries
        found = {double.delivery: double for double in doubles}
        for message in deliveries:
            expected = self._expected_duplicate(message)
            if message in new:
                assert expected is None
                self.owned.append(message)
            else:
                assert found[message][::2] == expected
                self.dropped[message.source.name] += found[message].kind is Duplicate.COPY

    @precondition(lambda self: self.owned)
    @rule(which=any_of_them)
    def settle(self, which: int) -> None:
        message = self.owned.pop(which % len(self.owned))
        assert self.tracker.remove(message)

    @precondition(lambda self: self.seen)
    @rule(which=any_of_them)
    def settle_any_delivery_ever_seen(self, which: int) -> None:
        """Late and doubled settles happen: only the owned delivery may end its ownership."""
        message = self.seen[which % len(self.seen)]
        assert self.tracker.remove(message) is (message in self.owned)
        if message in self.owned:
            self.owned.remove(message)

    @precondition(lambda self: self.seen)
    @rule(which=any_of_them)
    def track_a_delivery_again(self, which: int) -> None:
        message = self.seen[which % len(self.seen)]
        free = self._expected_duplicate(message) is None
        assert self.tracker.track(message) is free
        if free:
            self.owned.append(message)

    @invariant()
    def exactly_the_owned_messages_are_known(self) -> None:
        assert list(self.tracker) == self.owned
        assert len(self.tracker) == len(self.owned)
        for app_id in APP_IDS:
            assert self.tracker.get(app_id) is next((one for one in self.owned if one.pointer.id == app_id), None)

    @invariant()
    def both_maps_agree(self) -> None:
        first, several = self.tracker._by_app_id, self.tracker._namesakes
        indexed = {app_id: [*several[app_id].values()] if app_id in several else [one] for app_id, one in first.items()}
        owned = {app_id: [one for one in self.owned if one.pointer.id == app_id] for app_id in APP_IDS}
        assert indexed == {app_id: some for app_id, some in owned.items() if some}
        assert all(len(some) > 1 for some in several.values())

    @invariant()
    def every_dropped_copy_is_counted(self) -> None:
        assert self.tracker.dropped == self.dropped

    def teardown(self) -> None:
        for message in self.owned:
            assert self.tracker.remove(message)
        assert (self.tracker._by_key, self.tracker._by_app_id, self.tracker._namesakes) == ({}, {}, {})
        assert all(self.tracker.find_duplicate(message) is None for message in self.seen)

    def _expected_duplicate(self, message: Delivery) -> tuple[Duplicate, Delivery] | None:
        return _duplicate_among(self.owned, message)


def _duplicate_among(others: list[Delivery], message: Delivery) -> tuple[Duplicate, Delivery] | None:
    for one in others:
        if message.broker_id and one.broker_id == message.broker_id:
            return Duplicate.REDELIVERED, one
    same = _same_app_message(others, message)
    if same is None:
        return None
    return (Duplicate.COPY if same.broker_id and message.broker_id else Duplicate.REDELIVERED), same


def _same_app_message(others: list[Delivery], message: Delivery) -> Delivery | None:
    for one in others:
        same_pointer = (one.pointer.id, one.pointer.mediation_target, one.pointer.message_group_id) == (
            message.pointer.id,
            message.pointer.mediation_target,
            message.pointer.message_group_id,
        )
        if same_pointer and one.source.name == message.source.name:
            return one
    return None


TestTracker = TrackerMachine.TestCase
TestTracker.settings = settings(max_examples=settings().max_examples, stateful_step_count=40, deadline=None)
