"""A real ActiveMQ Artemis for tests: AMQP on a free loopback port, its journal on disk."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

from tests.servers import running
from tests.servers.jvm import QUIET_LOG, Jars, JvmServer
from tests.servers.process import answers_amqp

_JARS = Jars("artemis")


class ArtemisServer(JvmServer):
    """One Artemis. `queues` exist from the start; any other a client makes by naming it with the capability "queue".

    Without that capability Artemis makes a topic, and what is sent before somebody listens is lost.
    """

    name = "artemis"
    jars = _JARS
    main = "ArtemisBroker"

    def __init__(
        self, folder: Path, *, user: str = "", password: str = "", queues: Sequence[str] = (), idle_s: float = 60.0
    ) -> None:
        self._user, self._password, self._queues = user, password, queues
        self._idle_ms = round(idle_s * 1000)  # a client that is silent for so long is dead
        super().__init__(folder)

    @property
    def url(self) -> str:
        return self.url_for(f"{quote(self._user)}:{quote(self._password)}@" if self._user else "")

    def url_for(self, credentials: str = "") -> str:
        """`credentials` as in `user:password@`."""
        return f"amqp://{credentials}127.0.0.1:{self.port}"

    def _command(self) -> Sequence[str | Path]:
        arguments = [self._user, self._password, str(self.port), str(self._idle_ms), *self._queues]
        return self.jars.command(self.main, self.folder / "data", *arguments, options=QUIET_LOG)

    def _answers(self) -> bool:
        return answers_amqp(self.port)


@contextmanager
def artemis_server(
    folder: Path, *, user: str = "", password: str = "", queues: Sequence[str] = (), idle_s: float = 60.0
) -> Iterator[ArtemisServer]:
    """A running Artemis. Where there is none, the test is skipped loudly, or fails where servers are required."""
    with running(lambda: ArtemisServer(folder, user=user, password=password, queues=queues, idle_s=idle_s)) as server:
        yield server
