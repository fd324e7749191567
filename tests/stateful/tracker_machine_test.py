"""The InFlightTracker against a plain list of owned deliveries."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from flowcatalyst.message import Delivery
from flowcatalyst.routing.tracker import Duplicate, InFlightTracker
from tests.support.deliveries import delivery

APP_IDS = ("app-1", "app-2", "app-3")
app_ids = st.sampled_from(APP_IDS)
broker_ids = st.sampled_from(["", "b-1", "b-2", "b-3"])
any_of_them = st.integers(0, 99)  # which one: modulo how many there are


class TrackerMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.tracker = InFlightTracker()
        self.owned: list[Delivery] = []
        self.seen: list[Delivery] = []

    @rule(app_id=app_ids, broker_id=broker_ids)
    def receive(self, app_id: str, broker_id: str) -> None:
        """A queue hands something over, as new, as a redelivery or as a requeued copy."""
        message = delivery(app_id, broker_id=broker_id)
        self.seen.append(message)
        expected = self._expected_duplicate(message)
        assert self.tracker.find_duplicate(message) == expected
        assert self.tracker.track(message) is (expected is None)
        if expected is None:
            self.owned.append(message)

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
        by_key, key_by_app_id = self.tracker._by_key, self.tracker._key_by_app_id
        assert {owned.pointer.id: key for key, owned in by_key.items()} == key_by_app_id

    def teardown(self) -> None:
        for message in self.owned:
            assert self.tracker.remove(message)
        assert (self.tracker._by_key, self.tracker._key_by_app_id) == ({}, {})
        assert all(self.tracker.find_duplicate(message) is None for message in self.seen)

    def _expected_duplicate(self, message: Delivery) -> tuple[Duplicate, Delivery] | None:
        for owned in self.owned:
            if owned.key == message.key:
                return Duplicate.REDELIVERED, owned
        for owned in self.owned:
            if owned.pointer.id == message.pointer.id:
                tells_apart = bool(owned.broker_id and message.broker_id)
                return (Duplicate.REQUEUED if tells_apart else Duplicate.REDELIVERED), owned
        return None


TestTracker = TrackerMachine.TestCase
TestTracker.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
