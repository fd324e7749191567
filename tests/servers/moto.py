"""moto, the AWS imitation from PyPI, for tests: SQS among others, on a free loopback port, in memory only."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from tests.servers import ServerMissingError, running
from tests.servers.process import ServerProcess, answers_http

IN_TURN: Final = Path(__file__).with_name("moto_in_turn.py")


class MotoServer(ServerProcess):
    """One moto_server. It keeps everything in memory: killed and started again, it has lost queues and messages."""

    name = "moto"
    region = "eu-central-1"
    account = "123456789012"

    def __init__(self, folder: Path) -> None:
        if find_spec("moto") is None or find_spec("flask") is None:
            raise ServerMissingError("moto is not installed (pip install 'moto[server]')")
        super().__init__(folder)

    @property
    def url(self) -> str:
        """The SQS endpoint."""
        return f"http://127.0.0.1:{self.port}"

    def _command(self) -> Sequence[str | Path]:
        # -P: or what it imports would be found in this folder first, where a moto.py is.
        return [sys.executable, "-P", IN_TURN, "-H", "127.0.0.1", "-p", str(self.port)]

    def _answers(self) -> bool:
        return answers_http(self.port)


@contextmanager
def moto_server(folder: Path) -> Iterator[MotoServer]:
    """A running moto. Where there is none, the test is skipped loudly, or fails where servers are required."""
    with running(lambda: MotoServer(folder)) as server:
        yield server
