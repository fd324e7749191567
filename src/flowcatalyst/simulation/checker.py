"""The checker: one pure function that judges a history by all rules.

It knows nothing of how the history came about. Simulated runs, `flowcatalyst simulate --check` and the log of a real
receiver under a router that is killed are all judged by it.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

from flowcatalyst.simulation.history import Event
from flowcatalyst.simulation.rules import bounds, endings, loss, order, ownership, people, progress
from flowcatalyst.simulation.rules.common import Promises, Violation

Rule = Callable[[Sequence[Event], Promises], Iterator[Violation]]

RULES: Final[Mapping[str, Rule]] = {
    "one attempt per group": order.one_attempt_per_group,
    "one attempt per message": order.one_attempt_per_message,
    "first attempts in order": order.first_attempts_in_order,
    "ack before next": order.ack_before_next,
    "order across queues": ownership.order_across_queues,
    "only what is ours is started": ownership.only_what_is_ours_is_started,
    "leases are kept": ownership.leases_are_kept,
    "leaves its queue for a reason": loss.leaves_its_queue_for_a_reason,
    "nothing lost": loss.nothing_lost,
    "another attempt has a cause": loss.another_attempt_has_a_cause,
    "acked once": loss.acked_once,
    "newest receipt": loss.newest_receipt,
    "in flight within concurrency": bounds.in_flight_within_concurrency,
    "messages within capacity": bounds.messages_within_capacity,
    "starts within the rate": bounds.starts_within_the_rate,
    "waits as long as asked": bounds.waits_as_long_as_asked,
    "waits no longer than asked": progress.waits_no_longer_than_asked,
    "isolation": bounds.isolation,
    "progress": progress.progress,
    "nothing paused starts": people.nothing_paused_starts,
    "what is released goes on": progress.what_is_released_goes_on,
    "what is skipped is not tried again": people.what_is_skipped_is_not_tried_again,
    "a skip takes effect": people.a_skip_takes_effect,
    "endpoints share their pool": progress.endpoints_share_their_pool,
    "recovered endpoints are tried": progress.recovered_endpoints_are_tried,
    "received no more than needed": progress.received_no_more_than_needed,
    "nothing leaks": endings.nothing_leaks,
    "metrics tell the truth": endings.metrics_tell_the_truth,
    "drains when faults stop": endings.drains_when_faults_stop,
}
# What a receiver alone can tell, without looking into router and queue.
RECEIVER_RULES: Final = (
    "one attempt per group",
    "one attempt per message",
    "first attempts in order",
    "another attempt has a cause",
    "nothing lost",
)


def check(
    events: Sequence[Event], promises: Promises, rules: Iterable[str] = tuple(RULES)
) -> list[tuple[str, Violation]]:
    """Every violation, with the name of the rule it breaks, in the order of the rules."""
    return [(name, violation) for name in rules for violation in RULES[name](events, promises)]
