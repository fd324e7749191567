"""A way to learn that Artemis has written to its disk what it was told on a session.

Artemis never answers an acceptance. It answers the declaration of a transaction, and only when everything that went
before on that session is on disk. So an empty transaction is declared, and discharged when the answer has come.
"""

from collections.abc import Awaitable, Callable
from typing import Protocol
from uuid import uuid4

from proton import Delivery, Described, Endpoint, Message, Sender, Session, Terminus, symbol, ulong

_DECLARE, _DISCHARGE = ulong(0x31), ulong(0x32)


class Wire(Protocol):
    """What a fence needs of its connection."""

    def flush(self) -> None: ...

    def wait_until(self, reached: Callable[[], bool], seconds: float) -> Awaitable[bool]: ...


class DiskFence:
    """The link of one session to the coordinator of transactions; opened when it is first needed."""

    def __init__(self, session: Session, wire: Wire) -> None:
        self._session = session
        self._wire = wire
        self._sender: Sender | None = None
        self._tags = 0

    async def passed(self, limit_s: float) -> bool:
        """Whether the broker said in time that all before is on its disk."""
        if self._sender is None or _is_closed(self._sender):
            self._sender = self._session.sender(f"fence-{uuid4().hex}")
            self._sender.target.type = Terminus.COORDINATOR
            self._sender.target.capabilities.put_object(symbol("amqp:local-transactions"))
            self._sender.open()
            self._wire.flush()
        sender = self._sender
        if not await self._wire.wait_until(lambda: sender.credit > 0 or _is_closed(sender), limit_s):
            return False
        declared = self._send(sender, Described(_DECLARE, [None]))
        self._wire.flush()
        in_time = await self._wire.wait_until(
            lambda: bool(declared.settled or declared.remote_state != 0) or _is_closed(sender), limit_s
        )
        data = declared.remote.data
        declared.settle()
        if not in_time or not data:
            return False
        self._send(sender, Described(_DISCHARGE, [data[0], False])).settle()
        self._wire.flush()
        return True

    def _send(self, sender: Sender, action: Described) -> Delivery:
        self._tags += 1
        delivery = sender.delivery(str(self._tags))
        sender.stream(bytes(Message(body=action).encode()))
        sender.advance()
        return delivery


def _is_closed(sender: Sender) -> bool:
    return bool(sender.state & Endpoint.REMOTE_CLOSED)
