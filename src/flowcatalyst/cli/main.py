"""The command `flowcatalyst`."""

import sys
from typing import Annotated

import typer

from flowcatalyst import __version__
from flowcatalyst.cli.access import hash_key
from flowcatalyst.cli.backup import backup, restore
from flowcatalyst.cli.check import check
from flowcatalyst.cli.publish import publish
from flowcatalyst.cli.run import router, up
from flowcatalyst.cli.seed import seed
from flowcatalyst.cli.simulate import simulate
from flowcatalyst.control.settings import describe_settings
from flowcatalyst.core.errors import ConfigurationError, FlowCatalystError
from flowcatalyst.core.terminal import visible

EXIT_BAD_SETTINGS = 2
EXIT_FAILED = 1

cli = typer.Typer(
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="FlowCatalyst: queue in, HTTP out, strict order per group.",
)


cli.command()(up)
cli.command()(router)
cli.command()(publish)
cli.command()(seed)
cli.command()(simulate)
cli.command()(hash_key)
cli.command()(check)
cli.command()(backup)
cli.command()(restore)


def main() -> None:
    """Entry point: errors of ours are one sentence, not a stack trace."""
    try:
        cli()
    except ConfigurationError as error:
        _die(error, EXIT_BAD_SETTINGS)
    except FlowCatalystError as error:
        _die(error, EXIT_FAILED)


def _die(error: FlowCatalystError, code: int) -> None:
    text = visible(str(error), keep="\n")
    print(f"flowcatalyst: {text}", file=sys.stderr)
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
def version() -> None:
    """Print the version."""
    print(__version__)


@cli.command()
def settings() -> None:
    """Print every setting with its default.

    It is the table of docs/operations.md.
    """
    print("| setting | default | what it is |\n|---|---|---|")
    for setting in describe_settings():
        print(f"| `{setting.name}` | {setting.default} | {setting.description} |")
