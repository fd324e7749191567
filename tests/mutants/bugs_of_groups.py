"""Bugs in the order of a group: its scheduler, and what a message says of itself."""

from typing import Final

from tests.mutants.mutant import Hunter, Mutant

GROUP_BUGS: Final = (
    Mutant(
        "a retry waits at the tail of its group",
        "routing/groups.py",
        (
            (
                """\
        group.head = delivery
        group.held_until = until
""",
                """\
        group.regular.append(delivery)
        group.held_until = until
""",
            ),
        ),
    ),
    Mutant(
        "a new message ends the hold of its group",
        "routing/groups.py",
        (
            (
                """\
        self.buffered += 1
        self._make_ready(group)

    def _submit_high(self, group: _Group, delivery: Delivery) -> None:
""",
                """\
        self.buffered += 1
        group.held_until = None
        self._make_ready(group)

    def _submit_high(self, group: _Group, delivery: Delivery) -> None:
""",
            ),
        ),
        hunter=Hunter.MACHINES,
    ),
    Mutant(
        "a group with an attempt in flight may start another one",
        "routing/groups.py",
        (
            (
                """\
        if group.waiting or group.busy is not None or group.held_until is not None:
""",
                """\
        if group.waiting or group.held_until is not None:
""",
            ),
        ),
    ),
    Mutant(
        "the two tiers of a group are two groups",
        "routing/groups.py",
        (
            (
                """\
        name = delivery.group
        if not delivery.ordered or name is None:
""",
                """\
        name = delivery.group and delivery.group + '!' * delivery.pointer.high_priority
        if not delivery.ordered or name is None:
""",
            ),
        ),
    ),
    Mutant(
        "a message that failed where others may pass starts beside its group",
        "routing/groups.py",
        (
            (
                """\
        if not delivery.ordered or name is None:
""",
                """\
        if not delivery.ordered or name is None or (delivery.failures and not delivery.blocks_group):
""",
            ),
        ),
    ),
    Mutant(
        "the next message of a group is not started after one that is done",
        "routing/groups.py",
        (
            (
                """\
        group = self._release(delivery)
        self._make_ready(group)
""",
                """\
        self._release(delivery)
""",
            ),
        ),
    ),
    Mutant(
        "a hold that ends now has not ended",
        "routing/groups.py",
        (
            (
                """\
        while holds and holds[0][0] <= now:
""",
                """\
        while holds and holds[0][0] < now:
""",
            ),
        ),
    ),
    Mutant(
        "a failure gives back only the followers of its own batch",
        "routing/groups.py",
        (
            (
                """\
        if scope is FailureScope.GROUP:
            followers = list(group)
""",
                """\
        if scope is FailureScope.GROUP and not delivery.batch:
            followers = list(group)
""",
            ),
        ),
    ),
    Mutant(
        "a failure gives back the regular followers and forgets the urgent ones",
        "routing/groups.py",
        (
            (
                """\
            followers = list(group)
""",
                """\
            followers = list(group.regular)
""",
            ),
        ),
    ),
    Mutant(
        "a lost lease takes one message out of the middle of its group",
        "routing/groups.py",
        (
            (
                """\
        cut_off = messages[messages.index(delivery) :]
""",
                """\
        cut_off = [delivery]
""",
            ),
        ),
        hunter=Hunter.MACHINES,
    ),
    Mutant(
        "what is given back leaves its hold behind",
        "routing/groups.py",
        (
            (
                """\
        self._holds = [hold for hold in self._holds if hold[2] not in gone]
""",
                "",
            ),
        ),
    ),
    Mutant(
        "a group that lost its messages is not forgotten",
        "routing/groups.py",
        (
            (
                """\
        if not group and group.busy is None:
            self._drop(group)
""",
                "",
            ),
        ),
        hunter=Hunter.MACHINES,
    ),
    Mutant(
        "a message that ended still counts as in flight",
        "routing/groups.py",
        (
            (
                """\
        group.busy = None
        self.in_flight -= 1
""",
                """\
        group.busy = None
""",
            ),
        ),
    ),
    Mutant(
        "a message without a dispatch mode does not block its group",
        "message.py",
        (
            (
                """\
        return mode is None or mode is DispatchMode.BLOCK_ON_ERROR
""",
                """\
        return mode is DispatchMode.BLOCK_ON_ERROR
""",
            ),
        ),
    ),
    Mutant(
        "a message that lets others pass when it fails is not ordered at all",
        "message.py",
        (
            (
                """\
        return self.pointer.dispatch_mode is not DispatchMode.IMMEDIATE
""",
                """\
        return self.pointer.dispatch_mode in (None, DispatchMode.BLOCK_ON_ERROR)
""",
            ),
        ),
    ),
)
