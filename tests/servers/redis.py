"""A real Redis for tests: on a free loopback port, in memory only, stopped at the end of the block."""

import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.servers import REQUIRED, ServerMissingError, program

STARTS = 5  # a port that was free may be taken by somebody else before Redis binds it


class RedisServer:
    """One redis-server. It can be paused, killed and started again on its port, without its data."""

    def __init__(self, folder: Path) -> None:
        self._program = _redis_server()
        self._folder = folder
        for _ in range(STARTS):
            self.port = _free_port()
            if self.start():
                return
        raise RuntimeError(f"redis-server does not start; its log is in {folder}")

    @property
    def url(self) -> str:
        return self.url_for()

    def url_for(self, credentials: str = "") -> str:
        """`credentials` as in `user:password@`."""
        return f"redis://{credentials}127.0.0.1:{self.port}/0"

    def start(self) -> bool:
        """Start it and wait until it answers; whether it does."""
        options = {"port": self.port, "bind": "127.0.0.1", "save": "", "appendonly": "no", "dir": self._folder}
        arguments = [part for name, value in options.items() for part in (f"--{name}", str(value))]
        with (self._folder / "redis.log").open("ab") as log:
            self._process = subprocess.Popen([self._program, *arguments], stdout=log, stderr=log)
        while self._process.poll() is None:
            if self._answers():
                return True
        return False

    def pause(self) -> None:
        """Let it hang: it accepts connections, but answers nothing."""
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """End it, paused or not. Its data is gone."""
        self._process.kill()
        self._process.wait()

    def command(self, *words: str) -> str:
        """Execute a command; the raw answer."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=10) as connection:
            parts = [word.encode() for word in words]
            lengths = b"".join(b"$%d\r\n%b\r\n" % (len(part), part) for part in parts)
            connection.sendall(b"*%d\r\n" % len(parts) + lengths)
            return connection.recv(65536).decode()

    def _answers(self) -> bool:
        try:
            return self.command("PING") == "+PONG\r\n"
        except OSError:
            return False


@contextmanager
def redis_server(folder: Path) -> Iterator[RedisServer]:
    """A running Redis. Where there is none, the test is skipped loudly, or fails where servers are required."""
    server = RedisServer(folder)
    try:
        yield server
    finally:
        server.kill()


def _redis_server() -> str:
    try:
        return program("redis-server", "redis-server")
    except ServerMissingError as error:
        if REQUIRED:
            pytest.fail(f"a real server is required here: {error}")
        pytest.skip(f"NOT TESTED: {error}")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
