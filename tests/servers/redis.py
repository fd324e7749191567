"""A real Redis for tests: on a free loopback port, in memory only, stopped at the end of the block."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.servers import program, running
from tests.servers.process import ServerProcess, answer_on


class RedisServer(ServerProcess):
    """One redis-server. It can be paused, killed and started again on its port, without its data."""

    name = "redis"

    @property
    def url(self) -> str:
        return self.url_for()

    def url_for(self, credentials: str = "") -> str:
        """`credentials` as in `user:password@`."""
        return f"redis://{credentials}127.0.0.1:{self.port}/0"

    def command(self, *words: str) -> str:
        """Execute a command; the raw answer."""
        parts = [word.encode() for word in words]
        lengths = b"".join(b"$%d\r\n%b\r\n" % (len(part), part) for part in parts)
        return answer_on(self.port, b"*%d\r\n" % len(parts) + lengths).decode()

    def _command(self) -> Sequence[str | Path]:
        options = {"port": self.port, "bind": "127.0.0.1", "save": "", "appendonly": "no", "dir": self.folder}
        arguments = [part for name, value in options.items() for part in (f"--{name}", str(value))]
        return [program("redis-server"), *arguments]

    def _answers(self) -> bool:
        return self.command("PING") == "+PONG\r\n"


@contextmanager
def redis_server(folder: Path) -> Iterator[RedisServer]:
    """A running Redis. Where there is none, the test is skipped loudly, or fails where servers are required."""
    with running(lambda: RedisServer(folder)) as server:
        yield server
