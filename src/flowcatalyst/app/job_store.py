"""Where dispatch jobs are kept: a SQLite file of the data folder, or a PostgreSQL database that processes share."""

import asyncio
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final

from flowcatalyst.control.settings import Settings
from flowcatalyst.core.clock import Clock
from flowcatalyst.core.errors import ConfigurationError, QueueUnavailableError
from flowcatalyst.core.extras import needs_extra
from flowcatalyst.core.message import Severity
from flowcatalyst.core.supervisor import Supervisor
from flowcatalyst.core.tasks import Tasks
from flowcatalyst.core.warnings import WarningCode, WarningSink
from flowcatalyst.dispatch.store.contract import JobStore
from flowcatalyst.dispatch.store.platform_contract import PlatformStore
from flowcatalyst.dispatch.store.sqlite import SqliteJobStore
from flowcatalyst.queues.address import parse_database_url
from flowcatalyst.router.engine import Engine
from flowcatalyst.router.queue_reports import QueueReports

if TYPE_CHECKING:
    from flowcatalyst.dispatch.store.postgres import PostgresJobStore
    from flowcatalyst.queues.postgres.store import PostgresStore

RETRY_S: Final = 1.5


def job_store_of(settings: Settings, clock: Clock) -> PlatformStore | None:
    """None: this process has nothing to do with jobs. Raises `ConfigurationError`. Nothing connects yet."""
    platform = settings.platform
    if not platform.enabled:
        return None
    if platform.database_url is None:
        return SqliteJobStore(settings.data_dir / "jobs.db", clock)
    return postgres_job_store(settings, clock)


def postgres_job_store(settings: Settings, clock: Clock) -> "PostgresJobStore":
    """The store that platform.database_url means."""
    with needs_extra("postgres", "asyncpg", what="platform.database_url", package="asyncpg"):
        from flowcatalyst.dispatch.store.postgres import PostgresJobStore  # takes a while
        from flowcatalyst.queues.postgres.server import server_at
    assert settings.platform.database_url is not None, "asked only then"
    try:
        found = parse_database_url(settings.platform.database_url.get_secret_value())
    except ConfigurationError as error:
        raise ConfigurationError(f"platform.database_url {error}") from None
    of_all = settings.postgres
    password = found.password
    if found.user is None and of_all.password is not None:
        password = of_all.password.get_secret_value()
    server = server_at(found.address, found.user or of_all.user, password, of_all.ca_file)
    if found.user is not None:
        server = replace(server, user_setting="platform.database_url")
    return PostgresJobStore(server, clock)


def shared_database(store: JobStore | None) -> "PostgresStore | None":
    """The database whose processes divide the limits of their pools among them; None: this one has them all."""
    if store is None or isinstance(store, SqliteJobStore):
        return None
    from flowcatalyst.dispatch.store.postgres import PostgresJobStore  # it is one, or a test's

    return store.database if isinstance(store, PostgresJobStore) else None


def take_part(
    database: "PostgresStore | None", engine: Engine, name: str, supervisor: Supervisor, warnings: WarningSink
) -> Tasks:
    """Divide the limits of the pools with the other processes on the database, until the tasks are cancelled.

    `name`: that the engine knows the queue of jobs by.
    """
    tasks = Tasks()
    if database is not None and engine.share is not None:
        database.join(engine.share)
        stay = partial(_stay_registered, database, engine.queues[name].name, engine.consumers[name].reports, warnings)
        supervisor.spawn(tasks, "take part in the database of jobs", stay)
    return tasks


async def _stay_registered(database: "PostgresStore", queue: str, reports: QueueReports, warnings: WarningSink) -> None:
    """Be an owner at all times: without a session there is no share of any pool, so nobody would ask for jobs."""
    failing = False
    while True:
        try:
            await database.owner()
        except QueueUnavailableError as error:
            failing = True
            text = f"queue {queue} cannot be read: {error}"
            warnings.add(WarningCode.QUEUE_UNAVAILABLE, Severity.ERROR, text, f"queue {queue}")
            reports.failed(str(error))
        else:
            if failing:
                reports.succeeded()
            failing = False
        await asyncio.sleep(RETRY_S)
