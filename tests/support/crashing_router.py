"""The test build of the command: `python -m tests.support.crashing_router up ...` kills itself at a named point.

`TEST_CRASH_AT=after_receive:3` ends the process by SIGKILL when the point is reached for the third time. The
product knows nothing of this variable: only here are methods of the real classes wrapped before the real command runs.
"""

import os
import signal
import sys
from collections.abc import Callable
from functools import wraps
from typing import Any, Final

from flowcatalyst.cli.main import main
from flowcatalyst.control.dead_letters import DeadLetters
from flowcatalyst.http.http1.client import Http1Client
from flowcatalyst.queues.embedded import jobs as embedded_jobs
from flowcatalyst.queues.embedded.queue import EmbeddedQueue
from flowcatalyst.router.pool import Pool
from flowcatalyst.router.settler import Settler
from flowcatalyst.storage.sqlite import SqliteWriter

VARIABLE: Final = "TEST_CRASH_AT"

Reached = Callable[[], None]


def kill_at(times: int) -> Reached:
    """A function that ends the process when it is called for the n-th time."""
    left = times

    def reached() -> None:
        nonlocal left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    return reached


def before(owner: Any, name: str, reached: Reached) -> None:
    """Call `reached` before each call of a method or function."""
    real = getattr(owner, name)

    @wraps(real)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        reached()
        return real(*args, **kwargs)

    setattr(owner, name, wrapped)


def after(owner: Any, name: str, reached: Reached) -> None:
    """Call `reached` after each call of a method or function that does not raise."""
    real = getattr(owner, name)

    @wraps(real)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        result = real(*args, **kwargs)
        reached()
        return result

    setattr(owner, name, wrapped)


def after_await(owner: Any, name: str, reached: Reached, counts: Callable[[Any], bool] = lambda _: True) -> None:
    """Call `reached` after each call of an async method whose result `counts`."""
    real = getattr(owner, name)

    @wraps(real)
    async def wrapped(*args: Any, **kwargs: Any) -> Any:
        result = await real(*args, **kwargs)
        if counts(result):
            reached()
        return result

    setattr(owner, name, wrapped)


def after_ack_commit(reached: Reached) -> None:
    acks: list[None] = []  # of the transaction under way
    real: Any = SqliteWriter._commit

    @wraps(real)
    def commit(*args: Any) -> None:
        acks.clear()
        real(*args)
        if acks:
            reached()

    after(embedded_jobs, "ack", lambda: acks.append(None))
    setattr(SqliteWriter, "_commit", commit)  # noqa: B010


POINTS: Final[dict[str, Callable[[Reached], None]]] = {
    # A batch is leased, nothing of it is routed.
    "after_receive": lambda reached: after_await(EmbeddedQueue, "receive", reached, counts=bool),
    # An attempt is counted, no byte of it is sent.
    "before_request": lambda reached: before(Http1Client, "post", reached),
    # A 200 is in hand, nothing is concluded from it.
    "after_response": lambda reached: after_await(
        Http1Client, "post", reached, counts=lambda response: response.status == 200
    ),
    # The group has moved on, the ack waits for its batch.
    "after_verdict": lambda reached: after(Settler, "ack", reached),
    # Messages are deleted in a transaction that is not committed.
    "before_ack_commit": lambda reached: after(embedded_jobs, "ack", reached),
    # They are gone for good, but nobody in the router was told.
    "after_ack_commit": after_ack_commit,
    # A dead letter is durable, its message still in the queue.
    "after_dead_letter_recorded": lambda reached: after_await(DeadLetters, "record", reached),
    # A message is about to be given back.
    "before_nack": lambda reached: before(EmbeddedQueue, "nack", reached),
    # Stopping: the pool starts nothing more, what waited in it is on its way back.
    "during_drain": lambda reached: after(Pool, "drain", reached),
}


def install(wanted: str) -> None:
    """Make the process die as the variable says."""
    point, _, times = wanted.partition(":")
    if point not in POINTS or not times.isdecimal() or times == "0":
        sys.exit(f"{VARIABLE}: {wanted!r} is not `point:n` with one of {', '.join(POINTS)}")
    POINTS[point](kill_at(int(times)))


if __name__ == "__main__":
    if wanted := os.environ.get(VARIABLE):
        install(wanted)
    main()
