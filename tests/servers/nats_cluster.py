"""Three NATS servers that replicate their streams, for tests: on free loopback ports, any of them can be killed."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from tests.servers import free_port, running
from tests.servers.nats import NatsServer

NAMES = ("north", "east", "west")


class NatsMember(NatsServer):
    """One of the servers. They find each other by the ports they were all told of."""

    def __init__(self, folder: Path, member: str, ports: dict[str, int]) -> None:
        self.member = member
        self._ports = ports
        super().__init__(folder)

    def _configuration(self) -> dict[str, Any]:
        others = [f"nats://127.0.0.1:{port}" for name, port in self._ports.items() if name != self.member]
        cluster = {"name": "test", "listen": f"127.0.0.1:{self._ports[self.member]}", "routes": others}
        return {**super()._configuration(), "server_name": self.member, "cluster": cluster}


class NatsCluster:
    """Its members by name."""

    def __init__(self, members: Sequence[NatsMember]) -> None:
        self.members = {member.member: member for member in members}

    @property
    def addresses(self) -> str:
        """As they stand in a queueUri."""
        return ",".join(f"127.0.0.1:{member.port}" for member in self.members.values())

    @property
    def urls(self) -> list[str]:
        return [member.url for member in self.members.values()]


@contextmanager
def nats_cluster(folder: Path) -> Iterator[NatsCluster]:
    """A running cluster. It takes some seconds until it has agreed on a leader."""
    ports = {name: free_port() for name in NAMES}
    with ExitStack() as stack:
        members = []
        for name in NAMES:
            start = partial(NatsMember, folder / name, name, ports)
            members.append(stack.enter_context(running(start)))
        yield NatsCluster(members)
