"""`make servers`: every broker a developer may want, on free ports, until Ctrl-C."""

import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

from tests.servers import ServerMissingError
from tests.servers.activemq import ActiveMqServer
from tests.servers.artemis import ArtemisServer
from tests.servers.elasticmq import ElasticMqServer
from tests.servers.moto import MotoServer
from tests.servers.nats import NatsServer
from tests.servers.postgres import DATABASE, SUPERUSER, PostgresServer
from tests.servers.process import ServerDiedError, ServerProcess
from tests.servers.redis import RedisServer

SERVERS: dict[str, Callable[[Path], ServerProcess]] = {
    "redis": RedisServer,
    "postgres": PostgresServer,
    "nats": NatsServer,
    "elasticmq": ElasticMqServer,
    "moto": MotoServer,
    "activemq": ActiveMqServer,
    "artemis": ArtemisServer,
}
# What to add to a server's URL to have a queueUri.
QUEUE_PATHS = {
    "nats": "/ORDERS?consumer=router&create=true",
    "elasticmq": f"/{ElasticMqServer.account}/orders.fifo?create=true",
    "moto": f"/{MotoServer.account}/orders.fifo?create=true",
    "activemq": "/orders",
    "artemis": "/orders",
    "postgres": f"/{DATABASE}?queue=orders",
}
SETTINGS = "flowcatalyst.toml"


def main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM):  # SIGINT, too: a shell starts background jobs with it ignored
        signal.signal(number, _interrupt)
    with ExitStack() as cleanup:
        folder = Path(cleanup.enter_context(tempfile.TemporaryDirectory(prefix="flowcatalyst-servers-")))
        try:
            started = list(start_all(folder, cleanup))
            if not started:
                sys.exit("No server could be started.")
            _explain(started, folder)
            signal.pause()
        except KeyboardInterrupt:
            print("\nStopping the servers.")


def start_all(folder: Path, cleanup: ExitStack) -> Iterator[ServerProcess]:
    """Those that can be had. `cleanup` kills exactly these."""
    for name, start in SERVERS.items():
        print(f"Starting {name} ...", flush=True)
        try:
            server = start(folder / name)
        except (ServerMissingError, ServerDiedError) as error:
            print(f"Without {name}: {error}", flush=True)
        else:
            cleanup.callback(server.kill)
            yield server


def _explain(started: list[ServerProcess], folder: Path) -> None:
    rows = [(server.name, server.url, _queue_uri(server), str(server.pid)) for server in started]
    rows.insert(0, ("server", "url", "queueUri", "pid"))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    print()
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    (folder / SETTINGS).write_text(_settings(started))
    print("\nIn another terminal, a router on all of these queues, then messages for one, then what arrived:")
    print(f"  .venv/bin/flowcatalyst up --config {folder / SETTINGS} --data-dir {folder / 'data'}")
    print(f"  .venv/bin/flowcatalyst seed --config {folder / SETTINGS} --queue {started[-1].name} --count 100")
    print("  curl http://127.0.0.1:8080/api/test/stats")
    print(f"\nData and logs are in {folder} until Ctrl-C.", flush=True)


def _settings(started: list[ServerProcess]) -> str:
    """A queue on each of the brokers, for a router to read."""
    queues = [(server.name, _queue_uri(server)) for server in started if _queue_uri(server)]
    users = f'\n[postgres]\nuser = "{SUPERUSER}"\n'
    return "\n".join(f'[[queues]]\nname = "{name}"\nuri = "{uri}"\n' for name, uri in queues) + users


def _queue_uri(server: ServerProcess) -> str:
    """Without a user: that is in the settings."""
    path = QUEUE_PATHS.get(server.name)
    url = server.url_for("", "").rstrip("/") if isinstance(server, PostgresServer) else server.url
    return f"{url}{path}" if path else ""


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    main()
