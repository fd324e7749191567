"""A real PostgreSQL for tests: on a free loopback port, its data in a folder of its own, commits synced to disk."""

import os
import pwd
import shutil
import signal
import struct
import subprocess
import tempfile
import time
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final
from urllib.parse import quote

from tests.servers import program, running
from tests.servers.process import ServerDiedError, ServerProcess, answer_on

SUPERUSER: Final = "postgres"
DATABASE: Final = "postgres"
PROTOCOL: Final = 3 << 16
END_LIMIT_S: Final = 30.0
POLL_S: Final = 0.005


class PostgresServer(ServerProcess):
    """One PostgreSQL with a superuser. Killed and started again, it has every transaction that was confirmed.

    It refuses to run as root; then it runs as a user who may not look into `folder`. So its data is in a temporary
    folder of its own, to which `folder` has a link, and which is gone when this object is.
    """

    name = "postgres"

    def __init__(self, folder: Path, *, password: str = "") -> None:
        self._program = Path(program("postgres")).resolve()  # initdb is beside it, not beside a link to it
        self._password = password
        self.runs_as = _unprivileged() if os.geteuid() == 0 else None
        self._home = Path(tempfile.mkdtemp(prefix="flowcatalyst-postgres-"))
        weakref.finalize(self, shutil.rmtree, self._home, ignore_errors=True)
        self.data = self._home / "data"
        self._make_cluster()
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "data").symlink_to(self.data)
        super().__init__(folder)

    @property
    def url(self) -> str:
        return self.url_for(f"{SUPERUSER}:{quote(self._password, safe='')}@" if self._password else f"{SUPERUSER}@")

    def url_for(self, credentials: str, database: str = DATABASE) -> str:
        """`credentials` as in `user:password@`."""
        return f"postgresql://{credentials}127.0.0.1:{self.port}/{database}"

    def stop(self) -> None:
        """End it in order: open transactions are rolled back, connections closed, a checkpoint written."""
        self._process.send_signal(signal.SIGINT)
        self._process.wait(END_LIMIT_S)

    def pause(self) -> None:
        super().pause()  # first: it starts nothing more
        for pid in self._children():
            _signal(pid, signal.SIGSTOP)

    def resume(self) -> None:
        for pid in self._children():
            _signal(pid, signal.SIGCONT)
        super().resume()

    def kill(self) -> None:
        """All of its processes at once: one that outlives the first would keep a new server from the data."""
        children: list[int] = []
        if self._process.poll() is None:
            super().pause()
            children = self._children()
        for pid in children:
            _signal(pid, signal.SIGKILL)
        super().kill()
        limit = time.monotonic() + END_LIMIT_S
        while any(map(_lives, children)):
            if time.monotonic() > limit:
                raise ServerDiedError(f"{self.name} was killed, but processes of it live on: {children}")
            time.sleep(POLL_S)
        self._free_memory()

    def _children(self) -> list[int]:
        return [int(pid) for pid in Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()]

    def _free_memory(self) -> None:
        """A killed server leaves a segment of shared memory, of which a machine can have some thousands only."""
        with suppress(FileNotFoundError):
            lines = (self.data / "postmaster.pid").read_text().splitlines()
            if len(lines) > 6 and lines[6]:
                subprocess.run(["ipcrm", "-m", lines[6].split()[1]], capture_output=True)

    def _make_cluster(self) -> None:
        options: list[str | Path] = ["-D", self.data, "-U", SUPERUSER, "-E", "UTF8", "--no-locale", "--no-sync"]
        if self._password:
            secret = self._home / "password"
            secret.write_text(self._password)
            options += [f"--pwfile={secret}", "--auth=scram-sha-256"]
        else:
            options += ["--auth=trust"]
        if self.runs_as:
            for path in (self._home, *self._home.iterdir()):
                shutil.chown(path, self.runs_as, pwd.getpwnam(self.runs_as).pw_gid)
        initdb = self._program.with_name("initdb")
        done = subprocess.run([initdb, *options], cwd=self._home, capture_output=True, text=True, **self._identity())
        if done.returncode != 0:
            raise ServerDiedError(f"initdb ended with code {done.returncode}: {done.stderr.strip()[-300:]}")

    def _command(self) -> Sequence[str | Path]:
        settings = {
            "listen_addresses": "127.0.0.1",
            "port": self.port,
            "unix_socket_directories": "",
            "fsync": "on",
            "synchronous_commit": "on",
            "shared_buffers": "16MB",
            "dynamic_shared_memory_type": "mmap",  # in its folder: nothing is left elsewhere when it is killed
        }
        return [self._program, "-D", self.data, *(f"--{name}={value}" for name, value in settings.items())]

    def _answers(self) -> bool:
        """To a login. While it starts or recovers it refuses one."""
        body = b"user\0%b\0database\0%b\0\0" % (SUPERUSER.encode(), DATABASE.encode())
        return answer_on(self.port, struct.pack("!ii", len(body) + 8, PROTOCOL) + body).startswith(b"R")


@contextmanager
def postgres_server(folder: Path, *, password: str = "") -> Iterator[PostgresServer]:
    """A running PostgreSQL. Where there is none, the test is skipped loudly, or fails where servers are required."""
    with running(lambda: PostgresServer(folder, password=password)) as server:
        yield server


def _unprivileged() -> str:
    """Debian's package makes the first."""
    users = {user.pw_name for user in pwd.getpwall()}
    return "postgres" if "postgres" in users else "nobody"


def _signal(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False
