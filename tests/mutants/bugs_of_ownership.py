"""Bugs in who owns a message: router, tracker and lease keeper."""

from typing import Final

from tests.mutants.mutant import Hunter, Mutant

OWNERSHIP_BUGS: Final = (
    Mutant(
        "a message kept for room is not owned",
        "routing/router.py",
        (
            (
                """\
        for delivery in kept:
            self.tracker.track(delivery)
""",
                "",
            ),
        ),
    ),
    Mutant(
        "new messages pass those that are kept for room",
        "routing/router.py",
        (
            (
                """\
            if delivery.ordered and waits_behind_others(delivery):
""",
                """\
            if not delivery.ordered and waits_behind_others(delivery):
""",
            ),
        ),
    ),
    Mutant(
        "a full pool gives messages back to a queue that does not keep order",
        "routing/router.py",
        (
            (
                """\
            if delivery.source.capabilities.ordered_redelivery or not delivery.ordered:
                delivery.source.nack(delivery, _refusal_delay_s(delivery))
""",
                """\
            if True:
                delivery.source.nack(delivery, _refusal_delay_s(delivery))
""",
            ),
        ),
    ),
    Mutant(
        "a reload sends a group to its new pool while the old one still has it",
        "routing/router.py",
        (
            (
                """\
        self._stays = {place: pool for place, pool in places.items() if self.pools.get(place[0]) is not pool}
""",
                """\
        self._stays = {}
""",
            ),
        ),
    ),
    Mutant(
        "pools that were removed are not drained",
        "routing/router.py",
        (
            (
                """\
        return [*self.pools.values(), *self.retiring.values()]
""",
                """\
        return [*self.pools.values()]
""",
            ),
        ),
    ),
    Mutant(
        "a lost lease on a queue without order withdraws the message",
        "routing/router.py",
        (
            (
                """\
        if delivery.ordered and not delivery.source.capabilities.ordered_redelivery:
            return
""",
                "",
            ),
        ),
    ),
    Mutant(
        "a message whose lease was lost is still owned",
        "routing/router.py",
        (
            (
                """\
        if any(pool.withdraw(delivery) for pool in self.all_pools()):
            self.tracker.remove(delivery)
""",
                """\
        for pool in self.all_pools():
            pool.withdraw(delivery)
""",
            ),
        ),
    ),
    Mutant(
        "a redelivery of a message in hand is acked as a duplicate",
        "routing/router.py",
        (
            (
                """\
            elif found[0] is Duplicate.REQUEUED:
""",
                """\
            elif found[1] is not delivery:
""",
            ),
        ),
    ),
    Mutant(
        "a redelivery of a message in hand is given back",
        "routing/router.py",
        (
            (
                """\
            else:
                adopt_receipt(found[1], delivery)

    def pool_of(self, delivery: Delivery) -> Pool:
""",
                """\
            else:
                delivery.source.nack(delivery, 0.0)

    def pool_of(self, delivery: Delivery) -> Pool:
""",
            ),
        ),
    ),
    Mutant(
        "the receipt of a redelivery is not adopted",
        "message.py",
        (
            (
                """\
    owned.receipt = again.receipt
""",
                "",
            ),
        ),
    ),
    Mutant(
        "a copy under another broker id is not recognised",
        "routing/tracker.py",
        (
            (
                """\
        key = self._key_by_app_id.get(delivery.pointer.id)
        if key is None:
            return None
        owned = self._by_key[key]
""",
                """\
        key = None if delivery.broker_id else self._key_by_app_id.get(delivery.pointer.id)
        if key is None:
            return None
        owned = self._by_key[key]
""",
            ),
            (
                """\
        other = self._key_by_app_id.get(app_id)
""",
                """\
        other = None if delivery.broker_id else self._key_by_app_id.get(app_id)
""",
            ),
        ),
    ),
    Mutant(
        "a copy under another broker id counts as a redelivery",
        "message.py",
        (
            (
                """\
        return self.broker_id or self.pointer.id
""",
                """\
        return self.pointer.id
""",
            ),
        ),
    ),
    Mutant(
        "an old delivery of a message ends the ownership of the new one",
        "routing/tracker.py",
        (
            (
                """\
        if self._by_key.get(key) is not delivery:
""",
                """\
        if key not in self._by_key:
""",
            ),
        ),
        hunter=Hunter.MACHINES,
    ),
    Mutant(
        "a message that left is still known by its application id",
        "routing/tracker.py",
        (
            (
                """\
        if self._key_by_app_id.get(delivery.pointer.id) == key:
            del self._key_by_app_id[delivery.pointer.id]
""",
                "",
            ),
        ),
        hunter=Hunter.MACHINES,
    ),
)
