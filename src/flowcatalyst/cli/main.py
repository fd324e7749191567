"""The command `flowcatalyst`."""

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Annotated

import typer
import uvloop

from flowcatalyst import __version__, interpreter
from flowcatalyst.app import App
from flowcatalyst.cli.demo import Demo
from flowcatalyst.config import Settings, describe_settings, load_settings
from flowcatalyst.errors import ConfigurationError, FlowCatalystError
from flowcatalyst.observe.logs import configure_logs
from flowcatalyst.web.server import serve

EXIT_BAD_SETTINGS = 2
EXIT_FAILED = 1
EXIT_SECOND_SIGNAL = 130

cli = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="FlowCatalyst: queue in, HTTP out, strict order per group.",
)


def main() -> None:
    """Entry point: errors of ours are one sentence, not a stack trace."""
    try:
        cli()
    except ConfigurationError as error:
        _die(error, EXIT_BAD_SETTINGS)
    except FlowCatalystError as error:
        _die(error, EXIT_FAILED)


def _die(error: FlowCatalystError, code: int) -> None:
    print(f"flowcatalyst: {error}", file=sys.stderr)
    sys.exit(code)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(__version__)
        raise typer.Exit


@cli.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_print_version, help="Print the version and exit.")
    ] = False,
) -> None:
    """FlowCatalyst: queue in, HTTP out, strict order per group."""


@cli.command()
def settings() -> None:
    """Print every setting with its default, as the table of docs/operations.md."""
    print("| setting | default | what it is |\n|---|---|---|")
    for setting in describe_settings():
        print(f"| `{setting.name}` | {setting.default} | {setting.description} |")


@cli.command()
def up(
    host: Annotated[str | None, typer.Option(help="Address of the API  [default: 127.0.0.1]")] = None,
    port: Annotated[int | None, typer.Option(help="Port of the API, 0 for a free one  [default: 8080]")] = None,
    data_dir: Annotated[Path | None, typer.Option(help="Folder for queue and dead letters  [default: data]")] = None,
    config: Annotated[Path | None, typer.Option(help="Settings file  [default: flowcatalyst.toml, if there]")] = None,
    demo: Annotated[bool, typer.Option("--demo", help="Feed steady traffic to the built-in receivers")] = False,
) -> None:
    """Run everything in one process: embedded queue, router, API."""
    loaded = load_settings(config, host=host, port=port, data_dir=data_dir)
    os.umask(0o077)  # queue and dead letters hold tokens: nobody else may read them
    interpreter.tune()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_up(loaded, demo))


async def _up(settings: Settings, demo: bool) -> None:
    stop = _stop_on_signals()
    app = App(settings)
    app.prepare_data_dir()
    log_file = settings.log.file or (settings.data_dir / "flowcatalyst.log" if demo else None)
    configure_logs(settings.log.level, settings.log.format, log_file)
    async with serve(app) as listening:
        print(f"FlowCatalyst {__version__} is routing. API and live page: {listening.url}/", flush=True)
        if demo:
            print(f"Demo traffic runs; the log is in {log_file}. Ctrl-C drains and stops.", flush=True)
            async with Demo(app, listening).running():
                await stop.wait()
        else:
            await stop.wait()
        print("\nStopping: attempts in flight get up to 30 s to end; another Ctrl-C stops at once.", flush=True)
    print(f"Stopped. {'Nothing was lost.' if app.stopped_clean else 'Leases will run out for what was not settled.'}")


def _stop_on_signals() -> asyncio.Event:
    """Set by the first SIGINT or SIGTERM; the second one ends the process at once."""
    stop = asyncio.Event()

    def on_signal() -> None:
        if stop.is_set():
            print("Stopped at once. What was in hand comes back at the next start.", flush=True)
            os._exit(EXIT_SECOND_SIGNAL)
        stop.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, on_signal)
    return stop
