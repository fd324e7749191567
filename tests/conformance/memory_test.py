"""The memory queue, in each of its personalities, under the conformance suite, in virtual time."""

import pytest

from tests.conformance.bench import Bench
from tests.conformance.memory_bench import MemoryBench
from tests.conformance.queue_suite import QueueSuite
from tests.conformance.random_walk import Walk

pytestmark = pytest.mark.virtual_time


@pytest.mark.parametrize(("ordered", "selects_pools"), [(True, False), (False, False), (True, True)])
async def test_many_random_walks(ordered: bool, selects_pools: bool) -> None:
    for seed in range(100):
        bench = MemoryBench(ordered, selects_pools=selects_pools)
        await Walk(bench, seed, ordered=bench.capabilities.ordered_takeover).go()


class TestOrderedMemoryQueue(QueueSuite):
    @pytest.fixture
    def bench(self) -> Bench:
        return MemoryBench(ordered=True)


class TestMemoryQueueThatSelectsPools(QueueSuite):
    @pytest.fixture
    def bench(self) -> Bench:
        return MemoryBench(ordered=True, selects_pools=True)


class TestUnorderedMemoryQueue(QueueSuite):
    @pytest.fixture
    def bench(self) -> Bench:
        return MemoryBench(ordered=False)
