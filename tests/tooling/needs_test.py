"""What `make test` installs is said before, by what installs it; what cannot be had is said loudly and left out."""

import json
import os
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.servers import ServerMissingError, golang, needs, program, skip_or_fail
from tests.servers.nats import nats_program, nats_server
from tests.servers.process import answer_on

ROOT = Path(__file__).parent.parent.parent


class Machine:
    """One that has nothing but what a test puts on it."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self._patch = folder, monkeypatch
        self.programs: dict[str, str] = {}
        self.root = True
        version = needs.NATS_VERSION
        monkeypatch.setattr(needs, "VENV", folder / ".venv")
        monkeypatch.setattr(needs, "CACHE", folder / ".servers")
        monkeypatch.setattr(needs, "NATS_BUILT", folder / ".servers" / f"nats-server-{version}" / "nats-server")
        monkeypatch.setattr(needs, "NATS_FAILED", folder / ".servers" / "failed")
        monkeypatch.setattr(needs, "find", self.programs.get)
        monkeypatch.setattr(needs, "can_install", lambda: self.root)

    def has_debian(self) -> None:
        self.programs |= {name: f"/usr/bin/{name}" for name in [*needs.PROGRAMS, "cc"]}

    def has_packages(self) -> None:
        site = self.folder / ".venv" / "lib" / "python3.11" / "site-packages"
        for lock in needs.LOCKS:
            for line in (ROOT / lock).read_text().split():
                name, _, version = line.partition("==")
                information = site / f"{name.replace('-', '_')}-{version}.dist-info"
                information.mkdir(parents=True)
                (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")

    def has_jars(self) -> None:
        for name, sources in needs.JARS.items():
            files = [needs.HERE / f"{name}.pom.xml", *(needs.HERE / source for source in sources)]
            needs.jars_folder(name, files, needs.CACHE).mkdir(parents=True)

    def has_node_packages(self) -> None:
        for packages in (needs.NODE_PACKAGES, needs.BROWSER_PACKAGES):
            needs.node_folder(packages).mkdir(parents=True)

    def has_go(self, script: str) -> None:
        """A Go that counts its calls in a file."""
        go = self.folder / "go"
        go.write_text(f"#!/bin/sh\necho call >> {self.folder / 'calls'}\n{script}\n")
        go.chmod(0o755)
        self.programs["go"] = str(go)

    def calls_of_go(self) -> int:
        return (self.folder / "calls").read_text().count("call")


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(tmp_path, monkeypatch)


def test_a_machine_that_has_everything_is_told_that_nothing_is_installed(machine: Machine) -> None:
    machine.has_debian()
    machine.has_packages()
    machine.has_jars()
    machine.has_node_packages()
    assert needs.plan() == "To be installed: nothing, all is there."


def test_a_fresh_machine_is_told_in_one_line_what_goes_where(machine: Machine) -> None:
    machine.has_go("exit 0")
    packages = sum(len((ROOT / lock).read_text().split()) for lock in needs.LOCKS)
    assert needs.plan() == (
        f"To be installed: {packages} packages from PyPI into .venv; Debian's redis-server, postgresql, "
        "default-jdk-headless, maven, nginx-light, openssl, prometheus, nodejs, npm, chromium, gcc, libc6-dev, "
        "python3-dev on this machine (apt-get); "
        f"nats-server {needs.NATS_VERSION}, built with Go, into .servers; "
        "the jars of activemq, artemis, elasticmq from Maven into ~/.m2 and .servers; "
        "packages of Node from npm into .servers."
    )


def test_who_is_not_root_is_told_what_is_left_out_and_how_to_get_it(machine: Machine) -> None:
    machine.has_debian()
    machine.has_packages()
    machine.root = False
    for name in ("mvn", "nats-server", "npm"):
        del machine.programs[name]
    assert needs.plan() == (
        "To be installed: nothing, all is there. LEFT OUT, as only root can install it, with the tests that need it: "
        "apt-get install nats-server maven npm"
    )
    machine.has_debian()
    machine.has_node_packages()
    assert needs.plan() == (
        "To be installed: the jars of activemq, artemis, elasticmq from Maven into ~/.m2 and .servers."
    )


def test_another_version_in_a_lock_file_is_a_package_to_install(machine: Machine) -> None:
    machine.has_packages()
    assert needs.python_packages() == []
    (information,) = machine.folder.glob(".venv/lib/*/site-packages/msgspec-*")
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: msgspec\nVersion: 0.1\n")
    assert needs.python_packages() == ["msgspec"]


def test_nothing_is_installed_that_the_line_does_not_know() -> None:
    """Whatever a test starts is found, and installed, by its name in the list."""
    with pytest.raises(KeyError):
        program.__wrapped__("some-server")
    commands = [
        (path, line)
        for path in [ROOT / "Makefile", *(ROOT / "tests").rglob("*.py")]
        for line in path.read_text().splitlines()
        if re.search(r"apt-get[\"', ]+install", line) and path != Path(__file__)
    ]
    assert {path.name for path, line in commands if "DEBIAN_FRONTEND" in line or '"-y"' in line} == {
        "Makefile",
        "__init__.py",
    }
    assert all("$(NEEDS) compiler" in line for path, line in commands if "DEBIAN_FRONTEND" in line)


def test_who_installs_waits_for_whoever_else_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An apt-get that fails while another one runs, as the real one does if it is not told to wait."""
    folder, log = tmp_path / "bin", tmp_path / "log"
    folder.mkdir()
    script = f'#!/bin/sh\nmkdir {tmp_path}/busy || exit 100\nsleep 0.3\necho "$1 $4" >> {log}\nrmdir {tmp_path}/busy\n'
    (folder / "apt-get").write_text(script)
    (folder / "apt-get").chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=os.pathsep)
    code = "import sys; from tests import servers; servers.needs.CACHE = servers.needs.Path(sys.argv[1])"
    packages, cache = ["redis-server", "nginx-light", "chromium"], str(tmp_path / "cache")
    commands = [[sys.executable, "-c", f"{code}; servers._install('{one}')", cache] for one in packages]
    for process in [subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL) for command in commands]:
        assert process.wait() == 0
    assert sorted(log.read_text().splitlines()) == sorted(f"install {one}" for one in packages)


def test_the_line_needs_no_package_and_comes_before_all_else_of_make_test() -> None:
    done = subprocess.run(
        [sys.executable, "-I", "-S", ROOT / "tests" / "servers" / "needs.py"], capture_output=True, text=True
    )
    assert (done.returncode, done.stderr, done.stdout.count("\n")) == (0, "", 1)
    assert done.stdout.startswith("To be installed: ")
    make = ["make", "--no-print-directory", "-n", "test"]  # it may run below another make
    steps = subprocess.run(make, cwd=ROOT, capture_output=True, text=True, check=True)
    assert steps.stdout.splitlines()[0].endswith("tests/servers/needs.py")


def run_tests(folder: Path, text: str, conftest: str = "") -> str:
    """What a run of a test file says, shared out as by `make test`."""
    (folder / "some_test.py").write_text(text)
    (folder / "conftest.py").write_text(f"from tests.conftest import *\n{conftest}")
    options = ["-n", "1", "-p", "no:cacheprovider", "--rootdir", str(folder)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}
    environment.pop("TEST_REQUIRE_SERVERS", None)
    command = [sys.executable, "-m", "pytest", *options, str(folder)]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True).stdout


def test_what_could_not_be_tested_is_said_at_the_end_of_a_run_in_several_processes(tmp_path: Path) -> None:
    said = run_tests(
        tmp_path,
        "import pytest\nfrom tests.servers import *\n\n@pytest.mark.parametrize('n', range(3))\n"
        "def test_on_a_server(n): skip_or_fail(ServerMissingError('it is not installed'))\n",
    )
    assert "SKIPPED 3 TIMES, NO REAL SERVER: it is not installed" in said


def test_a_missing_amqp_client_costs_only_the_tests_that_import_it(tmp_path: Path) -> None:
    before_all_others = "sys.meta_path.insert(0, AmqpClientFinder)\n"
    said = run_tests(tmp_path, "import proton\n\ndef test_on_activemq(): pass\n", before_all_others)
    assert (
        "SKIPPED 1 TIMES, NO REAL SERVER: the AMQP client of ActiveMQ is not installed (make activemq, which needs"
        in said
    ), said


BUILDS = "mkdir $GOBIN && echo built > $GOBIN/nats-server"


def test_go_builds_once_for_processes_that_start_at_once_and_keeps_the_program_only(machine: Machine) -> None:
    machine.has_go(BUILDS)
    with ThreadPoolExecutor(8) as threads:
        found = set(threads.map(lambda _: nats_program(), range(8)))
    assert found == {str(needs.NATS_BUILT)}
    assert needs.NATS_BUILT.read_text() == "built\n"
    assert machine.calls_of_go() == 1
    kept = {path.relative_to(needs.CACHE).parts[0] for path in needs.CACHE.rglob("*") if path.suffix != ".lock"}
    assert kept == {needs.NATS_BUILT.parent.name}


def test_go_writes_nowhere_but_into_the_folder_of_servers(machine: Machine) -> None:
    told = machine.folder / "told"
    machine.has_go(f"echo $GOPATH $GOCACHE $GOBIN $GOMODCACHE > {told}\necho $@ >> {told}\n{BUILDS}")
    nats_program()
    folders, arguments = told.read_text().splitlines()
    assert all(Path(folder).is_relative_to(needs.CACHE) for folder in folders.split())
    assert len(folders.split()) == 3
    assert arguments == f"install {needs.NATS_MODULE}@{needs.NATS_VERSION}"


def test_where_the_build_fails_debians_runs_and_it_is_said(machine: Machine, capfd: pytest.CaptureFixture[str]) -> None:
    machine.has_debian()
    machine.has_go("echo go: downloading this >&2; echo no way to the module >&2; exit 1")
    program.cache_clear()
    try:
        assert [nats_program(), nats_program()] == ["/usr/bin/nats-server"] * 2
    finally:
        program.cache_clear()
    assert machine.calls_of_go() == 1  # the next process does not wait for the same failure
    reason = f"Go cannot build {needs.NATS_MODULE}@{needs.NATS_VERSION}: no way to the module"
    assert needs.nats_failure() == reason
    assert f"!!! {reason}. Tests of NATS run on Debian's nats-server." in capfd.readouterr().err
    os.utime(needs.NATS_FAILED, (0, 0))  # the next day it is tried again
    with pytest.raises(ServerMissingError, match="no way to the module"):
        golang.built_nats()
    assert machine.calls_of_go() == 2


def test_without_go_debians_runs(machine: Machine) -> None:
    machine.has_debian()
    program.cache_clear()
    try:
        assert nats_program() == "/usr/bin/nats-server"
    finally:
        program.cache_clear()


def test_where_go_is_tests_of_nats_run_on_the_version_named_here(tmp_path: Path) -> None:
    if needs.find("go") is None and not needs.NATS_BUILT.exists():
        pytest.skip("no Go, so Debian's is used")
    with nats_server(tmp_path) as server:
        runs = "v" + json.loads(answer_on(server.port).removeprefix(b"INFO "))["version"]
    if runs != needs.NATS_VERSION:
        skip_or_fail(ServerMissingError(needs.nats_failure() or f"nats-server is {runs}"))


@pytest.mark.parametrize("required", [False, True])
def test_without_a_compiler_and_root_make_test_runs_the_rest_unless_servers_are_required(
    tmp_path: Path, required: bool
) -> None:
    for name in ("Makefile", "pyproject.toml", *needs.LOCKS):
        shutil.copy(ROOT / name, tmp_path)
    shutil.copytree(needs.HERE, tmp_path / "tests" / "servers", ignore=shutil.ignore_patterns("__pycache__"))
    for needed in (needs.NODE_PACKAGES.relative_to(ROOT), needs.BROWSER_PACKAGES.relative_to(ROOT)):
        (tmp_path / needed).parent.mkdir(parents=True)
        shutil.copy(ROOT / needed, tmp_path / needed)
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    (tmp_path / "bin").mkdir()
    scripts = {
        ".venv/bin/python": 'echo "$@" >> calls; case "$*" in *activemq*) exit 1;; esac',
        "bin/id": "echo 1000",
    }
    for name, script in scripts.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o755)
    for stamp in (".ready", ".extras", ".dev"):
        (tmp_path / ".venv" / stamp).touch()
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "TEST_REQUIRE"))}
    environment |= {"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"}
    environment |= {"TEST_REQUIRE_SERVERS": "1"} if required else {}
    done = subprocess.run(["make", "test"], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.stdout.startswith("To be installed: ")
    assert "The AMQP client cannot be built: it needs a C compiler. On Debian: apt-get install gcc " in done.stdout
    assert (done.returncode == 0) is not required
    assert (tmp_path / "calls").read_text().splitlines().count("-m tests") == (0 if required else 1)
