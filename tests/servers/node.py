"""Node and packages from npm: installed once into `.servers/`, nothing outside of it is written."""

import fcntl
import shutil
import subprocess
import tempfile
from pathlib import Path

from tests.servers import ServerMissingError, needs, program

INSTALL_LIMIT_S = 600.0


def node_command(script: Path | str, *arguments: str) -> list[str]:
    """The command that runs a script, or a text as one, with the packages of the examples."""
    what = [str(script)] if isinstance(script, Path) else ["-e", script]
    return ["env", f"NODE_PATH={packages_of(needs.NODE_PACKAGES)}", program("node"), *what, *arguments]


def packages_of(wanted: Path) -> Path:
    """The folder with what a package.json names. The first process of all asks npm, others wait and find."""
    made = needs.node_folder(wanted)
    if made.exists():
        return made / "node_modules"
    needs.CACHE.mkdir(exist_ok=True)
    with (needs.CACHE / "node.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():
            _install(wanted, made)
    return made / "node_modules"


def _install(wanted: Path, made: Path) -> None:
    """Appears under its name only when it is complete. No script of a package is run."""
    npm = program("npm")
    print("Fetching packages of Node from npm (first run only) ...", flush=True)
    with tempfile.TemporaryDirectory(dir=needs.CACHE, prefix=f"{made.name}.") as folder:
        new = Path(folder) / "new"
        new.mkdir()
        shutil.copy(wanted, new)
        options = ["--ignore-scripts", "--no-package-lock", "--no-audit", "--no-fund", "--loglevel=error"]
        command = [npm, "install", *options, f"--cache={folder}/cache"]
        try:
            done = subprocess.run(
                command, cwd=new, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=INSTALL_LIMIT_S
            )
        except subprocess.TimeoutExpired:
            raise ServerMissingError(f"npm took more than {INSTALL_LIMIT_S:.0f} s to install packages") from None
        if done.returncode != 0:
            said = " ".join(done.stderr.split())[:300] or f"code {done.returncode}"
            raise ServerMissingError(f"npm cannot install the packages of {wanted.parent.name}: {said}")
        new.rename(made)
