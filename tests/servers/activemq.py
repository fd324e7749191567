"""A real ActiveMQ Classic for tests: AMQP and OpenWire on free loopback ports, KahaDB on disk. And a JMS producer."""

import subprocess
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote, urlencode

from tests.servers import free_port, running
from tests.servers.certificate import Certificate
from tests.servers.jvm import QUIET_LOG, Jars, JvmServer
from tests.servers.process import answers_amqp

_JARS = Jars("activemq")


class ActiveMqServer(JvmServer):
    """One ActiveMQ Classic 6. Clients make its queues by using them; a message must be durable to survive a kill."""

    name = "activemq"
    jars = _JARS
    main = "ActiveMqBroker"

    def __init__(
        self, folder: Path, *, user: str = "", password: str = "", tls: bool = False, idle_s: float = 30.0
    ) -> None:
        self._user, self._password = user, password
        self._idle_ms = round(idle_s * 1000)  # a client that is silent for so long is dead
        self._certificate = Certificate(folder) if tls else None
        super().__init__(folder)

    @property
    def url(self) -> str:
        """For AMQP 1.0."""
        return self.url_for(f"{quote(self._user)}:{quote(self._password)}@" if self._user else "")

    def url_for(self, credentials: str = "") -> str:
        """`credentials` as in `user:password@`."""
        return f"amqp://{credentials}127.0.0.1:{self.port}"

    @property
    def openwire_url(self) -> str:
        """For JMS clients of ActiveMQ."""
        credentials = {"jms.userName": self._user, "jms.password": self._password} if self._user else {}
        return f"tcp://127.0.0.1:{self.openwire_port}?{urlencode(credentials)}".rstrip("?")

    @property
    def ca_path(self) -> Path:
        """The certificate to trust on `tls_port`."""
        assert self._certificate, "this server was started without TLS"
        return self._certificate.path

    def _choose_ports(self) -> None:
        self.port, self.openwire_port, self.tls_port = free_port(), free_port(), free_port()

    def _command(self) -> Sequence[str | Path]:
        options = list(QUIET_LOG)
        connectors = [f"tcp://127.0.0.1:{self.openwire_port}"]
        if self._certificate:
            connectors.append(f"amqp+ssl://127.0.0.1:{self.tls_port}")
            options.append(f"-Djavax.net.ssl.keyStore={self._certificate.keystore_path}")
            options.append(f"-Djavax.net.ssl.keyStorePassword={self._certificate.password}")
        amqp = f"amqp://127.0.0.1:{self.port}?transport.wireFormat.idleTimeout={self._idle_ms}"
        connectors.append(amqp)  # the last to start: when it answers, all do
        data = self.folder / "data"
        return self.jars.command(self.main, data, self._user, self._password, *connectors, options=options)

    def _answers(self) -> bool:
        return answers_amqp(self.port)


@contextmanager
def activemq_server(
    folder: Path, *, user: str = "", password: str = "", tls: bool = False, idle_s: float = 30.0
) -> Iterator[ActiveMqServer]:
    """A running ActiveMQ. Where there is none, the test is skipped loudly, or fails where servers are required."""
    with running(lambda: ActiveMqServer(folder, user=user, password=password, tls=tls, idle_s=idle_s)) as server:
        yield server


def send_by_jms(url: str, queue: str, messages: Iterable[tuple[str, str]]) -> None:
    """Send (group, body) pairs as a JMS application does, all or none; `url` is a server's `openwire_url`."""
    lines = [f"{group}\t{body}" for group, body in messages]
    assert not any("\n" in line or "\r" in line for line in lines), "one message is one line"
    subprocess.run(_JARS.command("JmsProducer", url, queue), input="\n".join(lines).encode(), check=True, timeout=60)
