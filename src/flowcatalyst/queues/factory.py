"""From a queueUri to a queue."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from pydantic import SecretStr

from flowcatalyst.core.clock import Clock
from flowcatalyst.core.errors import ConfigurationError
from flowcatalyst.core.extras import needs_extra
from flowcatalyst.core.message import Capabilities
from flowcatalyst.queues.address import (
    AmqpAddress,
    EmbeddedAddress,
    NatsAddress,
    PostgresAddress,
    SqsAddress,
    parse_queue_uri,
)
from flowcatalyst.queues.contract import BrokerQueue, Queue
from flowcatalyst.queues.embedded.queue import EmbeddedQueue
from flowcatalyst.queues.embedded.store import EmbeddedStore
from flowcatalyst.queues.raw import RawConfig
from flowcatalyst.queues.settings import BrokerSettings, QueueConfig

if TYPE_CHECKING:
    from flowcatalyst.queues.postgres.store import PostgresStore

DEFAULT_VISIBILITY_S: Final = 60.0


class QueueFactory:
    """Makes the queues of a configuration, and keeps a way into each of them for whoever publishes.

    Queues of the embedded store are shared between the two. Those of a broker are published to over a connection of
    their own, made when first needed, so that a standby can publish too.
    """

    def __init__(self, store: EmbeddedStore, settings: BrokerSettings, clock: Clock) -> None:
        self.publishers: dict[str, BrokerQueue] = {}  # by the name in the configuration
        self._embedded: dict[str, EmbeddedQueue] = {}  # by the name in the store
        self._configs: dict[str, QueueConfig] = {}  # of publishers that are not embedded
        self._store = store
        # By server, database and schema: their queues share connections, and one registration as an owner.
        self._postgres_stores: dict[PostgresAddress, PostgresStore] = {}
        self._settings = settings
        self._clock = clock

    def problem_with(self, config: QueueConfig) -> str:
        """A sentence about a configuration that no queue can be made of; empty if one can."""
        try:
            self._make(config)
        except ConfigurationError as error:
            return f"queue {config.name}: {error}"
        return ""

    def add_publishers(self, configs: Iterable[QueueConfig]) -> None:
        """Make a way into each of these queues, whether or not we poll it, unless there is one."""
        for config in configs:
            if name := _embedded_name(config):
                self.publishers[config.name] = self._embedded.setdefault(name, self._make_embedded(config, name))
            elif self._configs.get(config.name) != config:
                self._configs[config.name] = config
                self.publishers[config.name] = self._make(config)
        for name, queue in self._embedded.items():
            self.publishers.setdefault(name, queue)  # dead letters know it by its name in the store

    async def drop_publishers(self, wanted: Mapping[str, QueueConfig]) -> None:
        """Close the ways into queues of brokers that are gone or have changed."""
        for name in [name for name, config in self._configs.items() if wanted.get(name) != config]:
            del self._configs[name]
            await self.publishers.pop(name).close()

    async def open_publishers(self) -> None:
        """None of them has to reach its broker for that."""
        for queue in self.publishers.values():
            await queue.open()

    async def close_publishers(self) -> None:
        """Those of brokers; the embedded store closes its own."""
        for name in self._configs:
            await self.publishers[name].close()

    async def open(self, config: QueueConfig) -> Queue:
        """The open queue of a configuration. Raises `ConfigurationError` if there is a problem with it."""
        if problem := self.problem_with(config):
            raise ConfigurationError(problem)
        queue: BrokerQueue
        if not (name := _embedded_name(config)):
            queue = self._make(config)
        else:
            made = self._make_embedded(config, name)
            known = self._embedded.setdefault(name, made)
            is_as_known = (known.capabilities, known.pool) == (made.capabilities, made.pool)
            queue = known if is_as_known else made
        await queue.open()
        return queue

    async def close(self, name: str, queue: Queue) -> None:
        """A queue that is no longer polled. Embedded ones stay open: one may still publish to them."""
        if queue not in self._embedded.values():
            await queue.close()

    def _make(self, config: QueueConfig) -> BrokerQueue:
        queue: BrokerQueue
        match parse_queue_uri(config.uri):
            case EmbeddedAddress(name):
                return self._make_embedded(config, name)
            case SqsAddress() as address:
                queue = self._sqs(config, address)
            case NatsAddress() as address:
                queue = self._nats(config, address)
            case AmqpAddress() as address:
                queue = self._activemq(config, address)
            case PostgresAddress() as address:
                queue = self._postgres(config, address)
        if config.raw is not None:
            queue.capabilities = _of_its_groups(queue.capabilities, config.raw)
        return queue

    def _make_embedded(self, config: QueueConfig, name: str) -> EmbeddedQueue:
        visibility_s = config.visibility_s or self._settings.embedded.visibility_s
        if config.raw is None:
            return EmbeddedQueue(self._store, name, visibility_s=visibility_s)
        queue = EmbeddedQueue(self._store, name, visibility_s=visibility_s, pool=config.raw.pool)
        queue.capabilities = _of_its_groups(queue.capabilities, config.raw)
        return queue

    # The clients of brokers are imported when the first queue needs them: each takes a while.

    def _sqs(self, config: QueueConfig, address: SqsAddress) -> BrokerQueue:
        with needs_extra("sqs", "aiobotocore", "botocore", "aiohttp", what="SQS", package="aiobotocore"):
            from flowcatalyst.queues.sqs.queue import SqsQueue

        settings = self._settings.sqs
        return SqsQueue(
            config.name,
            address,
            self._clock,
            visibility_s=config.visibility_s or DEFAULT_VISIBILITY_S,
            endpoint_override=settings.endpoint_override,
            default_region=settings.region,
            long_poll_s=settings.wait_time_s,
            max_batch=settings.max_messages,
        )

    def _nats(self, config: QueueConfig, address: NatsAddress) -> BrokerQueue:
        with needs_extra("nats", "nats", what="NATS", package="nats-py"):
            from flowcatalyst.queues.nats.queue import NatsLogin, NatsQueue

        settings = self._settings.nats
        login = NatsLogin(
            user=settings.user,
            password=_revealed(settings.password),
            token=_revealed(settings.token),
            credentials_file=settings.credentials_file,
            ca_file=settings.ca_file,
        )
        visibility_s = config.visibility_s or DEFAULT_VISIBILITY_S
        foreign = config.raw is not None
        return NatsQueue(config.name, address, self._clock, visibility_s=visibility_s, login=login, foreign=foreign)

    def _activemq(self, config: QueueConfig, address: AmqpAddress) -> BrokerQueue:
        package = "python-qpid-proton, which is built with a C compiler"
        with needs_extra("activemq", "proton", "cproton", "_cproton", what="ActiveMQ", package=package):
            from flowcatalyst.queues.amqp.queue import ActiveMqQueue, AmqpLogin

        settings = self._settings.activemq
        login = AmqpLogin(settings.user, _revealed(settings.password), settings.ca_file)
        return ActiveMqQueue(config.name, address, self._clock, login=login)

    def _postgres(self, config: QueueConfig, address: PostgresAddress) -> BrokerQueue:
        with needs_extra("postgres", "asyncpg", what="PostgreSQL", package="asyncpg"):
            from flowcatalyst.queues.postgres.queue import PostgresQueue, PostgresStore
            from flowcatalyst.queues.postgres.server import server_at

        settings = self._settings.postgres
        database = replace(address, queue="")
        if database not in self._postgres_stores:
            server = server_at(address, settings.user, _revealed(settings.password), settings.ca_file)
            self._postgres_stores[database] = PostgresStore(server, self._clock)
        return PostgresQueue(self._postgres_stores[database], address.queue, config.name)


def _of_its_groups(capabilities: Capabilities, raw: RawConfig) -> Capabilities:
    """What the broker promises holds for its own groups. The router has to keep the order of others by itself."""
    if raw.groups_by_body:
        return replace(capabilities, ordered_redelivery=False, locks_groups=False)
    return capabilities


def _revealed(secret: SecretStr | None) -> str | None:
    return None if secret is None else secret.get_secret_value()


def _embedded_name(config: QueueConfig) -> str | None:
    """The name of the embedded queue that is meant; None if none is."""
    scheme, _, rest = config.uri.partition(":")
    return rest.removeprefix("//") if scheme.lower() == "embedded" else None
