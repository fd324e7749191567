"""`flowcatalyst hash-key`: what to put into auth.admin and auth.read_only. `flowcatalyst secret-key`: into
platform.secret_key.

Results go to standard output, a line each; explanations go to standard error, so that a pipe gets results only.
"""

import getpass
import json
import sys
from typing import Annotated, Final

import typer

from flowcatalyst.core.credentials import hash_key as hash_of_key
from flowcatalyst.core.credentials import hash_password, new_key
from flowcatalyst.core.errors import ConfigurationError
from flowcatalyst.dispatch.sealing import new_secret_key

MIN_PASSWORD_BYTES: Final = 8


def hash_key(
    basic: Annotated[
        str | None, typer.Option(metavar="NAME", help="Hash the password of this name, read from standard input")
    ] = None,
) -> None:
    """Make an API key and its hash, or hash a password.

    Settings hold the hash only.
    """
    if basic is None:
        key = new_key()
        entry = hash_of_key(key.encode())
        print(key)
        print(entry)
        _explain("The first line is the key, for the caller; it is shown this once. The second is its hash.")
        _explain_settings("api_key", entry)
    else:
        _print_account(basic)


def secret_key() -> None:
    """Make a key to seal the secrets of webhooks with.

    It is for platform.secret_key.
    """
    print(new_secret_key())
    _explain(
        "Give it to all processes on one database, as the variable FLOWCATALYST_PLATFORM__SECRET_KEY, and keep a copy "
        "where your backups are not: without it no secret of a webhook can be read again. To change it where several "
        "processes work on one database, give all of them OLD,NEW first, one after the other, then NEW,OLD: the first "
        "key seals, and each process has to know a key before another one seals with it. One process alone begins with "
        "NEW,OLD."
    )


def _print_account(name: str) -> None:
    if not name.isprintable() or name.strip() != name or not name or ":" in name:
        raise ConfigurationError("this name cannot be used: choose one without colon and without space at its ends")
    if sys.stdin.isatty():
        typed = getpass.getpass(f"Password of {name}: ")
        if getpass.getpass("The same again: ") != typed:
            raise ConfigurationError("the two passwords differ: start again")
        password = typed.encode()
    else:
        password = sys.stdin.buffer.readline().rstrip(b"\r\n")
    if len(password) < MIN_PASSWORD_BYTES:
        raise ConfigurationError(f"the password is too short: choose one of {MIN_PASSWORD_BYTES} characters or more")
    entry = f"{name}:{hash_password(password)}"
    print(entry)
    _explain_settings("basic", entry)


def _explain_settings(mode: str, entry: str) -> None:
    _explain("Put the hash into flowcatalyst.toml, under admin or under read_only:\n")
    _explain(f'[auth]\nmode = "{mode}"\nadmin = [{json.dumps(entry, ensure_ascii=False)}]')
    _explain(
        "\nWith access control, loopback and private addresses are no targets of messages any more. "
        'If yours are there, add their networks:\n\n[egress]\nallowed_networks = ["127.0.0.0/8", "10.0.0.0/8"]'
    )


def _explain(text: str) -> None:
    print(text, file=sys.stderr)
