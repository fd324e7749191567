"""From a configuration to queues, and the ways into them."""

import sys
from collections.abc import Iterator
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path

import pytest

from flowcatalyst.cli.queue_access import StraightWayIn
from flowcatalyst.control.settings import Settings
from flowcatalyst.core.clock import SystemClock
from flowcatalyst.core.errors import ConfigurationError
from flowcatalyst.queues.amqp import queue as activemq
from flowcatalyst.queues.amqp.queue import AmqpLogin
from flowcatalyst.queues.contract import Outgoing
from flowcatalyst.queues.embedded.queue import EmbeddedQueue
from flowcatalyst.queues.embedded.store import EmbeddedStore
from flowcatalyst.queues.factory import QueueFactory
from flowcatalyst.queues.nats import queue as nats
from flowcatalyst.queues.nats.queue import NatsLogin
from flowcatalyst.queues.raw import RawConfig
from flowcatalyst.queues.settings import EmbeddedSettings, QueueConfig

EMBEDDED = QueueConfig("orders", "embedded:orders")
SQS = QueueConfig("bills", "https://sqs.us-east-1.amazonaws.com/123456789012/bills.fifo")
SQS_BY_NAME = QueueConfig("bills", "sqs://bills.fifo?region=eu-west-1")
NATS = QueueConfig("events", "nats://127.0.0.1:9/EVENTS?consumer=router")
NATS_TLS = QueueConfig("events", "tls://127.0.0.1:9/EVENTS?consumer=router")
AMQP = QueueConfig("jobs", "amqp://127.0.0.1:9/jobs")
AMQPS = QueueConfig("jobs", "amqps://127.0.0.1:9/jobs")
POSTGRES = QueueConfig("tasks", "postgresql://127.0.0.1:9/shop?queue=tasks")
BROKERS = [SQS, SQS_BY_NAME, NATS, NATS_TLS, AMQP, AMQPS, POSTGRES]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    assert list(tmp_path.iterdir()) == [], "to make a queue touches no disk"


def made(folder: Path, **settings: object) -> QueueFactory:
    clock = SystemClock()
    store = EmbeddedStore(folder / "queue.db", clock)
    return QueueFactory(store, Settings.model_validate({"data_dir": folder, **settings}), clock)


@pytest.mark.parametrize("config", [EMBEDDED, *BROKERS], ids=lambda config: config.uri.partition(":")[0])
async def test_every_kind_of_queue_can_be_made_and_opened_without_its_broker(
    config: QueueConfig, tmp_path: Path
) -> None:
    factory = made(tmp_path)
    assert factory.problem_with(config) == ""
    queue = await factory.open(config)
    assert queue.name == config.name
    await factory.close(config.name, queue)
    await queue.close()


@pytest.mark.parametrize(
    ("uri", "said"),
    [
        ("kafka://h/q", "has no known scheme"),
        ("embedded:", "has no queue name"),
        ("sqs://a.b", "has an invalid SQS queue name"),
        ("https://sqs.us-east-1.amazonaws.com/bills", "is not an SQS queue URL"),
        ("nats://h/S", "has no consumer"),
        ("amqp://h", "has no queue name"),
        ("amqp://user:s3cret@h/q", "has an @"),
    ],
)
async def test_a_queue_that_cannot_be_made_is_named_with_the_reason(folder: Path, uri: str, said: str) -> None:
    factory, config = made(folder), QueueConfig("mine", uri)
    problem = factory.problem_with(config)
    assert problem.startswith(f"queue mine: its queueUri {said}")
    assert "s3cret" not in problem
    with pytest.raises(ConfigurationError) as caught:
        await factory.open(config)
    assert str(caught.value) == problem
    with pytest.raises(ConfigurationError):
        factory.add_publishers([config])
    assert factory.publishers == {}


@pytest.mark.parametrize(
    ("config", "ours", "hidden", "said"),
    [
        (SQS, "sqs", "aiobotocore", "queue bills: SQS needs the package aiobotocore: "),
        (SQS, "sqs", "botocore", "queue bills: SQS needs the package aiobotocore: "),
        (NATS, "nats", "nats", "queue events: NATS needs the package nats-py: "),
        (AMQP, "amqp", "proton", "queue jobs: ActiveMQ needs the package python-qpid-proton, which is built with a C"),
        (AMQP, "amqp", "cproton", "queue jobs: ActiveMQ needs the package python-qpid-proton, which is built with a C"),
        (POSTGRES, "postgres", "asyncpg", "queue tasks: PostgreSQL needs the package asyncpg: "),
    ],
)
def test_without_the_client_of_a_broker_its_queues_say_what_to_install(
    folder: Path, monkeypatch: pytest.MonkeyPatch, config: QueueConfig, ours: str, hidden: str, said: str
) -> None:
    for name in list(sys.modules):
        if name.partition(".")[0] == hidden or name.startswith(
            (f"flowcatalyst.queues.{ours}.", "flowcatalyst.storage.postgres", "proton")
        ):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, hidden, None)
    factory = made(folder)
    problem = factory.problem_with(config)
    assert problem.startswith(said)
    extra, goal = ("activemq", "activemq") if ours == "amqp" else (ours, "extras")
    assert problem.endswith(
        f": in a checkout make {goal}, or pip install '.[{extra}]'; where FlowCatalyst comes from an index, "
        f"pip install 'flowcatalyst[{extra}]'"
    )
    assert factory.problem_with(EMBEDDED) == ""


def test_another_import_that_fails_is_not_mistaken_for_a_missing_package(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "flowcatalyst.queues.amqp.queue", None)
    with pytest.raises(ImportError):
        made(folder).problem_with(AMQP)


async def test_there_is_one_way_into_each_queue(folder: Path) -> None:
    factory = made(folder)
    factory.add_publishers([EMBEDDED, SQS, NATS, AMQP])
    assert list(factory.publishers) == ["orders", "bills", "events", "jobs"]
    before = dict(factory.publishers)
    factory.add_publishers([EMBEDDED, SQS, NATS, AMQP])
    assert factory.publishers == before
    await factory.close_publishers()


async def test_the_way_into_a_broker_is_not_the_queue_that_is_polled(tmp_path: Path) -> None:
    """A standby publishes too, and a queue that is no longer polled is closed."""
    factory = made(tmp_path)
    factory.add_publishers([NATS])
    polled = await factory.open(NATS)
    assert polled is not factory.publishers["events"]
    await factory.close("events", polled)
    await factory.close_publishers()


async def test_an_embedded_queue_is_shared_by_those_who_poll_and_those_who_publish(tmp_path: Path) -> None:
    factory = made(tmp_path)
    factory.add_publishers([EMBEDDED])
    polled = await factory.open(EMBEDDED)
    assert polled is factory.publishers["orders"]
    other_name = await factory.open(QueueConfig("again", "embedded:orders"))
    assert other_name is polled
    await factory.close("orders", polled)
    [published] = await factory.publishers["orders"].publish([Outgoing("{}")])
    assert published.broker_id
    await polled.close()


async def test_an_embedded_queue_with_another_lease_is_another_object_on_the_same_messages(tmp_path: Path) -> None:
    factory = made(tmp_path, embedded=EmbeddedSettings(visibility_s=60))
    factory.add_publishers([EMBEDDED])
    polled = await factory.open(QueueConfig("orders", "embedded:orders", visibility_s=5))
    known = factory.publishers["orders"]
    assert isinstance(known, EmbeddedQueue)
    assert polled is not known
    assert (polled.capabilities.visibility_s, known.capabilities.visibility_s) == (5, 60)
    await factory.close("orders", polled)
    await known.close()


async def test_the_name_in_the_configuration_counts_before_the_name_in_the_store(folder: Path) -> None:
    factory = made(folder)
    factory.add_publishers([QueueConfig("orders", "embedded:jobs"), AMQP, QueueConfig("other", "embedded:bills")])
    assert isinstance(factory.publishers["orders"], EmbeddedQueue)
    assert isinstance(factory.publishers["jobs"], activemq.ActiveMqQueue)
    assert factory.publishers["bills"] is factory.publishers["other"]  # nobody else has that name


async def test_the_command_line_finds_an_embedded_queue_whose_name_is_not_that_of_its_uri(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path)
    async with aclosing(StraightWayIn(settings, QueueConfig("orders", "embedded:jobs"), create=True)) as queue:
        await queue.publish([Outgoing("hello", "g")])
    store = EmbeddedStore(tmp_path / "queue.db", SystemClock())
    jobs = EmbeddedQueue(store, "jobs")
    await jobs.open()
    assert [delivery.body for delivery in await jobs.receive(10, 0)] == ["hello"]
    await store.close()


async def test_the_ways_in_follow_a_changed_configuration(folder: Path) -> None:
    factory = made(folder)
    factory.add_publishers([EMBEDDED, SQS, NATS, AMQP])
    before = dict(factory.publishers)
    wanted = {config.name: config for config in (SQS, NATS_TLS, QueueConfig("new", "amqp://127.0.0.1:9/new"))}
    await factory.drop_publishers(wanted)
    factory.add_publishers(wanted.values())
    assert factory.publishers.keys() == {"orders", "bills", "events", "new"}
    assert factory.publishers["bills"] is before["bills"], "it did not change"
    assert factory.publishers["events"] is not before["events"]
    assert factory.publishers["orders"] is before["orders"], "what is in an embedded queue can still be replayed to it"
    await factory.close_publishers()


async def test_a_queue_that_moves_between_a_broker_and_the_store_has_the_way_in_of_where_it_is(folder: Path) -> None:
    factory = made(folder)
    at_broker, embedded = QueueConfig("q", NATS.uri), QueueConfig("q", "embedded:q")
    factory.add_publishers([at_broker])
    await factory.drop_publishers({"q": embedded})
    factory.add_publishers([embedded])
    assert isinstance(factory.publishers["q"], EmbeddedQueue)


async def test_logins_of_the_settings_reach_the_client_and_show_no_secret(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logins: list[NatsLogin | AmqpLogin] = []

    def remembered(*args: object, login: NatsLogin | AmqpLogin, **more: object) -> None:
        logins.append(login)

    monkeypatch.setattr(nats, "NatsQueue", remembered)
    monkeypatch.setattr(activemq, "ActiveMqQueue", remembered)
    secrets = {"user": "ann", "password": "s3cret"}
    factory = made(folder, nats={**secrets, "token": "t0ken"}, activemq=secrets)
    assert factory.problem_with(NATS) == factory.problem_with(AMQP) == ""
    assert [(login.user, login.password) for login in logins] == [("ann", "s3cret")] * 2
    assert "s3cret" not in repr(logins)
    assert "t0ken" not in repr(logins)


@pytest.mark.parametrize("config", [EMBEDDED, *BROKERS], ids=lambda config: config.uri.partition(":")[0])
def test_where_groups_come_from_the_body_the_router_keeps_their_order_itself(config: QueueConfig, folder: Path) -> None:
    factory = made(folder)
    raw = RawConfig("http://h/", "P")
    factory.add_publishers([config])
    as_usual = factory.publishers[config.name].capabilities
    for one, keeps in ((raw, as_usual.ordered_redelivery), (replace(raw, group="$.g"), False)):
        other = made(folder)
        other.add_publishers([replace(config, raw=one)])
        assert other.publishers[config.name].capabilities.ordered_redelivery is keeps


async def test_an_embedded_queue_that_becomes_raw_is_another_one(tmp_path: Path) -> None:
    factory = made(tmp_path)
    pointers = await factory.open(EMBEDDED)
    raw = await factory.open(replace(EMBEDDED, raw=RawConfig("http://h/", "P")))
    assert isinstance(raw, EmbeddedQueue)
    assert (raw.pool, raw is pointers, await factory.open(EMBEDDED) is pointers) == ("P", False, True)
    await raw.close()
    await pointers.close()
