"""Real servers for tests and benchmarks: found on this machine, or installed as Debian packages."""

import fcntl
import os
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import NoReturn, Protocol, TypeVar

import pytest

from tests.servers import needs

# `.ci/run` sets this: there a server that cannot be had is a failure, elsewhere a loud skip.
REQUIRED = bool(os.environ.get("TEST_REQUIRE_SERVERS"))

# So begins the reason of a skip that the terminal summary repeats: nobody shall take it for a pass.
NOT_TESTED = "NOT TESTED: "

# How long apt-get waits for another apt-get: an image that has just booted may install things of its own.
OTHERS_INSTALL_S = 300


class ServerMissingError(Exception):
    """A server is not installed and could not be."""


class Killable(Protocol):
    def kill(self) -> None: ...


Server = TypeVar("Server", bound=Killable)


@cache
def program(name: str) -> str:
    """Where a program is; installs its Debian package if it is missing and that is possible."""
    package = {**needs.PROGRAMS, **needs.OF_BENCHMARKS}[name]
    found = needs.find(name)
    if found is None and needs.can_install():
        _install(package)
        found = needs.find(name)
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
    pytest.skip(f"{NOT_TESTED}{error}", allow_module_level=True)


class AmqpClientFinder:
    """The last finder of modules: a test module that imports the AMQP client, which no other finder found, is skipped.

    The client is built from source, so who has neither a compiler nor root does without it.
    """

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> None:
        if name == "proton":
            compiler = " ".join(needs.COMPILER)
            how = f"make activemq, which needs a C compiler; on Debian: apt-get install {compiler}"
            skip_or_fail(ServerMissingError(f"the AMQP client of ActiveMQ is not installed ({how})"))


def free_port() -> int:
    """A loopback port nobody listens on. Somebody may before the caller does: be ready to take another."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _install(package: str) -> None:
    """One process at a time, which waits for whoever else installs something on this machine.

    The two runs of `python -m tests` want different packages in the same second, and apt-get refuses the second one.
    """
    needs.CACHE.mkdir(exist_ok=True)
    with (needs.CACHE / "apt-get.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        print(f"Installing {package} ...", flush=True)
        install = ["apt-get", "install", "-y", "--no-install-recommends", package]
        if not _done(install):
            _done(["apt-get", "update"])
            _done(install)


def _done(command: list[str]) -> bool:
    command = [*command, "-qq", "-o", f"DPkg::Lock::Timeout={OTHERS_INSTALL_S}"]
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    done = subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
    return done.returncode == 0
