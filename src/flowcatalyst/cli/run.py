"""`flowcatalyst up`, `router` and `platform`: run until a signal comes, then stop in order."""

import asyncio
import os
import sys
from contextlib import AsyncExitStack
from typing import Annotated

import structlog
import typer
import uvloop

from flowcatalyst import __version__
from flowcatalyst.app.router import App
from flowcatalyst.app.sealing import lack_of_key
from flowcatalyst.app.serve import serve
from flowcatalyst.cli.options import DataDir, Host, Port, SettingsFile
from flowcatalyst.cli.signals import Signals
from flowcatalyst.control.config_source import FileSource, sources_from
from flowcatalyst.control.config_sync import ConfigSync
from flowcatalyst.control.settings import Settings, load_settings
from flowcatalyst.core import interpreter
from flowcatalyst.core.errors import ConfigurationError
from flowcatalyst.core.files import is_there
from flowcatalyst.core.logs import close_logs, configure_logs
from flowcatalyst.core.tasks import Tasks
from flowcatalyst.queues.embedded.store import routers_on
from flowcatalyst.sandbox.demo import Demo

DEFAULT_PORT = Settings.model_fields["port"].default
EXIT_NOT_CLEAN = 3  # something in hand could be neither settled nor requeued
LOSSES_TOLD = 3  # at the stop; the warnings have all of them

log = structlog.get_logger("flowcatalyst.cli")


def up(
    host: Host = None,
    port: Port = None,
    data_dir: DataDir = None,
    config: SettingsFile = None,
    demo: Annotated[bool, typer.Option("--demo", help="Feed steady traffic to the built-in receivers")] = False,
) -> None:
    """Run everything in one process.

    Events and webhooks, embedded queue, router, API.
    """
    settings = load_settings(config, host=host, port=port, data_dir=data_dir)
    if settings.platform.enabled is None:
        settings.platform.enabled = True
    if demo and data_dir is None:
        # Its traffic does not mix with messages that matter, nor with that of a demo on another port.
        settings.data_dir /= "demo" if settings.port == DEFAULT_PORT else f"demo-{settings.port}"
    if demo and "level" not in settings.log.model_fields_set:
        settings.log.level = "warning"  # a line for each attempt would be gigabytes a day
    _run(settings, demo=demo, with_sandbox=True)


def router(
    host: Host = None,
    port: Port = None,
    data_dir: DataDir = None,
    config: SettingsFile = None,
    config_url: Annotated[
        str | None, typer.Option(help="Where pools and queues come from; also MESSAGE_ROUTER_CONFIG_URL")
    ] = None,
) -> None:
    """Run the router alone, for production.

    Its pools and queues come from a config URL or from the settings.
    """
    settings = load_settings(config, host=host, port=port, data_dir=data_dir)
    settings.sync.config_url = config_url or settings.sync.config_url
    if settings.sync.config_url is None and not settings.queues:
        raise ConfigurationError(
            "the router does not know its pools and queues: set MESSAGE_ROUTER_CONFIG_URL, or --config-url, to a URL "
            "or a JSON file, or name the queues in the settings"
        )
    _run(settings, demo=False, with_sandbox=False)


def platform(
    host: Host = None,
    port: Port = None,
    data_dir: DataDir = None,
    config: SettingsFile = None,
) -> None:
    """Run the dispatch platform alone.

    Events and jobs in, webhooks out. It reads no queues but those that its settings name. Any number of them work on
    one PostgreSQL (platform.database_url).
    """
    settings = load_settings(config, host=host, port=port, data_dir=data_dir)
    if settings.platform.enabled is False:
        raise ConfigurationError("platform.enabled is false: there is nothing to run; leave it out")
    settings.platform.enabled = True
    if "queues" not in settings.embedded.model_fields_set:
        settings.embedded.queues = []
    _run(settings, demo=False, with_sandbox=False)


def _run(settings: Settings, *, demo: bool, with_sandbox: bool) -> None:
    os.umask(0o077)  # queue and dead letters hold tokens: nobody else may read them
    tell_of_missing_files(settings)
    interpreter.tune()
    interpreter.raise_file_limit()
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            clean = runner.run(_serve(settings, demo, with_sandbox))
    finally:
        close_logs()  # what is said about an error comes after them
    code = 0 if clean else EXIT_NOT_CLEAN
    if "pyreqwest" in sys.modules:
        # Threads of the HTTP/2 library may abort the process while the interpreter is taken apart, and the exit code
        # would be lost. Everything of ours is closed by now.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    raise typer.Exit(code)


async def _serve(settings: Settings, demo: bool, with_sandbox: bool) -> bool:
    """Whether everything that was in hand was settled or requeued."""
    app = App(settings)
    app.prepare_data_dir()
    log_file = settings.log.file or (settings.data_dir / "flowcatalyst.log" if demo else None)
    configure_logs(settings.log.level, settings.log.format, log_file)
    if settings.standby.redis_url is None:
        tell_of_other_routers(settings)
    reloads = Tasks()
    signals = Signals(lambda: _on_hangup(app, reloads))
    async with AsyncExitStack() as stack:
        try:
            listening = await stack.enter_async_context(serve(app, with_sandbox=with_sandbox))
        except asyncio.CancelledError:
            if signals.stop.is_set():
                print("Stopped before it had started.", flush=True)
                return True
            raise
        signals.has_started()
        if settings.platform.enabled and (lack := lack_of_key(settings)):
            log.warning("secret_key_missing", action="secret_key_missing", problem=f"platform.secret_key {lack}")
        print(f"FlowCatalyst {__version__} {_doing(app)}. API and dashboard: {listening.url}/", flush=True)
        if unasked := _embedded_too(settings):
            print(f"It reads the embedded queues {', '.join(unasked)} too: embedded.queues = [] leaves them out.")
            log.info("embedded_queues_too", action="embedded_queues_too", queues=unasked)
        if demo:
            print(
                f"Demo traffic runs; its log and its queue are in {settings.data_dir}. Ctrl-C drains and stops.",
                flush=True,
            )
            await stack.enter_async_context(Demo(app, app.sandbox).running())
        await signals.stop.wait()
        print("\nStopping: polls and attempts under way may end, which can take up to 80 s;", end=" ")
        print("another Ctrl-C after a second stops at once.", flush=True)
        await reloads.cancel()
    print(f"Stopped. {_last_words(app)}")
    return app.stopped_clean


def _doing(app: App) -> str:
    if not app.settings.enabled:
        return "is disabled (enabled is false) and polls nothing"
    if app.standby is not None:
        return "shares the work with others and waits for its turn"
    if not app.config.queues and not app.settings.platform.enabled:
        return "runs, but has no queue to read (its log says why)"
    return "is routing"


def tell_of_missing_files(settings: Settings) -> None:
    """A file of pools and queues that is not there may yet come, but its name may be wrong as well. Raises
    `ConfigurationError` if this user may not look."""
    sync = settings.sync
    for source in sources_from(sync.config_url or "") if settings.enabled else ():
        if isinstance(source, FileSource) and not is_there(source.path):
            tries = f"it is tried {sync.attempts} times, {sync.attempt_pause_s:g} s apart"
            print(f"flowcatalyst: configuration file {source.label} does not exist; {tries}", file=sys.stderr)


def tell_of_other_routers(settings: Settings) -> None:
    """Two on one folder are seldom meant. Those that share a standby lock are."""
    for url, process in routers_on(settings.data_dir / "queue.db").items():
        who = f"the router at {url} (process {process}) has the data folder {settings.data_dir} open too"
        what = "both take its messages, each with its own limits; stop one of them, or give it another --data-dir"
        print(f"flowcatalyst: {who}: {what}", file=sys.stderr)


def _embedded_too(settings: Settings) -> list[str]:
    """The embedded queues that are read although the settings name others and not these."""
    if not settings.queues or settings.sync.config_url is not None or "queues" in settings.embedded.model_fields_set:
        return []
    return settings.embedded.queues


def _last_words(app: App) -> str:
    left = "" if app.stopped_clean else f"{app.unsettled} messages could be neither acked nor nacked"
    if losses := [loss.text for loss in app.losses if loss.messages != 0]:
        more = f"; and {len(losses) - LOSSES_TOLD} times more" if len(losses) > LOSSES_TOLD else ""
        told = f"Messages were lost at the queues while it ran: {'; '.join(losses[:LOSSES_TOLD])}{more}."
        return f"{told} {left}: their queues show the others again." if left else told
    return f"Nothing was lost, but {left}: their queues show them again." if left else "Nothing was lost."


def _on_hangup(app: App, tasks: Tasks) -> None:
    """SIGHUP, as POST /config/reload: fetch the configuration, if it comes from elsewhere."""
    if app.sync is None or not app.started:
        why = "not started yet" if not app.started else "no config URL" if app.settings.enabled else "disabled"
        log.warning("hangup_ignored", action="hangup_ignored", why=why)
        return
    tasks.spawn(_reload(app.sync), "reload")


async def _reload(sync: ConfigSync) -> None:
    report = await sync.sync_now()
    log.info("config_reloaded", action="config_reloaded", changed=report.changed, unreachable=report.unreachable)
