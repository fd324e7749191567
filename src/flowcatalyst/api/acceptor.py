"""Takes new connections, some in each pass of the loop.

The server of uvloop takes one in a pass: behind a thousand strangers nobody else is let in for seconds. That of asyncio
takes all of them, and everything else waits.
"""

import asyncio
import errno
import socket
from collections.abc import Callable
from typing import Final

import structlog

from flowcatalyst.api.reception import Reception
from flowcatalyst.core.errors import LOCAL_SHORTAGES
from flowcatalyst.core.tasks import Tasks

ACCEPTS_PER_PASS: Final = 16
NO_CAPACITY_PAUSE_S: Final = 0.005
SHORTAGE_PAUSE_S: Final = 0.5  # when the machine has nothing to accept with

log = structlog.get_logger("flowcatalyst.web")


class Acceptor:
    """Makes connections of those who call a listening socket, from `start` to `stop`."""

    def __init__(
        self,
        listener: socket.socket,
        make_connection: Callable[[], asyncio.BaseProtocol],
        reception: Reception,
    ) -> None:
        self._listener = listener
        self._make_connection = make_connection
        self._reception = reception
        self._loop = asyncio.get_running_loop()
        self._tasks = Tasks()
        self._pause: asyncio.TimerHandle | None = None

    def start(self) -> None:
        self._pause = None
        self._loop.add_reader(self._listener, self._accept)

    async def stop(self) -> None:
        if self._pause is not None:
            self._pause.cancel()
        self._loop.remove_reader(self._listener)
        await self._tasks.cancel()

    def _accept(self) -> None:
        for _ in range(ACCEPTS_PER_PASS):
            if not self._reception.has_capacity:
                self._rest(NO_CAPACITY_PAUSE_S)
                return
            try:
                accepted, _ = self._listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in LOCAL_SHORTAGES:
                    log.warning("api_cannot_accept", action="api_cannot_accept", error=str(error))
                    self._rest(SHORTAGE_PAUSE_S)
                    return
                continue  # whoever called has gone already
            accepted.setblocking(False)
            self._reception.socket_opened()
            self._tasks.spawn(self._connect(accepted), "api connection")

    async def _connect(self, accepted: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(self._make_connection, accepted)
        except OSError as error:
            self._give_up(accepted)
            if error.errno not in (errno.ENOTCONN, errno.EBADF, *LOCAL_SHORTAGES):
                raise
        except asyncio.CancelledError:
            self._give_up(accepted)
            raise

    def _give_up(self, accepted: socket.socket) -> None:
        accepted.close()
        self._reception.socket_closed()

    def _rest(self, seconds: float) -> None:
        """Callers wait in the kernel meanwhile."""
        self._loop.remove_reader(self._listener)
        self._pause = self._loop.call_later(seconds, self.start)
