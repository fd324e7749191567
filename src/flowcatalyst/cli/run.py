"""`flowcatalyst up` and `flowcatalyst router`: run until a signal comes, then stop in order."""

import asyncio
import os
import signal
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Annotated

import typer
import uvloop

from flowcatalyst import __version__, interpreter
from flowcatalyst.app import App
from flowcatalyst.cli.demo import Demo
from flowcatalyst.config import Settings, load_settings
from flowcatalyst.errors import ConfigurationError
from flowcatalyst.observe.logs import close_logs, configure_logs
from flowcatalyst.web.server import serve

EXIT_NOT_CLEAN = 3  # something in hand could be neither settled nor given back
EXIT_SECOND_SIGNAL = 130

Host = Annotated[str | None, typer.Option(help="Address of the API  [default: 127.0.0.1]")]
Port = Annotated[int | None, typer.Option(help="Port of the API, 0 for a free one  [default: 8080]")]
DataDir = Annotated[Path | None, typer.Option(help="Folder for queue and dead letters  [default: data]")]
SettingsFile = Annotated[Path | None, typer.Option(help="Settings file  [default: flowcatalyst.toml, if there]")]


def up(
    host: Host = None,
    port: Port = None,
    data_dir: DataDir = None,
    config: SettingsFile = None,
    demo: Annotated[bool, typer.Option("--demo", help="Feed steady traffic to the built-in receivers")] = False,
) -> None:
    """Run everything in one process: embedded queue, router, API."""
    _run(load_settings(config, host=host, port=port, data_dir=data_dir), demo=demo, with_test_bench=True)


def router(
    host: Host = None,
    port: Port = None,
    data_dir: DataDir = None,
    config: SettingsFile = None,
    config_url: Annotated[
        str | None, typer.Option(help="Where pools and queues come from; also MESSAGE_ROUTER_CONFIG_URL")
    ] = None,
) -> None:
    """Run the router alone, for production: pools and queues come from a config URL or from the settings."""
    settings = load_settings(config, host=host, port=port, data_dir=data_dir)
    settings.sync.config_url = config_url or settings.sync.config_url
    if settings.sync.config_url is None and not settings.queues:
        raise ConfigurationError(
            "the router does not know its pools and queues: set MESSAGE_ROUTER_CONFIG_URL, or --config-url, to a URL "
            "or a JSON file, or name the queues in the settings"
        )
    _run(settings, demo=False, with_test_bench=False)


def _run(settings: Settings, *, demo: bool, with_test_bench: bool) -> None:
    os.umask(0o077)  # queue and dead letters hold tokens: nobody else may read them
    interpreter.tune()
    interpreter.raise_file_limit()
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            clean = runner.run(_serve(settings, demo, with_test_bench))
    finally:
        close_logs()  # what is said about an error comes after them
    _end(0 if clean else EXIT_NOT_CLEAN)


def _end(code: int) -> None:
    if "pyreqwest" in sys.modules:
        # Threads of the HTTP/2 library may abort the process while the interpreter is taken apart, and the exit code
        # would be lost. Everything of ours is closed by now.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    raise typer.Exit(code)


async def _serve(settings: Settings, demo: bool, with_test_bench: bool) -> bool:
    """Whether everything that was in hand was settled or given back."""
    app = App(settings)
    app.prepare_data_dir()
    log_file = settings.log.file or (settings.data_dir / "flowcatalyst.log" if demo else None)
    configure_logs(settings.log.level, settings.log.format, log_file)
    signals = _Signals()
    async with AsyncExitStack() as stack:
        try:
            listening = await stack.enter_async_context(serve(app, with_test_bench=with_test_bench))
        except asyncio.CancelledError:
            if signals.stop.is_set():
                print("Stopped before it had started.", flush=True)
                return True
            raise
        signals.has_started()
        doing = "is routing" if app.standby is None else "shares the work with others and waits for its turn"
        print(f"FlowCatalyst {__version__} {doing}. API and live page: {listening.url}/", flush=True)
        if demo:
            print(f"Demo traffic runs; the log is in {log_file}. Ctrl-C drains and stops.", flush=True)
            await stack.enter_async_context(Demo(app, listening).running())
        await signals.stop.wait()
        print("\nStopping: polls and attempts under way may end, which can take up to a minute;", end=" ")
        print("another Ctrl-C stops at once.", flush=True)
    if app.stopped_clean:
        print("Stopped. Nothing was lost.")
    else:
        what = f"{app.unsettled} messages could be neither acked nor given back: their queues show them again"
        print(f"Stopped. Nothing was lost, but {what}.")
    return app.stopped_clean


class _Signals:
    """The first SIGINT, SIGTERM or SIGHUP asks for a stop, or ends a start under way; the second ends at once."""

    def __init__(self) -> None:
        self.stop = asyncio.Event()
        self._starting = asyncio.current_task()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            asyncio.get_running_loop().add_signal_handler(number, self._on_signal)

    def has_started(self) -> None:
        self._starting = None

    def _on_signal(self) -> None:
        if self.stop.is_set():
            print("Stopped at once. What was in hand comes back at the next start.", flush=True)
            os._exit(EXIT_SECOND_SIGNAL)
        self.stop.set()
        if self._starting is not None:
            self._starting.cancel()
