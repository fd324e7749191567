"""Names to addresses, so that a name that hangs is nobody's trouble but its own.

The system's `getaddrinfo` blocks a thread, for many seconds if a name server does not answer, and cannot be stopped.
Here each lookup has a thread of its own, one per name however many ask for it, and nobody waits for it longer than a
few seconds. A thread that hangs stays with its name until it returns; who asks for that name meanwhile is told at once.
"""

import asyncio
import errno
import socket
import threading
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

from flowcatalyst.core.clock import Clock, SystemClock
from flowcatalyst.core.errors import NotLookedUpError
from flowcatalyst.core.waiters import Waiters
from flowcatalyst.http.shortage import shortage_of_files

Address = tuple[int, str]  # address family, numeric address

LOOKUP_LIMIT_S: Final = 5.0  # as long as the system's resolver waits for its first server
# A host that moved is followed within half a minute, and a busy name costs two lookups a minute.
FOUND_FOR_S: Final = 30.0
# Long enough that the retries of many messages share one lookup, short enough for a name that was made just now.
NOT_FOUND_FOR_S: Final = 3.0
MAX_NAMES: Final = 4096
MAX_THREADS: Final = 64
# The last threads are for names that resolved before: however many new names hang, what worked goes on working.
KEPT_FOR_KNOWN_NAMES: Final = 16


@dataclass(slots=True, eq=False)
class _Name:
    """What is known of a name, and who waits to know more."""

    host: str
    addresses: list[Address] = field(default_factory=list)  # of the latest lookup that found some
    last_error: str = ""  # of the latest lookup
    shortage: int | None = None  # error number, if the trouble was that of this machine
    had_no_thread: bool = False  # nobody was asked
    good_until: float = 0.0  # monotonic; then it is looked up again
    timer: asyncio.TimerHandle | None = None  # runs while a lookup is in time, with a thread or waiting for one
    hangs: bool = False  # its thread has not returned in time
    waiters: Waiters = field(default_factory=Waiters)


class SystemResolver:
    """The addresses the operating system knows for a host, in its order of preference.

    Raises `OSError` if there are none, and `NotLookedUpError` if it could not ask, since too many other names hang. All
    state belongs to the loop. A thread only reports to it.
    """

    def __init__(self, clock: Clock | None = None, getaddrinfo: Callable[..., list[Any]] | None = None) -> None:
        self._clock = clock or SystemClock()
        self._getaddrinfo = getaddrinfo or socket.getaddrinfo
        self._names: OrderedDict[str, _Name] = OrderedDict()  # used longest ago first
        self._in_line: list[_Name] = []  # lookups without a thread
        self._threads = 0

    def __repr__(self) -> str:
        return f"<SystemResolver names={len(self._names)} threads={self._threads} in_line={len(self._in_line)}>"

    async def __call__(self, host: str, port: int) -> list[Address]:
        name = self._names.get(host)
        if name is None:
            if len(self._names) >= MAX_NAMES:
                unused = next((one for one in self._names.values() if one.timer is None and not one.hangs), None)
                if unused is not None:
                    del self._names[unused.host]
            name = self._names[host] = _Name(host)
        self._names.move_to_end(host)
        if not name.hangs and self._clock.monotonic() >= name.good_until:
            loop = asyncio.get_running_loop()
            if name.timer is None:
                name.timer = loop.call_later(LOOKUP_LIMIT_S, self._too_late, name)
                self._in_line.append(name)
                self._start_threads(loop)
            await name.waiters.wait()
        if name.had_no_thread:
            raise NotLookedUpError(name.last_error)
        if name.shortage is not None:
            raise OSError(name.shortage, name.last_error)
        if name.last_error:
            raise OSError(name.last_error)
        return name.addresses

    def _start_threads(self, loop: asyncio.AbstractEventLoop) -> None:
        for name in tuple(self._in_line):
            free = MAX_THREADS - self._threads - (0 if name.addresses else KEPT_FOR_KNOWN_NAMES)
            if free > 0:
                self._in_line.remove(name)
                self._threads += 1
                # Not of a pool, which waits for its threads when the process ends.
                thread = threading.Thread(target=self._look_up, args=(loop, name), name="resolver", daemon=True)
                try:
                    thread.start()
                except RuntimeError as error:  # the process may have no more threads
                    loop.call_soon(self._returned, loop, name, [], str(error), errno.ENOMEM)

    def _look_up(self, loop: asyncio.AbstractEventLoop, name: _Name) -> None:
        """In the thread."""
        addresses: list[Address] = []
        last_error, shortage = "", None
        try:
            found = self._getaddrinfo(name.host, None, type=socket.SOCK_STREAM)
            addresses = [(family, str(sockaddr[0])) for family, _, _, _, sockaddr in found]
        except Exception as error:  # whatever it is: unreported, the name would seem to hang for ever
            last_error, shortage = str(error), shortage_of_files()
        with suppress(RuntimeError):  # the loop was closed meanwhile: nobody waits any more
            loop.call_soon_threadsafe(self._returned, loop, name, addresses, last_error, shortage)

    def _returned(
        self,
        loop: asyncio.AbstractEventLoop,
        name: _Name,
        addresses: list[Address],
        last_error: str,
        shortage: int | None,
    ) -> None:
        self._threads -= 1
        name.hangs = False
        if addresses:
            name.addresses = addresses
        self._tell(name, last_error or ("" if addresses else "it has no address"), shortage)
        self._start_threads(loop)

    def _too_late(self, name: _Name) -> None:
        if name in self._in_line:
            self._in_line.remove(name)
            self._tell(name, f"no thread was free in {LOOKUP_LIMIT_S:g} s", had_no_thread=True)
        else:
            name.hangs = True
            self._tell(name, f"no answer in {LOOKUP_LIMIT_S:g} s")

    def _tell(self, name: _Name, last_error: str, shortage: int | None = None, *, had_no_thread: bool = False) -> None:
        name.last_error, name.shortage, name.had_no_thread = last_error, shortage, had_no_thread
        name.good_until = self._clock.monotonic() + (NOT_FOUND_FOR_S if last_error else FOUND_FOR_S)
        if name.timer is not None:
            name.timer.cancel()
            name.timer = None
        name.waiters.wake()
