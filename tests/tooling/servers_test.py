"""The real servers behave as tests rely on: they answer, keep what they should keep, and keep their port."""

import asyncio
import os
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import nats
import pytest
from aiobotocore.session import get_session  # type: ignore[import-untyped]
from moto.sqs.models import Queue as MotoQueue
from moto.sqs.models import SQSBackend
from nats.errors import Error as NatsError

import tests.servers
import tests.servers.__main__ as every
from tests.servers import NOT_TESTED, ServerMissingError, jvm, moto_in_turn, needs, running
from tests.servers.activemq import activemq_server
from tests.servers.artemis import artemis_server
from tests.servers.elasticmq import ElasticMqServer, elasticmq_server
from tests.servers.moto import MotoServer, moto_server
from tests.servers.nats import nats_server
from tests.servers.postgres import postgres_server
from tests.servers.process import ServerDiedError, ServerProcess
from tests.servers.redis import RedisServer, redis_server

ROOT = Path(__file__).parent.parent.parent
KINDS: list[Callable[[Path], AbstractContextManager[ServerProcess]]] = [
    redis_server,
    postgres_server,
    nats_server,
    elasticmq_server,
    moto_server,
    activemq_server,
    artemis_server,
]


@asynccontextmanager
async def sqs_client(server: ElasticMqServer | MotoServer) -> AsyncIterator[Any]:
    credentials = {"aws_access_key_id": "test", "aws_secret_access_key": "test"}
    session = get_session()
    async with session.create_client(
        "sqs", endpoint_url=server.url, region_name=server.region, **credentials
    ) as client:
        yield client


async def fifo_queue(client: Any, name: str) -> str:
    attributes = {"FifoQueue": "true", "ContentBasedDeduplication": "true"}
    created = await client.create_queue(QueueName=name, Attributes=attributes)
    return str(created["QueueUrl"])


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_a_server_answers_can_be_paused_and_killed_and_comes_back_on_its_port(
    kind: Callable[[Path], AbstractContextManager[ServerProcess]], tmp_path: Path
) -> None:
    with kind(tmp_path) as server:
        before = (server.port, server.url, server.pid)
        assert server._answers()
        server.pause()
        assert state_of(server) == "T"
        server.resume()
        server.pause()
        server.kill()  # paused or not
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", server.port), timeout=5)
        assert server.start()
        assert server._answers()
        assert (server.port, server.url) == before[:2]
        assert server.pid != before[2]
    assert server._process.returncode == -signal.SIGKILL


def state_of(server: ServerProcess) -> str:
    return Path(f"/proc/{server.pid}/stat").read_text().rpartition(")")[2].split()[0]


async def test_nats_keeps_a_stream_when_it_is_killed(tmp_path: Path) -> None:
    with nats_server(tmp_path) as server:
        client = await nats.connect(server.url)
        await client.jetstream().add_stream(name="orders", subjects=["orders.>"])
        await client.jetstream().publish("orders.1", b"first")
        server.kill()
        await client.close()
        server.start()
        client = await nats.connect(server.url)
        assert (await client.jetstream().get_msg("orders", 1)).data == b"first"
        await client.close()


async def test_nats_remembers_every_confirmed_ack_of_a_work_queue_when_it_is_killed(tmp_path: Path) -> None:
    """2.9 does not, nor does a current one on a stream that keeps what was acked: there our client remembers for it."""
    with nats_server(tmp_path) as server:
        if server.version < (2, 10):
            forgets = f"nats-server {server.version} forgets acks when it is killed; where Go is, a newer one is built"
            pytest.skip(NOT_TESTED + forgets)
        client = await nats.connect(server.url)
        await client.jetstream().add_stream(name="orders", subjects=["orders.>"], retention="workqueue")
        for number in range(20):
            await client.jetstream().publish("orders.1", str(number).encode())
        messages = await (await client.jetstream().pull_subscribe("orders.>", durable="router")).fetch(20)
        await asyncio.gather(*(message.ack_sync() for message in messages[::2]))
        server.kill()
        await client.close()
        server.start()
        client = await nats.connect(server.url)
        information = await client.jetstream().stream_info("orders")
        assert information.state.messages == 10
        await client.close()


async def test_nats_asks_for_a_password_over_tls(tmp_path: Path) -> None:
    with nats_server(tmp_path, user="router", password="secret", tls=True) as server:
        trust = ssl.create_default_context(cafile=str(server.ca_path))
        client = await nats.connect(server.url, tls=trust)
        assert client.is_connected
        await client.close()
        for wrong in ("", "router:wrong@"):
            with pytest.raises(NatsError):
                await nats.connect(server.url_for(wrong), tls=trust, allow_reconnect=False, error_cb=ignore)


async def ignore(_: Exception) -> None:
    """An error that the caller gets as an exception, too."""


async def test_elasticmq_keeps_queues_and_every_confirmed_message_when_it_is_killed(tmp_path: Path) -> None:
    with elasticmq_server(tmp_path) as server:
        bodies = [str(number) for number in range(20)]
        async with sqs_client(server) as client:
            url = await fifo_queue(client, "orders.fifo")
            assert url == f"{server.url}/{server.account}/orders.fifo"
            for number in range(20):
                await fifo_queue(client, f"another-{number}.fifo")
            for body in bodies:
                await client.send_message(QueueUrl=url, MessageBody=body, MessageGroupId="g")
            server.kill()
        server.start()
        async with sqs_client(server) as client:
            assert len((await client.list_queues())["QueueUrls"]) == 21  # all, as soon as it answers
            attributes = (await client.get_queue_attributes(QueueUrl=url, AttributeNames=["All"]))["Attributes"]
            assert attributes["FifoQueue"] == "true"
            assert attributes["QueueArn"] == f"arn:aws:sqs:{server.region}:{server.account}:orders.fifo"
            assert await bodies_of(client, url) == bodies


async def bodies_of(client: Any, url: str) -> list[str]:
    """Everything in the queue, in order, deleted as it comes."""
    bodies = []
    while batch := (await client.receive_message(QueueUrl=url, MaxNumberOfMessages=10)).get("Messages", []):
        for message in batch:
            bodies.append(message["Body"])
            await client.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
    return bodies


async def test_moto_serves_sqs_and_forgets_everything_when_it_is_killed(tmp_path: Path) -> None:
    with moto_server(tmp_path) as server:
        async with sqs_client(server) as client:
            url = await fifo_queue(client, "orders.fifo")
            assert url == f"{server.url}/{server.account}/orders.fifo"
            await client.send_message(QueueUrl=url, MessageBody="first", MessageGroupId="g")
            assert await bodies_of(client, url) == ["first"]
        server.kill()
        server.start()
        async with sqs_client(server) as client:
            assert (await client.list_queues()).get("QueueUrls", []) == []


def test_moto_forgets_no_delete_when_many_come_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in moto_in_turn.GUARDED:
        monkeypatch.setattr(SQSBackend, name, moto_in_turn.guard(getattr(SQSBackend, name)))
    monkeypatch.setattr(MotoQueue, "wait_for_messages", moto_in_turn.let_others(MotoQueue.wait_for_messages))
    backend = SQSBackend("eu-central-1", MotoServer.account)
    queue = backend.create_queue("orders", {})
    for number in range(100):
        backend.send_message("orders", str(number))
    receipts: list[str] = []
    while batch := backend.receive_message("orders", 10, 0, 600):
        receipts += [str(message.receipt_handle) for message in batch]
    often = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)  # as if the process were paused again and again
    try:
        with ThreadPoolExecutor(4) as threads:
            list(threads.map(lambda receipt: backend.delete_message("orders", receipt), receipts))
    finally:
        sys.setswitchinterval(often)
    assert len(receipts) == 100
    assert queue._messages == []


class Broken(ServerProcess):
    """Never starts."""

    name = "broken"

    def _command(self) -> list[str | Path]:
        return ["false"]

    def _answers(self) -> bool:
        return False


def absent(_: Path) -> ServerProcess:
    raise ServerMissingError("it is not installed")


def test_a_server_that_ends_instead_of_starting_is_an_error_that_names_its_log(tmp_path: Path) -> None:
    with pytest.raises(ServerDiedError, match=f"broken ended with code 1 .* {tmp_path / 'broken.log'}"):
        Broken(tmp_path)


def test_a_server_that_answers_nothing_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.servers.process.START_LIMIT_S", 0.05)
    monkeypatch.setattr(Broken, "_command", lambda self: ["sleep", "60"])
    server = Broken.__new__(Broken)
    with pytest.raises(ServerDiedError, match=r"answers nothing"):
        server.__init__(tmp_path)  # type: ignore[misc]
    assert server._process.returncode == -signal.SIGKILL


def test_a_missing_server_skips_or_fails_where_servers_are_required(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for required, outcome in ((False, pytest.skip.Exception), (True, pytest.fail.Exception)):
        monkeypatch.setattr(tests.servers, "REQUIRED", required)
        with pytest.raises(outcome, match="it is not installed"), running(lambda: absent(tmp_path)):
            pass


@pytest.fixture
def maven(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Maven that counts its calls in a file and names one jar."""
    calls, jar, script = tmp_path / "calls", tmp_path / "some.jar", tmp_path / "mvn"
    lines = [f"echo call >> {calls}", "for last; do :; done", f"touch {jar}", f"echo {jar} > ${{last#*=}}"]
    script.write_text("\n".join(["#!/bin/sh", *lines]))
    script.chmod(0o755)
    (tmp_path / "some.pom.xml").write_text("<project/>")
    monkeypatch.setattr(jvm, "HERE", tmp_path)
    monkeypatch.setattr(jvm, "CACHE", tmp_path / "cache")
    monkeypatch.setitem(needs.JARS, "some", ())
    monkeypatch.setattr(jvm, "program", lambda name: str(script) if name == "mvn" else name)
    return calls


def test_maven_is_asked_once_and_again_when_a_jar_is_gone_or_the_pom_changes(maven: Path, tmp_path: Path) -> None:
    def calls() -> int:
        jvm.Jars("some").command("Main")
        return len(maven.read_text().split())

    assert (calls(), calls()) == (1, 1)
    (tmp_path / "some.jar").unlink()
    assert (calls(), calls()) == (2, 2)
    (tmp_path / "some.pom.xml").write_text("<project></project>")
    assert (calls(), calls()) == (3, 3)
    assert not list((tmp_path / "cache").glob("*.*"))  # nothing half made


def test_processes_that_start_at_once_ask_maven_once(maven: Path) -> None:
    with ThreadPoolExecutor(8) as threads:
        commands = list(threads.map(lambda _: jvm.Jars("some").command("Main"), range(8)))
    assert all(command == commands[0] for command in commands)
    assert maven.read_text() == "call\n"


def test_a_failing_maven_is_one_sentence(maven: Path, tmp_path: Path) -> None:
    (tmp_path / "mvn").write_text("#!/bin/sh\necho '[ERROR] no way to the jars'\necho '[ERROR] more'\nexit 1\n")
    with pytest.raises(ServerMissingError) as caught:
        jvm.Jars("some").command("Main")
    assert str(caught.value) == "Maven cannot fetch the jars of some: no way to the jars"


def test_make_servers_starts_what_it_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(every, "SERVERS", {"absent": absent, "broken": Broken, "redis": RedisServer})
    with ExitStack() as cleanup:
        (redis,) = every.start_all(tmp_path, cleanup)
        assert redis._answers()
    assert redis._process.returncode == -signal.SIGKILL
    said = capsys.readouterr().out
    assert "Without absent: it is not installed\n" in said
    assert "Without broken: broken ended with code 1" in said


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_make_servers_stops_what_it_started(number: signal.Signals) -> None:
    code = "import tests.servers.__main__ as every; every.SERVERS = {'redis': every.RedisServer}; every.main()"
    process = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    with process:
        assert process.stdout
        lines: list[str] = []
        while not lines or "until Ctrl-C" not in lines[-1]:
            lines.append(process.stdout.readline())
            assert lines[-1], lines
        (row,) = [line.split() for line in lines if line.startswith("redis ")]
        assert any("flowcatalyst up --config" in line for line in lines)
        os.kill(int(row[-1]), 0)
        process.send_signal(number)
        assert process.stdout.read() == "\nStopping the servers.\n"
    assert process.returncode == 0
    with pytest.raises(ProcessLookupError):
        os.kill(int(row[-1]), 0)
