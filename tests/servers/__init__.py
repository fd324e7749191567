"""Real servers for tests and benchmarks: found on this machine, or installed as Debian packages."""

import os
import shutil
import subprocess
from functools import cache

# `.ci/run` sets this: there a server that cannot be had is a failure, elsewhere a loud skip.
REQUIRED = bool(os.environ.get("FLOWCATALYST_REQUIRE_SERVERS"))
_PATH = f"{os.environ.get('PATH', '')}:/usr/sbin"


class ServerMissingError(Exception):
    """A server is not installed and could not be."""


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


def _install(package: str) -> None:
    print(f"Installing {package} ...", flush=True)
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    install = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", package]
    if subprocess.run(install, env=environment, **quiet).returncode != 0:  # type: ignore[call-overload]
        subprocess.run(["apt-get", "update", "-qq"], env=environment, **quiet)  # type: ignore[call-overload]
        subprocess.run(install, env=environment, **quiet)  # type: ignore[call-overload]
