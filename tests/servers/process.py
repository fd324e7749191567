"""What all test servers share: a process on a free loopback port that can be paused, killed and started again."""

import os
import pwd
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any

from tests.servers import free_port

STARTS = 5  # a port that was free may be taken by somebody else before the server binds it
START_LIMIT_S = 60.0
POLL_S = 0.02
ANSWER_LIMIT_S = 10.0


class ServerDiedError(Exception):
    """A server ended, or answered nothing, instead of starting."""


class ServerProcess:
    """One server. Its files and its log are in `folder`; killed and started again, it keeps its port and its data."""

    name: str
    runs_as: str | None = None  # the user, where it has to be another than ours

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.log = folder / f"{self.name}.log"
        for attempt in range(1, STARTS + 1):
            self._choose_ports()
            try:
                self.start()
            except ServerDiedError:
                if attempt == STARTS:
                    raise
            else:
                return

    @property
    def url(self) -> str:
        """What a client connects to."""
        raise NotImplementedError

    @property
    def pid(self) -> int:
        return self._process.pid

    def start(self) -> bool:
        """Start it and wait until it answers. Always true: whatever goes wrong is a ServerDiedError."""
        command = self._command()
        self._log_start = self.log.stat().st_size if self.log.exists() else 0
        with self.log.open("ab") as log:
            streams: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log}
            self._process = subprocess.Popen(command, cwd=self.folder, **streams, **self._identity())
        try:
            self._wait_until_it_answers()
        except BaseException:
            self.kill()
            raise
        return True

    def pause(self) -> None:
        """Let it hang: it accepts connections, but answers nothing. When this returns, all its threads stand still."""
        self._process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def resume(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """End it at once (SIGKILL), paused or not. What it wrote to its folder stays."""
        self._process.kill()
        self._process.wait()

    def log_since_start(self) -> str:
        with self.log.open("rb") as log:
            log.seek(self._log_start)
            return log.read().decode(errors="replace")

    def _identity(self) -> dict[str, Any]:
        """How subprocess is told of `runs_as`."""
        if self.runs_as is None:
            return {}
        return {"user": self.runs_as, "group": pwd.getpwnam(self.runs_as).pw_gid, "extra_groups": []}

    def _choose_ports(self) -> None:
        self.port = free_port()

    def _command(self) -> Sequence[str | Path]:
        """The command that starts it, with its configuration written."""
        raise NotImplementedError

    def _answers(self) -> bool:
        """Whether it speaks its protocol. May raise OSError."""
        raise NotImplementedError

    def _wait_until_it_answers(self) -> None:
        limit = time.monotonic() + START_LIMIT_S
        while time.monotonic() < limit:
            if (code := self._process.poll()) is not None:
                raise ServerDiedError(f"{self.name} ended with code {code} instead of starting; its log is {self.log}")
            try:
                if self._answers():
                    return
            except OSError:
                pass
            time.sleep(POLL_S)
        raise ServerDiedError(f"{self.name} answers nothing after {START_LIMIT_S:.0f} s; its log is {self.log}")


def answer_on(port: int, request: bytes = b"") -> bytes:
    """The first bytes a server on loopback says, after `request` or by itself."""
    with socket.create_connection(("127.0.0.1", port), timeout=ANSWER_LIMIT_S) as connection:
        connection.sendall(request)
        return connection.recv(65536)


def answers_http(port: int) -> bool:
    """Whether a server on loopback answers an HTTP request, with whatever status."""
    connection = HTTPConnection("127.0.0.1", port, timeout=ANSWER_LIMIT_S)
    try:
        connection.request("GET", "/")
        connection.getresponse().read()
    except HTTPException:
        return False
    finally:
        connection.close()
    return True


def answers_amqp(port: int) -> bool:
    """Whether a server on loopback offers AMQP 1.0 with SASL."""
    sasl_header = b"AMQP\x03\x01\x00\x00"
    return answer_on(port, sasl_header).startswith(sasl_header)
