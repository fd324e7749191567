"""A real NATS server with JetStream for tests: on a free loopback port, its streams on disk."""

import json
import re
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tests.servers import ServerMissingError, needs, program, running
from tests.servers.certificate import Certificate
from tests.servers.golang import built_nats
from tests.servers.nats_jwt import Operator
from tests.servers.process import ServerProcess, answer_on


class NatsServer(ServerProcess):
    """One nats-server. With `tls`, clients find the certificate to trust in `ca_path`."""

    name = "nats"

    def __init__(
        self, folder: Path, *, user: str = "", password: str = "", tls: bool = False, operator: Operator | None = None
    ) -> None:
        self._program = nats_program()
        self._user, self._password = user, password
        self._operator = operator
        self._certificate = Certificate(folder) if tls else None
        super().__init__(folder)

    @property
    def url(self) -> str:
        return self.url_for(f"{self._user}:{self._password}@" if self._user else "")

    def url_for(self, credentials: str = "") -> str:
        """`credentials` as in `user:password@`."""
        return f"{'tls' if self._certificate else 'nats'}://{credentials}127.0.0.1:{self.port}"

    @property
    def ca_path(self) -> Path:
        assert self._certificate, "this server was started without TLS"
        return self._certificate.path

    @property
    def version(self) -> tuple[int, int]:
        said = subprocess.run([self._program, "--version"], capture_output=True, text=True, check=True).stdout
        found = re.search(r"v(\d+)\.(\d+)", said)
        assert found, said
        return int(found[1]), int(found[2])

    def _command(self) -> Sequence[str | Path]:
        # NATS reads JSON: its own format is a superset.
        configuration = self.folder / "nats.conf"
        configuration.write_text(json.dumps(self._configuration(), indent=2))
        return [self._program, "-c", configuration]

    def _configuration(self) -> dict[str, Any]:
        jetstream: dict[str, Any] = {"store_dir": str(self.folder / "jetstream")}
        if self.version >= (2, 10):
            jetstream["sync_interval"] = "always"
        configuration: dict[str, Any] = {"listen": f"127.0.0.1:{self.port}", "jetstream": jetstream}
        if self._user:
            configuration["authorization"] = {"user": self._user, "password": self._password}
        if self._operator:
            configuration |= self._operator.configuration()
        if self._certificate:
            certificate, key = str(self._certificate.path), str(self._certificate.key_path)
            configuration["tls"] = {"cert_file": certificate, "key_file": key}
        return configuration

    def _answers(self) -> bool:
        return answer_on(self.port).startswith(b"INFO ")


def nats_program() -> str:
    """A current one where Go is or was; else, and where the build fails, Debian's."""
    if needs.builds_nats():
        with suppress(ServerMissingError):  # said loudly where it happened, and at the end of the run
            return built_nats()
    return program("nats-server")


@contextmanager
def nats_server(folder: Path, **login: Any) -> Iterator[NatsServer]:
    """A running NATS. Where there is none, the test is skipped loudly, or fails where servers are required."""
    with running(lambda: NatsServer(folder, **login)) as server:
        yield server
