"""How messages are spread over the requests to SQS."""

from collections import Counter
from math import ceil

from hypothesis import given, settings
from hypothesis import strategies as st

from flowcatalyst.queues.sqs.messages import MAX_ENTRIES, MAX_REQUEST_BYTES, Entry, fifo_batches, size_of


def entries_of(groups: list[int], sizes: list[int]) -> list[Entry]:
    return [
        {"MessageBody": "x" * size, "MessageGroupId": f"group-{group}"}
        for group, size in zip(groups, sizes, strict=True)
    ]


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 15), st.sampled_from([1, 100, MAX_REQUEST_BYTES // 3])), max_size=60))
def test_every_message_is_sent_once_in_order_within_its_group_and_no_group_twice_in_a_request(
    chosen: list[tuple[int, int]],
) -> None:
    groups, sizes = [group for group, _ in chosen], [size for _, size in chosen]
    entries = entries_of(groups, sizes)
    batches = list(fifo_batches(entries))
    sent = [position for batch in batches for position in batch]
    assert sorted(sent) == list(range(len(entries)))
    for group in set(groups):
        of_group = [position for position in sent if groups[position] == group]
        assert of_group == sorted(of_group)
    for batch in batches:
        assert len({groups[position] for position in batch}) == len(batch) <= MAX_ENTRIES
        assert sum(size_of(entries[position]) for position in batch) <= MAX_REQUEST_BYTES


@settings(deadline=None)
@given(st.lists(st.integers(0, 30), min_size=1, max_size=200))
def test_no_more_requests_are_made_than_order_and_their_size_ask_for(groups: list[int]) -> None:
    requests = list(fifo_batches(entries_of(groups, [10] * len(groups))))
    assert len(requests) == max(ceil(len(groups) / MAX_ENTRIES), max(Counter(groups).values()))
