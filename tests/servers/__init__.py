"""Real servers for tests and benchmarks: found on this machine, or installed as Debian packages."""

import os
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import NoReturn, Protocol, TypeVar

import pytest

# `.ci/run` sets this: there a server that cannot be had is a failure, elsewhere a loud skip.
REQUIRED = bool(os.environ.get("TEST_REQUIRE_SERVERS"))
_PATH = f"{os.environ.get('PATH', '')}:/usr/sbin"

# Why tests were skipped. The terminal summary repeats it, so that nobody takes a skip for a pass.
missing: list[str] = []


class ServerMissingError(Exception):
    """A server is not installed and could not be."""


class Killable(Protocol):
    def kill(self) -> None: ...


Server = TypeVar("Server", bound=Killable)


@cache
def program(name: str, package: str) -> str:
    """Where a program is; installs its Debian package if it is missing and that is possible."""
    found = shutil.which(name, path=_PATH)
    if found is None and shutil.which("apt-get") and os.geteuid() == 0:
        _install(package)
        found = shutil.which(name, path=_PATH)
    if found is None:
        raise ServerMissingError(f"{name} is not installed (on Debian: apt-get install {package})")
    return found


@contextmanager
def running(start: Callable[[], Server]) -> Iterator[Server]:
    """What `start` starts, until the end of the block. A server that cannot be had skips or fails the test."""
    try:
        server = start()
    except ServerMissingError as error:
        skip_or_fail(error)
    try:
        yield server
    finally:
        server.kill()


def skip_or_fail(error: ServerMissingError) -> NoReturn:
    """Skip the test loudly, or fail it where servers are required."""
    if REQUIRED:
        pytest.fail(f"a real server is required here: {error}")
    if str(error) not in missing:
        missing.append(str(error))
    pytest.skip(f"NOT TESTED: {error}")


def free_port() -> int:
    """A loopback port nobody listens on. Somebody may before the caller does: be ready to take another."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _install(package: str) -> None:
    print(f"Installing {package} ...", flush=True)
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    install = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", package]
    if subprocess.run(install, env=environment, **quiet).returncode != 0:  # type: ignore[call-overload]
        subprocess.run(["apt-get", "update", "-qq"], env=environment, **quiet)  # type: ignore[call-overload]
        subprocess.run(install, env=environment, **quiet)  # type: ignore[call-overload]
