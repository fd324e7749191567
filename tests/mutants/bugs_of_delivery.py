"""Bugs beyond the simulated world: answers, ids, connections, names, storage. Tests of their own have to catch them."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

from flowcatalyst.control import metrics
from flowcatalyst.core.clock import IdSource
from flowcatalyst.core.targets import endpoint_of
from flowcatalyst.http import answer, resolver
from flowcatalyst.http.contract import WHOLE, Content
from flowcatalyst.http.http1.client import Http1Client
from flowcatalyst.http.http1.connection import Connection
from flowcatalyst.http.http1.pool import OriginPool
from flowcatalyst.queues.embedded import lanes as embedded_lanes
from flowcatalyst.queues.embedded import take as embedded_take
from flowcatalyst.queues.sqs import messages as sqs_messages
from tests.mutants.mutant import Bugs, instead_of, set_everywhere

BUGS: Final = Bugs()

REFUSALS = "tests/unit/interpret_test.py::TestResponses"


# Answers


@BUGS.add("a body that was not read in full is a success", test=REFUSALS)
def _() -> None:
    @instead_of(answer, "read_answer")
    def read_answer(original: Any, body: bytes, content: Content = WHOLE) -> Any:
        return original(body, replace(content, truncated=False))


@BUGS.add("a body that is coded is a success", test=REFUSALS)
def _() -> None:
    @instead_of(answer, "read_answer")
    def read_answer(original: Any, body: bytes, content: Content = WHOLE) -> Any:
        return original(body, replace(content, coding=""))


@BUGS.add("a body that ends with its connection is a success", test=REFUSALS)
def _() -> None:
    @instead_of(answer, "read_answer")
    def read_answer(original: Any, body: bytes, content: Content = WHOLE) -> Any:
        return original(body, replace(content, framed=True))


@BUGS.add("an ack that is neither true nor false is a success", test=REFUSALS)
def _() -> None:
    @instead_of(answer, "read_answer")
    def read_answer(original: Any, body: bytes, content: Content = WHOLE) -> Any:
        found = original(body, content)
        return found if b'"ack":false' in body.replace(b" ", b"") or found.unclear else answer.Answer(True)


@BUGS.add("a refusal that is not written in UTF-8 is a success", test=REFUSALS)
def _() -> None:
    @instead_of(answer, "_read_unusual")
    def read_unusual(original: Any, body: bytes, content: Content) -> Any:
        return answer.Answer(True)


# Ids


@BUGS.add(
    "two processes make the same ids",
    test="tests/unit/clock_test.py",
)
def _() -> None:
    @instead_of(IdSource, "new_id")
    def new_id(original: Any, self: Any) -> str:
        self._stamp = self._stamp + 1
        return f"{int(self._clock.wall() * 1000):012x}{7:03x}{self._stamp:04x}"


# Connections and names


@BUGS.add(
    "a connection is used again although it has unread bytes",
    test="tests/unit/http/http1_connection_test.py::"
    "test_a_request_is_not_written_to_a_kept_connection_that_has_unread_bytes",
)
def _() -> None:
    @instead_of(Connection, "send")
    def send(original: Any, self: Any, has_unread: bool = False) -> None:
        original(self)


@BUGS.add(
    "an origin that sent unasked data is trusted again",
    test="tests/unit/http/http1_reuse_test.py::test_an_origin_that_ever_sent_unasked_data_gets_a_new_connection_for_every_request",
)
def _() -> None:
    @instead_of(OriginPool, "sent_unasked")
    def sent_unasked(original: Any, self: Any) -> None:
        return None


@BUGS.add(
    "a connection is used again at once, before more can come",
    test="tests/unit/http/http1_reuse_test.py::"
    "test_no_connection_is_used_again_before_an_origin_was_quiet_for_a_rest_after_its_first_answer",
)
def _() -> None:
    @instead_of(OriginPool, "exchange_ended")
    def exchange_ended(original: Any, self: Any, connection: Any) -> None:
        self._proven, self._exchanges = True, 0
        original(self, connection)


@BUGS.add(
    "only the first address of a host is tried",
    test="tests/unit/http/http1_connecting_test.py::test_an_address_that_does_not_answer_does_not_use_up_the_time_of_the_next_one",
)
def _() -> None:
    @instead_of(Http1Client, "_dial_first")
    async def dial_first(original: Any, self: Any, pool: Any, target: Any, addresses: list[str]) -> Any:
        return await original(self, pool, target, addresses[:1])


@BUGS.add(
    "a name is looked up for each request",
    test="tests/unit/resolver_test.py::test_a_name_is_looked_up_once_for_all_who_ask_and_kept_for_a_while",
)
def _() -> None:
    @instead_of(resolver.SystemResolver, "_tell")
    def tell(original: Any, self: Any, name: Any, last_error: str, *args: Any, **kwargs: Any) -> None:
        original(self, name, last_error, *args, **kwargs)
        name.good_until = name.good_until if last_error else 0.0


@BUGS.add(
    "a name that is not known is looked up for each request",
    test="tests/unit/resolver_test.py::test_an_unknown_name_is_asked_for_again_only_after_a_pause",
)
def _() -> None:
    set_everywhere(resolver, "NOT_FOUND_FOR_S", 0.0)


@BUGS.add(
    "names share two threads",
    test="tests/unit/resolver_test.py::test_names_that_hang_leave_threads_to_names_that_resolved_before",
)
def _() -> None:
    set_everywhere(resolver, "MAX_THREADS", 18)


@BUGS.add(
    "names that hang may have every thread",
    test="tests/unit/resolver_test.py::test_names_that_hang_leave_threads_to_names_that_resolved_before",
)
def _() -> None:
    set_everywhere(resolver, "KEPT_FOR_KNOWN_NAMES", 0)


@BUGS.add(
    "each path is a metric series",
    test="tests/api/metrics_test.py::test_paths_of_an_origin_are_one_series_with_the_worst_state",
)
def _() -> None:
    metrics.origin_of = endpoint_of  # type: ignore[attr-defined]


# Real queues


@BUGS.add(
    "the embedded queue brings more for a pool than it has room for",
    test="tests/unit/embedded_queue_pools_test.py::test_a_pool_gets_what_it_has_room_for_and_a_full_one_nothing",
)
def _() -> None:
    @instead_of(embedded_take, "_share_out")
    def share_out(original: Any, limit: int, ready: Sequence[str], free_capacity: Any) -> Any:
        return original(limit, ready, None)


@BUGS.add(
    "the embedded queue hands out groups by the age of their first message",
    test="tests/unit/embedded_queue_pools_test.py::"
    "test_groups_that_fail_again_and_again_do_not_come_before_those_that_are_ready_longer",
)
def _() -> None:
    def by_age(original: Any, connection: Any, *args: Any) -> None:
        original(connection, *args)
        connection.execute("UPDATE lanes SET turn = (SELECT min(seq) FROM messages WHERE lane = lanes.id)")

    instead_of(embedded_lanes, "end_leases")(by_age)
    instead_of(embedded_lanes, "refresh_lanes")(by_age)


@BUGS.add(
    "a group is twice in one request to SQS, which may fail in part",
    test="tests/unit/sqs_batches_test.py",
)
def _() -> None:
    @instead_of(sqs_messages, "fifo_batches")
    def fifo_batches(original: Any, entries: Sequence[Any]) -> Iterator[list[int]]:
        for first in range(0, len(entries), 10):
            yield list(range(len(entries)))[first : first + 10]
