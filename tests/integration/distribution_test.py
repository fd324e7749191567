"""What `pip install flowcatalyst` brings: the wheel and the sdist, built here, the wheel installed into nothing."""

import email
import os
import shutil
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from flowcatalyst import __version__
from tests.support.patience import PATIENCE_S

ROOT = Path(__file__).parent.parent.parent
EXTRAS = {"sqs", "nats", "activemq", "redis", "http2", "postgres", "otel"}
# What the extras bring, as one imports it.
CLIENTS = ("aiobotocore", "botocore", "aiohttp", "nats", "redis", "proton", "pyreqwest", "asyncpg")
TOOLS = ("pytest", "hypothesis", "mypy", "moto", "schemathesis")


@dataclass(frozen=True)
class Built:
    wheel: Path
    sdist: Path

    def files_of_wheel(self) -> set[str]:
        with zipfile.ZipFile(self.wheel) as file:
            return set(file.namelist())

    def files_of_sdist(self) -> set[str]:
        with tarfile.open(self.sdist) as file:
            return {member.name.partition("/")[2] for member in file.getmembers() if member.isfile()}

    def metadata(self) -> email.message.Message:
        with zipfile.ZipFile(self.wheel) as file:
            text = file.read(f"flowcatalyst-{__version__}.dist-info/METADATA")
        return email.message_from_bytes(text)


def without_us(**more: str) -> dict[str, str]:
    """The environment of somebody who has no checkout."""
    return {**{name: value for name, value in os.environ.items() if name != "PYTHONPATH"}, **more}


def source_files() -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return [Path(name) for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """Both, the wheel from the sdist, so that a file which the sdist lacks is missed."""
    folder = tmp_path_factory.mktemp("distribution")
    for name in source_files():
        (folder / "source" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, folder / "source" / name)
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder / "dist"), "."]
    done = subprocess.run(command, cwd=folder / "source", env=without_us(), capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Deprecat" not in done.stdout + done.stderr
    [wheel] = (folder / "dist").glob("*.whl")
    [sdist] = (folder / "dist").glob("*.tar.gz")
    return Built(wheel, sdist)


@pytest.fixture(scope="module")
def installed(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of a fresh environment with the wheel and nothing else; what is imported is compiled then."""
    folder = tmp_path_factory.mktemp("installed")
    venv.create(folder)
    options = ["--quiet", "--no-compile", "--constraint", str(ROOT / "requirements.lock")]
    done = pip(folder / "bin", "install", *options, str(built.wheel))
    assert done.returncode == 0, done.stderr
    return folder / "bin"


def pip(programs: Path, *args: str) -> subprocess.CompletedProcess[str]:
    """Our own pip, at work in another environment: one there would have to be installed first."""
    command = [sys.executable, "-m", "pip", "--python", str(programs / "python"), "--disable-pip-version-check", *args]
    return subprocess.run(command, env=without_us(), capture_output=True, text=True)


def run(program: Path, *args: object, cwd: Path, **more: str) -> subprocess.CompletedProcess[str]:
    command = [str(program), *map(str, args)]
    return subprocess.run(command, cwd=cwd, env=without_us(**more), capture_output=True, text=True, timeout=PATIENCE_S)


def test_the_wheel_has_the_files_that_are_no_python(built: Built) -> None:
    source = ROOT / "src"
    kinds = {".py", ".sql", ".html", ".js", ".css", ".svg", ".LICENSE"}
    wanted = {str(path.relative_to(source)) for path in source.rglob("*") if path.suffix in kinds}
    assert {Path(name).suffix for name in wanted} == kinds
    assert wanted | {"flowcatalyst/py.typed"} <= built.files_of_wheel()


def test_the_wheel_has_nothing_but_the_package(built: Built) -> None:
    assert {name.partition("/")[0] for name in built.files_of_wheel()} == {
        "flowcatalyst",
        f"flowcatalyst-{__version__}.dist-info",
    }


def test_the_sdist_has_every_file_of_the_repository_but_those_of_git(built: Built) -> None:
    assert {str(name) for name in source_files()} - built.files_of_sdist() == {".gitignore"}


def test_the_metadata_says_what_an_index_shows(built: Built) -> None:
    metadata = built.metadata()
    assert (metadata["Name"], metadata["Version"]) == ("flowcatalyst", __version__)
    assert (metadata["License-Expression"], metadata.get_all("License-File")) == ("MIT", ["LICENSE"])
    assert metadata["Requires-Python"] == ">=3.11"
    assert metadata["Keywords"]
    assert metadata["Description-Content-Type"] == "text/markdown"
    classifiers = metadata.get_all("Classifier") or []
    assert "Typing :: Typed" in classifiers
    assert not [one for one in classifiers if one.startswith("License ::")], "the expression says it"


def test_every_extra_is_there_and_all_has_each_of_them(built: Built) -> None:
    assert set(built.metadata().get_all("Provides-Extra") or []) == {*EXTRAS, "all"}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    [everything] = project["optional-dependencies"]["all"]
    assert set(everything.removeprefix("flowcatalyst[").removesuffix("]").split(",")) == EXTRAS


def test_a_plain_install_has_no_client_of_a_broker_and_no_tool_of_tests(installed: Path, tmp_path: Path) -> None:
    code = f"from importlib.util import find_spec; print([n for n in {(*CLIENTS, *TOOLS)} if find_spec(n)])"
    done = run(installed / "python", "-c", code, cwd=tmp_path)
    assert done.stdout == "[]\n", done.stderr


def test_the_lock_file_pins_all_of_a_plain_install(installed: Path) -> None:
    done = pip(installed, "freeze")
    found = {line for line in done.stdout.splitlines() if not line.startswith("flowcatalyst")}
    assert {line.lower().replace("_", "-") for line in found} == {
        line.lower().replace("_", "-") for line in (ROOT / "requirements.lock").read_text().split()
    }


def test_the_installed_command_works_in_an_empty_folder(installed: Path, tmp_path: Path) -> None:
    version = run(installed / "flowcatalyst", "--version", cwd=tmp_path)
    assert (version.returncode, version.stdout) == (0, f"{__version__}\n"), version.stderr
    assert list(tmp_path.iterdir()) == []
    scenario = ROOT / "examples" / "scenarios" / "noisy-neighbour.toml"
    simulated = run(installed / "flowcatalyst", "simulate", scenario, "--check", cwd=tmp_path)
    assert simulated.returncode == 0, simulated.stderr
    assert "delivered" in simulated.stdout
    assert list(tmp_path.iterdir()) == []


def test_a_shell_completes_the_installed_command(installed: Path, tmp_path: Path) -> None:
    shell = {"_FLOWCATALYST_COMPLETE": "complete_bash", "COMP_WORDS": "flowcatalyst rest", "COMP_CWORD": "1"}
    assert run(installed / "flowcatalyst", cwd=tmp_path, **shell).stdout.split() == ["restore"]
    # It asks which shell started it, and tests may be started by none. bash becomes its last command: hence the exit.
    script = run(Path("/bin/bash"), "-c", f"'{installed}/flowcatalyst' --show-completion; exit $?", cwd=tmp_path)
    assert "_FLOWCATALYST_COMPLETE=complete_bash" in script.stdout


@pytest.mark.parametrize(
    ("extra", "settings"),
    [
        ("sqs", '[[queues]]\nname = "q"\nuri = "sqs://orders.fifo?region=eu-west-1"\n'),
        ("nats", '[[queues]]\nname = "q"\nuri = "nats://127.0.0.1:9/ORDERS?consumer=router"\n'),
        ("activemq", '[[queues]]\nname = "q"\nuri = "amqp://127.0.0.1:9/orders"\n'),
        ("redis", '[standby]\nredis_url = "redis://127.0.0.1:9/0"\n'),
        ("http2", '[mediator.http]\nversion = "HTTP_2"\n'),
        ("otel", "[tracing]\nenabled = true\n"),
    ],
)
def test_what_needs_an_extra_says_in_one_sentence_how_to_install_it(
    installed: Path, tmp_path: Path, extra: str, settings: str
) -> None:
    (tmp_path / "flowcatalyst.toml").write_text(settings)
    done = run(installed / "flowcatalyst", "up", "--port", 0, cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    [said] = [line for line in done.stderr.splitlines() if not line.startswith("{")]
    assert said.startswith("flowcatalyst: ")
    assert ": in a checkout make " in said
    assert f", or pip install '.[{extra}]'; " in said
    assert said.endswith(f"pip install 'flowcatalyst[{extra}]'")
