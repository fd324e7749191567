"""A witness that knows which of several router processes a request came from."""

import asyncio
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from flowcatalyst.simulation.history import Event, Kind
from tests.support.router_process import RouterProcess
from tests.support.witness import Witness

LOCAL, REMOTE, INODE = 1, 2, 9  # columns of /proc/net/tcp


class WitnessOfTwo(Witness):
    """Attempts carry the name of their router in `Event.pool`, which no rule for receivers looks at."""

    def __init__(self, seed: int = 1) -> None:
        super().__init__(0.0, seed)
        self._routers: dict[str, RouterProcess] = {}
        self._senders: dict[asyncio.StreamWriter, str] = {}

    def watch(self, name: str, router: RouterProcess) -> None:
        self._routers[name] = router
        self.router_started()

    def lost_its_broker(self, name: str, acks_take_s: float) -> None:
        """The broker gives away what this router has.

        Nobody can call back a request, so what it has in flight may reach us once more, while it is in flight, too. And
        so may what it had an answer for `acks_take_s` ago: its ack may not have arrived.
        """
        since = self.history.events[-1].at - acks_take_s
        sender = {event.message: event.pool for event in self.history if event.kind is Kind.ATTEMPT}
        for event in list(self.history):
            if event.kind is Kind.ANSWER and event.at > since and sender[event.message] == name:
                self.history.add(Kind.UNKNOWN, event.message)
        for writer, exchange in self._latest.items():
            if self._senders[writer] == name and exchange.ended_as is None:
                self._end(exchange, Kind.UNKNOWN)

    def attempts_of(self, name: str) -> list[Event]:
        return [event for event in self.history if event.kind is Kind.ATTEMPT and event.pool == name]

    def _arrived(self, message_id: str, writer: asyncio.StreamWriter) -> bool:
        if not super()._arrived(message_id, writer):
            return False
        if writer not in self._senders:
            self._senders[writer] = self._whose(writer)
        self.history.events[-1] = replace(self.history.events[-1], pool=self._senders[writer])
        return True

    def _whose(self, writer: asyncio.StreamWriter) -> str:
        """The router that has the other end of a connection open."""
        here, there = (_as_kernel_writes(*writer.get_extra_info(name)) for name in ("sockname", "peername"))
        rows = (line.split() for line in Path("/proc/net/tcp").read_text().splitlines())
        inode = next(row[INODE] for row in rows if (row[LOCAL], row[REMOTE]) == (there, here))
        for name, router in self._routers.items():
            for link in Path(f"/proc/{router.process.pid}/fd").iterdir():
                with suppress(FileNotFoundError):  # closed since
                    if str(link.readlink()) == f"socket:[{inode}]":
                        return name
        raise AssertionError(f"{there} is no router that we know")


def _as_kernel_writes(host: str, port: int) -> str:
    return f"{int.from_bytes(bytes(map(int, host.split('.'))), 'little'):08X}:{port:04X}"
