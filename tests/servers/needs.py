"""What the servers and tools of tests are installed from, and one line that says what `make test` is going to install.

A program, too: `python3 tests/servers/needs.py`. It runs before anything is installed, with the standard library alone.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import sys
import sysconfig
import time
from importlib.metadata import distributions
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
VENV = ROOT / ".venv"
CACHE = ROOT / ".servers"

# The Debian package of every program that tests start, and of those that only benchmarks do.
PROGRAMS = {
    "redis-server": "redis-server",
    "nats-server": "nats-server",
    "postgres": "postgresql",
    "java": "default-jdk-headless",
    "javac": "default-jdk-headless",
    "mvn": "maven",
    "nginx": "nginx-light",
    "openssl": "openssl",
    "promtool": "prometheus",
    "node": "nodejs",
    "npm": "npm",
    "chromium": "chromium",
}
OF_BENCHMARKS = {"wrk": "wrk", "cc": "gcc"}
COMPILER = ("gcc", "libc6-dev", "python3-dev")  # builds the AMQP client
LOCKS = ("requirements.lock", "requirements-extras.lock", "requirements-activemq.lock", "requirements-dev.lock")
AMQP_CLIENT = "python-qpid-proton"
# Servers from Maven, and our own sources that are compiled against their jars.
JARS = {
    "activemq": ("ActiveMqBroker.java", "JmsProducer.java"),
    "artemis": ("ArtemisBroker.java",),
    "elasticmq": ("ElasticMq.java",),
}
# Names and versions of what the JavaScript examples and the tests of the dashboard need of npm.
NODE_PACKAGES = ROOT / "examples" / "receivers" / "package.json"
BROWSER_PACKAGES = ROOT / "tests" / "browser" / "package.json"
# Debian's nats-server (2.9) forgets acks it has confirmed when it is killed: where Go is, this one is built instead.
NATS_MODULE = "github.com/nats-io/nats-server/v2"
NATS_VERSION = "v2.15.2"
NATS_BUILT = CACHE / f"nats-server-{NATS_VERSION}" / "nats-server"
# Why the build failed. For so long no other process tries: it would take as long and fail the same way.
NATS_FAILED = CACHE / f"nats-server-{NATS_VERSION}.failed"
FAILURE_HOLDS_S = 3600


def find(name: str) -> str | None:
    """Where a program is: on the PATH, or where Debian puts servers. PostgreSQL has a folder for each version."""
    versions = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda folder: float(folder.parent.name))
    places = [os.environ.get("PATH", ""), "/usr/sbin", *map(str, reversed(versions))]
    return shutil.which(name, path=os.pathsep.join(places))


def can_install() -> bool:
    """Whether Debian's packages can be installed."""
    return os.geteuid() == 0 and shutil.which("apt-get") is not None


def jars_folder(name: str, files: list[Path], cache: Path) -> Path:
    """Where what these files ask for is kept. Another pom or other sources, another folder."""
    contents = b"".join(path.read_bytes() for path in files)
    return cache / f"{name}-{hashlib.sha256(contents).hexdigest()[:16]}"


def node_folder(packages: Path) -> Path:
    """Where packages of Node are kept. Another package.json, another folder."""
    return jars_folder("node", [packages], CACHE)


def nats_failure() -> str | None:
    """Why nats-server could not be built of late."""
    try:
        age = time.time() - NATS_FAILED.stat().st_mtime
        return NATS_FAILED.read_text().strip() if age < FAILURE_HOLDS_S else None
    except FileNotFoundError:
        return None


def builds_nats() -> bool:
    """Whether tests run on a nats-server that was or will be built here."""
    return NATS_BUILT.exists() or (find("go") is not None and nats_failure() is None)


def python_packages() -> list[str]:
    """Those of the lock files that are not in the virtual environment in their version."""
    sites = [str(site) for site in VENV.glob("lib/python*/site-packages")]
    there = {(_plain(found.metadata["Name"]), found.version) for found in distributions(path=sites)} if sites else set()
    wanted = [line.partition("==") for lock in LOCKS for line in (ROOT / lock).read_text().split()]
    return [name for name, _, version in wanted if (_plain(name), version) not in there]


def debian_packages() -> list[str]:
    """Those of programs that are not there."""
    needed = [name for name in PROGRAMS if not (name == "nats-server" and builds_nats())]
    missing = [PROGRAMS[name] for name in needed if find(name) is None]
    if AMQP_CLIENT in python_packages() and not _can_compile():
        missing += COMPILER
    return list(dict.fromkeys(missing))


def jars() -> list[str]:
    """Servers whose jars Maven has not been asked for."""
    files = {name: [HERE / f"{name}.pom.xml", *(HERE / source for source in JARS[name])] for name in JARS}
    return [name for name in JARS if not jars_folder(name, files[name], CACHE).exists()]


def plan() -> str:
    """One line: what will be installed and where, what will be left out and how to get it."""
    steps, debian = [], debian_packages()
    if packages := python_packages():
        steps.append(f"{len(packages)} packages from PyPI into {VENV.name}")
    if debian and can_install():
        steps.append(f"Debian's {', '.join(debian)} on this machine (apt-get)")
    if builds_nats() and not NATS_BUILT.exists():
        steps.append(f"nats-server {NATS_VERSION}, built with Go, into {CACHE.name}")
    if (servers := jars()) and (can_install() or not {"maven", "default-jdk-headless"} & set(debian)):
        steps.append(f"the jars of {', '.join(servers)} from Maven into ~/.m2 and {CACHE.name}")
    missing = [one for one in (NODE_PACKAGES, BROWSER_PACKAGES) if not node_folder(one).exists()]
    if missing and (can_install() or not {"nodejs", "npm"} & set(debian)):
        steps.append(f"packages of Node from npm into {CACHE.name}")
    line = f"To be installed: {'; '.join(steps) or 'nothing, all is there'}."
    if debian and not can_install():
        line += (
            f" LEFT OUT, as only root can install it, with the tests that need it: apt-get install {' '.join(debian)}"
        )
    return line


def _can_compile() -> bool:
    return find("cc") is not None and Path(sysconfig.get_paths()["include"], "Python.h").exists()


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


if __name__ == "__main__":
    print(" ".join(COMPILER) if sys.argv[1:] == ["compiler"] else plan(), flush=True)
