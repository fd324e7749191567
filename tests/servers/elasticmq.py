"""ElasticMQ, an SQS server independent of AWS, for tests: on a free loopback port, queues and messages on disk."""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.servers import running
from tests.servers.jvm import Jars, JvmServer
from tests.servers.process import answers_http

_JARS = Jars("elasticmq")
# By default H2 writes a commit half a second later, and a kill would lose what had been confirmed.
_DATABASE = "jdbc:h2:{folder}/messages;WRITE_DELAY=0"
_CONFIGURATION = """\
include classpath("application.conf")
pekko.loglevel = "INFO"
node-address {{ protocol = http, host = "127.0.0.1", port = {port}, context-path = "" }}
rest-sqs {{ enabled = true, bind-hostname = "127.0.0.1", bind-port = {port}, sqs-limits = strict }}
rest-stats.enabled = false
aws {{ region = "{region}", accountId = "{account}" }}
messages-storage {{ enabled = true, uri = "{database}" }}
"""


class ElasticMqServer(JvmServer):
    """One ElasticMQ. Clients create its queues by the API; it believes any credentials.

    Killed and started again, it has everything that was confirmed. But it has forgotten which groups were locked, and
    messages that were in flight come after the younger ones of their group: it does not keep order over a restart.
    """

    name = "elasticmq"
    jars = _JARS
    main = "ElasticMq"
    region = "eu-central-1"
    account = "123456789012"

    @property
    def url(self) -> str:
        """The SQS endpoint."""
        return f"http://127.0.0.1:{self.port}"

    def _command(self) -> Sequence[str | Path]:
        database = _DATABASE.format(folder=self.folder)
        values = {"port": self.port, "region": self.region, "account": self.account, "database": database}
        configuration = self.folder / "elasticmq.conf"
        configuration.write_text(_CONFIGURATION.format(**values))
        return self.jars.command(self.main, database, options=[f"-Dconfig.file={configuration}"])

    def _answers(self) -> bool:
        # It serves before it has restored its queues, and who asks then is told that they do not exist.
        said = self.log_since_start()
        stored = re.search(r"^Restores (\d+) queues$", said, re.MULTILINE)
        return stored is not None and said.count("Restored ") >= int(stored[1]) and answers_http(self.port)


@contextmanager
def elasticmq_server(folder: Path) -> Iterator[ElasticMqServer]:
    """A running ElasticMQ. Where there is none, the test is skipped loudly, or fails where servers are required."""
    with running(lambda: ElasticMqServer(folder)) as server:
        yield server
