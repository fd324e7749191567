"""A program: moto's server, with one request at its queues at a time.

moto answers each request in a thread of its own but does not guard its queues. Two deletes at once rebuild the same
list, and the slower one brings back what the faster one had removed and confirmed.
"""

import functools
import sys
import threading
from collections.abc import Callable
from typing import Any

from moto.server import main
from moto.sqs.models import Queue, SQSBackend

_turn = threading.RLock()
GUARDED = (
    "send_message",
    "send_message_batch",
    "receive_message",
    "delete_message",
    "delete_message_batch",
    "change_message_visibility",
    "change_message_visibility_batch",
)


def guard(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def in_turn(*args: Any, **kwargs: Any) -> Any:
        with _turn:
            return method(*args, **kwargs)

    return in_turn


def let_others(wait: Callable[..., Any]) -> Callable[..., Any]:
    """A poll that waits for messages keeps nobody from sending some."""

    @functools.wraps(wait)
    def meanwhile(*args: Any, **kwargs: Any) -> Any:
        _turn.release()
        try:
            return wait(*args, **kwargs)
        finally:
            _turn.acquire()

    return meanwhile


def guard_queues() -> None:
    for name in GUARDED:
        setattr(SQSBackend, name, guard(getattr(SQSBackend, name)))
    Queue.wait_for_messages = let_others(Queue.wait_for_messages)  # type: ignore[method-assign]


if __name__ == "__main__":
    guard_queues()
    main(sys.argv[1:])
