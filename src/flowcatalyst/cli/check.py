"""`flowcatalyst check`: which settings are in force and why, and whether the router would find what it needs."""

import asyncio
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Annotated, Final

import msgspec
import typer
import uvloop

from flowcatalyst.api.server import PortInUseError, check_port
from flowcatalyst.app.clients import ssl_context_of
from flowcatalyst.app.data_folder import emptied_files, lack_of_space, problem_with_folder, removed_files
from flowcatalyst.app.job_store import postgres_job_store
from flowcatalyst.app.router import config_of
from flowcatalyst.app.sealing import lack_of_key
from flowcatalyst.app.tracing import load_tracing
from flowcatalyst.cli.options import DataDir, Host, Port, SettingsFile
from flowcatalyst.cli.queue_access import counted
from flowcatalyst.control.config_source import ConfigUnavailableError, sources_from
from flowcatalyst.control.notify import webhook_of
from flowcatalyst.control.router_config import InvalidConfigError, RouterConfig, merge, parse
from flowcatalyst.control.settings import DEFAULT_FILE, Settings, load_settings, value_in_words
from flowcatalyst.control.settings_sources import settings_in_force, source_of_list
from flowcatalyst.control.standby_lock import LockUnavailableError
from flowcatalyst.core.clock import SystemClock
from flowcatalyst.core.errors import ConfigurationError, QueueUnavailableError, StorageError, StorageUnavailableError
from flowcatalyst.core.extras import needs_extra
from flowcatalyst.core.logs import configure_logs, problem_with_log_file
from flowcatalyst.core.terminal import visible
from flowcatalyst.queues.address import AmqpAddress, EmbeddedAddress, parse_queue_uri, shown_uri
from flowcatalyst.queues.embedded.store import EmbeddedStore, routers_on
from flowcatalyst.queues.factory import QueueFactory
from flowcatalyst.queues.settings import QueueConfig
from flowcatalyst.router.limits import unconfigured_pools

EXIT_UNREACHABLE: Final = 1
EXIT_WRONG: Final = 2


class Setting(msgspec.Struct):
    name: str
    value: object
    source: str


class Pool(msgspec.Struct):
    code: str
    concurrency: int
    rate_limit_per_minute: int | None
    capacity: int
    made_on_demand: bool  # nobody configured it; messages without a pool, or with one that does not exist, go there


class Found(msgspec.Struct):
    """Something outside of the process that the router needs."""

    name: str
    where: str
    ok: bool
    said: str
    wrong: bool = False  # it cannot get better without another setting or another package
    warning: bool = False  # a start goes well, but something will be missing later


class Report(msgspec.Struct):
    ok: bool
    settings: list[Setting]
    pools: list[Pool]
    pools_source: str
    queues: list[Found]
    queues_source: str
    others: list[Found]  # config sources, standby lock, data folder
    problems: list[str]  # entries of a configuration that cannot be used


def check(
    host: Host = None,
    port: Port = None,
    data_dir: DataDir = None,
    config: SettingsFile = None,
    config_url: Annotated[str | None, typer.Option(help="Where pools and queues come from")] = None,
    timeout_s: Annotated[float, typer.Option("--timeout", min=0.1, help="Seconds that each answer may take")] = 10.0,
    json: Annotated[bool, typer.Option("--json", help="Print the report as JSON")] = False,
) -> None:
    """Show the settings in force and what cannot be reached.

    Each setting is shown with its source; queues and the rest are asked.

    It takes no message and changes nothing. Exit code 0: all is well; 1: something cannot be reached now; 2: the
    settings are wrong, the data folder cannot be used, or a package is missing.
    """
    given = {"host": host, "port": port, "data_dir": data_dir}
    settings = load_settings(config, **given)
    names = [name for name, value in given.items() if value is not None]
    if config_url is not None:
        settings.sync.config_url = config_url
        names.append("sync.config_url")
    file = config or (DEFAULT_FILE if DEFAULT_FILE.is_file() else None)
    configure_logs("error", "console", None)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        report = runner.run(_report(settings, names, file, timeout_s))
    if json:
        print(msgspec.json.format(msgspec.json.encode(report)).decode())
    else:
        _print(report)
    wrong = any(one.wrong and not one.ok for one in (*report.queues, *report.others))
    if not report.ok:
        raise typer.Exit(EXIT_WRONG if wrong else EXIT_UNREACHABLE)


async def _report(settings: Settings, given: Sequence[str], file: Path | None, timeout_s: float) -> Report:
    others: list[Found] = [
        _look_at_folder(settings.data_dir),
        _look_at_port(settings),
        *_look_at_what_is_named(settings),
    ]
    problems: list[str] = []
    if settings.sync.config_url is None:
        config = config_of(settings)
        sources = [source_of_list(name, settings, file) for name in ("pools", "queues")]
        if not settings.queues:
            sources[1] = next(s.source for s in settings_in_force(settings, (), file) if s.name == "embedded.queues")
    else:
        config, problems, asked = await _fetch(settings, timeout_s)
        others += asked
        sources = ["sync.config_url"] * 2
    if settings.standby.redis_url is not None:
        others.append(await _ask_lock(settings))
    if settings.platform.enabled is not False and settings.platform.database_url is not None:  # unset: `up` enables it
        others.append(await _ask_database(settings, timeout_s))
    if lack := lack_of_key(settings):
        others.append(Found("key of secrets", "platform.secret_key", ok=True, said=lack, warning=True))
    queues = await asyncio.gather(*(_ask_queue(settings, one, timeout_s) for one in config.queues.values()))
    return Report(
        ok=all(one.ok for one in (*queues, *others)) and not problems,
        settings=[Setting(one.name, one.value, one.source) for one in settings_in_force(settings, given, file)],
        pools=[
            Pool(
                code,
                limits.concurrency,
                limits.rate_per_minute,
                limits.effective_capacity,
                made_on_demand=code not in config.pools,
            )
            for code, limits in {**config.pools, **unconfigured_pools(config.pools)}.items()
        ],
        pools_source=sources[0],
        queues=list(queues),
        queues_source=sources[1],
        others=others,
        problems=problems,
    )


def _look_at_folder(folder: Path) -> Found:
    """Whether a start would take the folder, and its files can be read; nothing is made, locked or migrated."""
    where = str(folder.absolute())
    if problem := problem_with_folder(folder):
        return Found("data folder", where, ok=False, said=problem, wrong=True)
    if problem := lack_of_space(folder) or removed_files(folder):
        return Found("data folder", where, ok=False, said=problem)
    if not folder.is_dir():
        return Found("data folder", where, ok=True, said="does not exist yet: the router makes it")
    files = sorted(folder.glob("*.db"))
    for path in files:
        try:
            with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as connection:
                connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
        except sqlite3.Error as error:
            return Found("data folder", where, ok=False, said=f"{path.name} cannot be read: {error}")
    empty = "".join(f"; {text}" for text in emptied_files(folder).values())
    has = ", ".join(path.name for path in files) or "no files yet"
    return Found("data folder", where, ok=True, said=f"has {has}{empty}")


def _look_at_port(settings: Settings) -> Found:
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    where = f"{host}:{settings.port}"
    try:
        check_port(settings.host, settings.port)
    except PortInUseError as error:
        for url, process in routers_on(settings.data_dir / "queue.db").items():
            if url.endswith(f":{settings.port}"):
                said = f"in use by the router on this data folder (process {process})"
                return Found("port", where, ok=True, said=said)
        return Found("port", where, ok=False, said=str(error))
    except ConfigurationError as error:
        return Found("port", where, ok=False, said=str(error), wrong=True)
    return Found("port", where, ok=True, said="free" if settings.port else "any free one")


def _look_at_what_is_named(settings: Settings) -> Iterator[Found]:
    """What other settings name, judged by the same functions as at a start."""
    http, told, log_file = settings.mediator.http, settings.notifications, settings.log.file
    if log_file is not None:
        problem = problem_with_log_file(log_file)
        yield Found("log file", str(log_file), ok=not problem, said=problem or "can be written", wrong=True)
    if http.ca_file is not None:
        yield _judged("certificates", str(http.ca_file), lambda: ssl_context_of(http))
    if told.webhook_url is not None:
        yield _judged("webhook", "", lambda: webhook_of(told))
    if http.version != "HTTP_1_1":
        yield _judged("HTTP/2", "", _load_http2)
    if settings.tracing.enabled:
        yield _judged("tracing", settings.tracing.endpoint or "", load_tracing)


def _judged(name: str, where: str, judge: Callable[[], object]) -> Found:
    try:
        judge()
    except ConfigurationError as error:
        return Found(name, where, ok=False, said=str(error), wrong=True)
    return Found(name, where, ok=True, said="can be used")


def _load_http2() -> None:
    with needs_extra("http2", "pyreqwest", what="mediator.http.version HTTP_2", package="pyreqwest"):
        import pyreqwest  # noqa: F401


async def _fetch(settings: Settings, timeout_s: float) -> tuple[RouterConfig, list[str], list[Found]]:
    """Pools and queues as the sources say, what is wrong with them, and which source answered."""
    assert settings.sync.config_url is not None, "asked only then"
    try:
        tls = ssl_context_of(settings.mediator.http)
    except ConfigurationError:  # told already
        tls = None
    parts: list[tuple[str, RouterConfig]] = []
    problems: list[str] = []
    asked: list[Found] = []
    for source in sources_from(settings.sync.config_url, tls):
        try:
            fetched = await source.fetch(None, timeout_s)
            assert fetched is not None, "it was asked without a version"
            config, wrong = parse(fetched.text, source.label)
        except (ConfigUnavailableError, InvalidConfigError) as error:
            asked.append(Found("config source", source.label, ok=False, said=str(error)))
            continue
        parts.append((source.label, config))
        problems += wrong
        said = f"has {counted(len(config.pools), 'pool')} and {counted(len(config.queues), 'queue')}"
        asked.append(Found("config source", source.label, ok=True, said=said))
    merged, conflicts = merge(parts)
    return merged, [*problems, *conflicts], asked


async def _ask_lock(settings: Settings) -> Found:
    """A refresh of a lock that is not ours changes nothing, and says who has it."""
    standby = settings.standby
    assert standby.redis_url is not None, "asked only then"
    try:
        with needs_extra("redis", "redis", what="standby.redis_url", package="redis"):
            from flowcatalyst.control.redis_lock import RedisLock
        lock = RedisLock(standby.redis_url.get_secret_value(), standby.lock_key, standby.ttl_s, "flowcatalyst check")
    except ConfigurationError as error:
        return Found("standby lock", standby.lock_key, ok=False, said=str(error), wrong=True)
    try:
        holder = await lock.refresh()
    except LockUnavailableError as error:
        return Found("standby lock", standby.lock_key, ok=False, said=str(error))
    finally:
        await lock.close()
    said = "nobody holds it" if holder is None else f"{holder.identity} is primary"
    return Found("standby lock", standby.lock_key, ok=True, said=said)


async def _ask_database(settings: Settings, timeout_s: float) -> Found:
    """Whether the database of jobs lets us in. No table is made."""
    name, where = "database of jobs", "platform.database_url"
    try:
        database = postgres_job_store(settings, SystemClock()).database.pool
        where = f"{database.server.where}, database {database.server.database}"
        async with asyncio.timeout(timeout_s):
            version = await database.run(lambda connection: connection.fetchval("SHOW server_version"), migrates=False)
        return Found(name, where, ok=True, said=f"answers: PostgreSQL {version}")
    except ConfigurationError as error:
        return Found(name, where, ok=False, said=str(error), wrong=True)
    except TimeoutError:
        return Found(name, where, ok=False, said=f"no answer within {timeout_s:g} s")
    except StorageUnavailableError as error:
        return Found(name, where, ok=False, said=str(error))
    except StorageError as error:
        return Found(name, where, ok=False, said=str(error), wrong=True)


async def _ask_queue(settings: Settings, config: QueueConfig, timeout_s: float) -> Found:
    where = shown_uri(config.uri)
    try:
        match parse_queue_uri(config.uri):
            case EmbeddedAddress():
                return Found(config.name, where, ok=True, said="a file of the data folder")
            case AmqpAddress(hosts=hosts):
                _make(settings, config)  # its client is there
                return Found(config.name, where, ok=True, said=await _connect(hosts, timeout_s))
        async with asyncio.timeout(timeout_s):
            return Found(config.name, where, ok=True, said=await _ask_depth(settings, config))
    except ConfigurationError as error:
        return Found(config.name, where, ok=False, said=str(error), wrong=True)
    except TimeoutError:
        return Found(config.name, where, ok=False, said=f"no answer within {timeout_s:g} s")
    except (QueueUnavailableError, StorageError) as error:
        what, missing, _ = str(error).partition(": create it")
        if missing and config.uri != _as_it_is(config).uri:
            return Found(config.name, where, ok=True, said=f"{what}; the router makes it (create=true)")
        return Found(config.name, where, ok=False, said=str(error))


def _make(settings: Settings, config: QueueConfig) -> QueueFactory:
    clock = SystemClock()
    factory = QueueFactory(EmbeddedStore(settings.data_dir / "queue.db", clock), settings, clock)
    if problem := factory.problem_with(config):
        raise ConfigurationError(problem.removeprefix(f"queue {config.name}: "))
    return factory


async def _ask_depth(settings: Settings, config: QueueConfig) -> str:
    """Nothing is received: that would hide messages from the router."""
    queue = await _make(settings, config).open(_as_it_is(config))
    try:
        depth = await queue.depth()
    finally:
        await queue.close()
    if depth is None:
        return "answers, but does not tell its depth"
    return f"answers: {depth.waiting} waiting, {depth.leased} in flight, {depth.delayed} delayed"


def _as_it_is(config: QueueConfig) -> QueueConfig:
    """Without create=true: a check makes no queue."""
    uri = config.uri.replace("?create=true&", "?").replace("?create=true", "").replace("&create=true", "")
    return QueueConfig(config.name, uri, config.connections, config.visibility_s)


async def _connect(hosts: Sequence[tuple[str, int]], timeout_s: float) -> str:
    """AMQP tells nothing of a queue without attaching to it, which would bring its messages."""
    failures: list[str] = []
    for host, port in hosts:
        try:
            async with asyncio.timeout(timeout_s):
                _, writer = await asyncio.open_connection(host, port)
        except TimeoutError:
            failures.append(f"{host}:{port} does not answer within {timeout_s:g} s")
        except OSError as error:
            failures.append(f"{host}:{port} cannot be reached: {error.strerror or error}")
        else:
            writer.close()
            return f"{host}:{port} takes connections; whether the queue is there cannot be told without reading it"
    raise QueueUnavailableError("; ".join(failures))


def _print(report: Report) -> None:
    width = max(len(setting.name) for setting in report.settings)
    print("Settings")
    for setting in report.settings:
        print(visible(f"  {setting.name:{width}}  {value_in_words(setting.value)}  ({setting.source})"))
    print(visible(f"\nPools ({report.pools_source})", keep="\n"))
    for pool in report.pools:
        rate = f", {pool.rate_limit_per_minute} a minute" if pool.rate_limit_per_minute else ""
        made = "; made when a message names no pool, or one that is not here" if pool.made_on_demand else ""
        print(visible(f"  {pool.code}  {pool.concurrency} at a time{rate}, holds {pool.capacity}{made}"))
    print(visible(f"\nQueues ({report.queues_source})", keep="\n"))
    _print_found(report.queues)
    print("\nOthers")
    _print_found(report.others)
    for problem in report.problems:
        print(visible(f"  problem: {problem}"))
    print("\nAll is well." if report.ok else "\nThe router would not find all that it needs.")


def _print_found(found: Sequence[Found]) -> None:
    for one in found:
        where = f"  {one.where}" if one.where else ""
        state = "FAIL" if not one.ok else "warn" if one.warning else "ok  "
        print(visible(f"  {state}  {one.name}{where}: {one.said}"))
