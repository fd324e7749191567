"""What is shipped for operators fits the program: the systemd unit, the image, and the pages they read."""

import configparser
import json
import re
import shlex
from pathlib import Path, PurePosixPath

import pytest
import typer
from litestar import Litestar

from flowcatalyst.api.access import PROBES
from flowcatalyst.api.asgi import build_api
from flowcatalyst.api.server import STOP_PATIENCE_S
from flowcatalyst.app.router import NOTIFY_AT_STOP_S, App
from flowcatalyst.cli.main import EXIT_BAD_SETTINGS, EXIT_FAILED, command_line
from flowcatalyst.control import environment
from flowcatalyst.control.redis_lock import CALL_TIMEOUT_S
from flowcatalyst.control.router_config import parse
from flowcatalyst.control.settings import Settings, describe_settings
from flowcatalyst.core.message import DEFAULT_POOL
from flowcatalyst.core.warnings import WarningCode
from flowcatalyst.router import engine

ROOT = Path(__file__).parent.parent.parent
OPERATIONS = ROOT / "docs" / "operations.md"
# As engine.py stops: consumers, pools, settling, then settling of what was still in hand.
STOP_LIMIT_S = engine.CONSUMER_STOP_S + engine.POOL_DRAIN_S + 2 * engine.SETTLE_S
STOP_LIMIT_S += NOTIFY_AT_STOP_S + STOP_PATIENCE_S + CALL_TIMEOUT_S


def options_of(command: str) -> set[str]:
    """The options of a command of ours, which has to exist."""
    commands = typer.main.get_command(command_line()).commands  # type: ignore[attr-defined]
    assert command in commands, f"there is no command {command}"
    return {option for parameter in commands[command].params for option in parameter.opts}


@pytest.fixture
def service() -> configparser.SectionProxy:
    unit = configparser.ConfigParser(interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read(ROOT / "packaging" / "flowcatalyst-router.service")
    return unit["Service"]


def test_the_unit_starts_a_command_with_options_that_exist(service: configparser.SectionProxy) -> None:
    program, command, *words = shlex.split(service["ExecStart"])
    assert PurePosixPath(program).name == "flowcatalyst"
    assert {word for word in words if word.startswith("-")} <= options_of(command)


def test_the_unit_keeps_the_data_in_the_folder_it_may_write(service: configparser.SectionProxy) -> None:
    folder = f"/var/lib/{service['StateDirectory']}"
    words = shlex.split(service["ExecStart"])
    assert words[words.index("--data-dir") + 1] == folder
    assert service["ProtectSystem"] == "strict"
    assert (service["UMask"], service["StateDirectoryMode"]) == ("0077", "0700")
    assert service["User"] not in ("", "root")


def test_the_unit_gives_a_stop_the_time_it_may_take(service: configparser.SectionProxy) -> None:
    assert int(service["TimeoutStopSec"]) > STOP_LIMIT_S


def test_the_unit_sends_its_signal_to_the_router_alone(service: configparser.SectionProxy) -> None:
    assert (service["KillMode"], service["KillSignal"]) == ("mixed", "SIGTERM")


def test_a_reload_of_the_unit_sends_the_signal_that_fetches_the_configuration(
    service: configparser.SectionProxy,
) -> None:
    assert service["ExecReload"] == "/bin/kill -HUP $MAINPID"


def test_the_unit_starts_again_what_may_pass_and_not_what_is_wrong(service: configparser.SectionProxy) -> None:
    assert service["Restart"] == "on-failure"
    never = [int(code) for code in service["RestartPreventExitStatus"].split()]
    assert EXIT_BAD_SETTINGS in never
    assert EXIT_FAILED not in never


@pytest.fixture
def dockerfile() -> list[tuple[str, str]]:
    """Instruction and rest of each line, with lines that go on joined."""
    text = (ROOT / "Dockerfile").read_text().replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return [(name, rest.strip()) for name, _, rest in (line.partition(" ") for line in lines)]


def the_only(dockerfile: list[tuple[str, str]], instruction: str) -> str:
    (rest,) = [rest for name, rest in dockerfile if name == instruction]
    return rest


def test_the_image_copies_files_that_exist_and_are_let_in(dockerfile: list[tuple[str, str]]) -> None:
    let_in = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    copied: set[str] = set()
    for name, rest in dockerfile:
        if name == "COPY" and "--from=" not in rest:
            copied |= set(rest.split()[:-1])
    assert copied == let_in
    for name in copied:
        assert (ROOT / name).exists(), name


def test_the_image_has_what_the_build_of_the_package_needs(dockerfile: list[tuple[str, str]]) -> None:
    readme = re.search(r'^readme = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert readme
    copied = " ".join(rest for name, rest in dockerfile if name == "COPY").split()
    assert {"pyproject.toml", "requirements.lock", "src", readme[1]} <= set(copied)
    assert any("--constraint requirements.lock" in rest for name, rest in dockerfile if name == "RUN")


def test_the_image_is_built_on_plain_names(dockerfile: list[tuple[str, str]]) -> None:
    bases = [rest.split()[0] for name, rest in dockerfile if name == "FROM"]
    assert bases
    for base in bases:
        assert re.fullmatch(r"python:3\.\d+-slim", base)


def test_the_image_exposes_the_default_port(dockerfile: list[tuple[str, str]]) -> None:
    assert int(the_only(dockerfile, "EXPOSE")) == Settings.model_fields["port"].default


def test_the_image_runs_our_command_as_process_1(dockerfile: list[tuple[str, str]]) -> None:
    (program,) = json.loads(the_only(dockerfile, "ENTRYPOINT"))  # a list: no shell that keeps the signals
    assert f"\n{program} = " in (ROOT / "pyproject.toml").read_text()
    command, *words = json.loads(the_only(dockerfile, "CMD"))
    assert set(words) <= options_of(command)
    assert the_only(dockerfile, "STOPSIGNAL") == "SIGTERM"


def test_the_image_does_not_run_as_root_and_keeps_its_data_in_the_volume(dockerfile: list[tuple[str, str]]) -> None:
    assert the_only(dockerfile, "USER") not in ("", "root", "0")
    variables = dict(word.split("=", 1) for word in the_only(dockerfile, "ENV").split())
    assert variables["FLOWCATALYST_DATA_DIR"] == the_only(dockerfile, "VOLUME")


def test_the_image_and_its_manual_use_variables_of_settings_that_exist() -> None:
    known = {f"FLOWCATALYST_{setting.name.upper().replace('.', '__')}" for setting in describe_settings()}
    for path in (ROOT / "Dockerfile", OPERATIONS):
        for variable in re.findall(r"FLOWCATALYST_[A-Z_]+", path.read_text()):
            assert variable in known, f"{path.name} names {variable}"
    assert environment.CONFIG_URL in OPERATIONS.read_text()


def test_the_health_check_of_the_image_asks_an_open_probe(dockerfile: list[tuple[str, str]]) -> None:
    text = the_only(dockerfile, "HEALTHCHECK")
    program = json.loads(text[text.index("[") :])
    assert program[:2] == ["python", "-c"]
    compile(program[2], "HEALTHCHECK", "exec")
    (path,) = re.findall(r"'(/[a-z/]+)'", program[2])
    assert path in PROBES


@pytest.fixture
def api(tmp_path: Path) -> Litestar:
    return build_api(App(Settings(data_dir=tmp_path)))


def test_the_manual_names_every_route(api: Litestar) -> None:
    text = OPERATIONS.read_text()
    for route in api.routes:
        if route.path.startswith("/schema/"):
            continue  # forms of one document
        path = re.sub(r":(int|str|path)}", "}", route.path)
        assert re.search(rf"[` ]{re.escape(path)}[`,? ]", text), f"docs/operations.md does not name {path}"


def test_the_manual_names_every_warning_code() -> None:
    text = OPERATIONS.read_text()
    for code in WarningCode:
        assert f"`{code}`" in text, f"docs/operations.md does not explain {code}"


def test_the_configuration_of_the_manual_can_be_used() -> None:
    (document,) = [
        block for block in re.findall(r"```json\n(.*?)```", OPERATIONS.read_text(), re.DOTALL) if "queueUri" in block
    ]
    config, problems = parse(document.encode(), "the manual")
    assert problems == []
    assert list(config.pools) == ["DEFAULT-POOL", "PAYMENTS"]
    assert list(config.queues) == ["default", "payments"]


def test_files_that_commands_of_the_readme_name_are_there() -> None:
    text = (ROOT / "README.md").read_text()
    commands = [line for line in text.splitlines() if re.match(r"(?:\.venv/bin/)?flowcatalyst \w", line)]
    named = [name for line in commands for name in re.findall(r" ([\w./-]+\.(?:json|toml|jsonl))\b", line)]
    assert len(named) >= 2
    for name in named:
        assert (ROOT / name).is_file(), f"the README names {name}"


def test_the_example_of_a_router_configuration_can_be_used() -> None:
    config, problems = parse((ROOT / "examples" / "router.json").read_bytes(), "the example")
    assert problems == []
    assert DEFAULT_POOL in config.pools
    assert config.queues
