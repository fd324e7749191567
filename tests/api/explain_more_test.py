"""/monitoring/explain: situations of a router that is not as usual: it stands by, stops, or cannot look everywhere."""

from flowcatalyst.queues.memory import MemoryQueue
from tests.api.explain_test import explain
from tests.api.running import Running


async def test_what_may_wait_in_a_queue_that_cannot_be_searched_is_not_called_safe_to_send(router: Running) -> None:
    router.app.engine.queues["broker"] = MemoryQueue("broker", router.app.clock)
    try:
        found = await explain(router, "nope")
        assert found["safeToSendAgain"] is None
        assert found["sendAgainText"].startswith("Yes, unless it waits in a queue that could not be searched, or was ")
    finally:
        del router.app.engine.queues["broker"]
