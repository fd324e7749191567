"""Servers from Go modules: built once into `.servers/`, nothing outside of it is written."""

import fcntl
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.servers import ServerMissingError, needs

BUILD_LIMIT_S = 1800.0  # a machine that is busy with something else takes many minutes


def built_nats() -> str:
    """The nats-server that `needs.NATS_VERSION` names. The first process of all builds it, others wait and find it."""
    made = needs.NATS_BUILT
    if made.exists():
        return str(made)
    go = needs.find("go")
    if go is None:
        raise ServerMissingError(f"nats-server {needs.NATS_VERSION} cannot be built: there is no Go")
    made.parent.parent.mkdir(exist_ok=True)
    with made.parent.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():
            if reason := needs.nats_failure():
                raise ServerMissingError(reason)
            try:
                _build(go, made)
            except ServerMissingError as error:
                needs.NATS_FAILED.write_text(str(error))
                print(f"!!! {error}. Tests of NATS run on Debian's nats-server.", file=sys.stderr, flush=True)
                raise
    return str(made)


def _build(go: str, made: Path) -> None:
    """Appears under its name only when it is complete. What Go keeps for other builds is thrown away."""
    module = f"{needs.NATS_MODULE}@{needs.NATS_VERSION}"
    print(f"Building {made.name} {needs.NATS_VERSION} with Go (first run only, a minute or two) ...", flush=True)
    with tempfile.TemporaryDirectory(dir=made.parent.parent, prefix=f"{made.parent.name}.") as folder:
        own = {"GOPATH": f"{folder}/path", "GOCACHE": f"{folder}/cache", "GOBIN": f"{folder}/bin", "CGO_ENABLED": "0"}
        writable = f"{os.environ.get('GOFLAGS', '')} -modcacherw".strip()  # else the folder could not be removed
        environment = {**os.environ, **own, "GOFLAGS": writable}
        environment.pop("GOMODCACHE", None)
        try:
            done = subprocess.run(
                [go, "install", module],
                cwd=folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=BUILD_LIMIT_S,
            )
        except subprocess.TimeoutExpired:
            raise ServerMissingError(f"Go cannot build {module}: it took more than {BUILD_LIMIT_S:.0f} s") from None
        if done.returncode != 0:
            said = [line for line in done.stderr.splitlines() if not line.startswith("go: downloading ")]
            raise ServerMissingError(f"Go cannot build {module}: {' '.join(said)[-300:] or f'code {done.returncode}'}")
        made.parent.mkdir(exist_ok=True)
        Path(folder, "bin", made.name).replace(made)
