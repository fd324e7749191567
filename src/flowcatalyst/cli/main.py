"""The command `flowcatalyst`."""

import gc
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Annotated, Final

import typer

from flowcatalyst import __version__
from flowcatalyst.core.errors import ConfigurationError, FlowCatalystError
from flowcatalyst.core.files import NoAccessError
from flowcatalyst.core.terminal import visible

EXIT_BAD_SETTINGS = 2
EXIT_FAILED = 1

# Each command is a function of its name in a module of this package, or a group of them.
_MODULES: Final = {
    "up": "run",
    "router": "run",
    "platform": "run",
    "publish": "publish",
    "seed": "seed",
    "status": "status",
    "top": "top",
    "explain": "explain",
    "groups": "groups",
    "retry": "acting",
    "skip": "acting",
    "pause": "acting",
    "resume": "acting",
    "dead-letters": "dead_letters",
    "replay": "dead_letters",
    "move": "move",
    "simulate": "simulate",
    "hash-key": "access",
    "secret-key": "access",
    "keys": "keys",
    "check": "check",
    "backup": "backup",
    "restore": "backup",
    "settings": "settings",
    "version": "version",
}


def main() -> None:
    """Entry point: errors of ours are one sentence, not a stack trace."""
    try:
        command = command_line(sys.argv[1:])
        gc.freeze()
        gc.enable()
        command()
    except ConfigurationError as error:
        _die(error, EXIT_BAD_SETTINGS)
    except FlowCatalystError as error:
        _die(error, EXIT_FAILED)
    except PermissionError as error:
        if error.filename is None:
            raise
        _die(NoAccessError(error.filename, error.strerror or str(error)), EXIT_BAD_SETTINGS)


def command_line(given: Sequence[str] = ()) -> typer.Typer:
    """With the command that `given` begins with, else with all of them: what only others need takes half a second."""
    cli = typer.Typer(
        no_args_is_help=True,
        context_settings={"help_option_names": ["-h", "--help"]},
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        help="FlowCatalyst: queue in, HTTP out, strict order per group.",
    )
    cli.callback()(_options)
    for name in given[:1] if given and given[0] in _MODULES else _MODULES:
        module = import_module(f"flowcatalyst.cli.{_MODULES[name]}")
        command = getattr(module, name.replace("-", "_"))
        if isinstance(command, typer.Typer):
            cli.add_typer(command, name=name)
        else:
            cli.command(name)(command)
    return cli


def _die(error: FlowCatalystError, code: int) -> None:
    text = visible(str(error), keep="\n")
    print(f"flowcatalyst: {text}", file=sys.stderr)
    sys.exit(code)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(__version__)
        raise typer.Exit


def _options(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_print_version, help="Print the version and exit.")
    ] = False,
) -> None:
    """FlowCatalyst: queue in, HTTP out, strict order per group."""
