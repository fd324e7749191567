"""`flowcatalyst simulate` as people meet it."""

import json
import os
import pty
import re
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
import typer

from flowcatalyst.cli import simulate as command
from flowcatalyst.core import interpreter
from flowcatalyst.simulation.rules.common import Violation
from tests.support.router_process import run_cli

SCENARIO = """
duration = "3m"

[[pools]]
code = "P"
concurrency = 4
rate_limit_per_minute = 120

[[endpoints]]
name = "shop"
latency = { median = "50ms", p99 = "400ms" }
outages = [{ from = "30s", to = "70s", kind = "refuse" }]

[[traffic]]
pool = "P"
endpoint = "shop"
groups = 20
zipf = 1.0
arrivals = "poisson"
per_minute = 60
"""


@pytest.fixture
def scenario(tmp_path: Path) -> Path:
    file = tmp_path / "scenario.toml"
    file.write_text(SCENARIO)
    return file


async def test_the_report_is_plain_text_that_fits_a_page_and_ends_with_an_answer(scenario: Path) -> None:
    code, output, errors = await run_cli("simulate", scenario)
    assert (code, errors) == (0, "")
    assert "\x1b" not in output
    assert max(map(len, output.splitlines())) <= 100
    assert "dead letters, 0 left." in output
    assert "The backlog peaked at" in output
    assert "after shop came back." in output


def test_a_terminal_sees_how_far_it_is_and_ctrl_c_ends_it_without_a_word(tmp_path: Path) -> None:
    file = tmp_path / "scenario.toml"
    file.write_text(SCENARIO.replace('"3m"', '"100h"'))
    terminal, end = pty.openpty()
    with subprocess.Popen([sys.executable, "-m", "flowcatalyst", "simulate", file], stdout=end, stderr=end) as process:
        os.close(end)
        told = b""
        while b"of 6,000 minutes" not in told:
            told += os.read(terminal, 1000)
        process.send_signal(signal.SIGINT)
        assert process.wait() == 130
    with suppress(OSError):  # how the end of a terminal reads
        while more := os.read(terminal, 1000):
            told += more
    os.close(terminal)
    assert re.fullmatch(rb"(\r\x1b\[Ksimulated [\d,]+ of 6,000 minutes)+", told)


async def test_the_same_seed_gives_the_same_json_and_another_seed_another_one(scenario: Path) -> None:
    runs = [await run_cli("simulate", scenario, "--json", "-", "--seed", seed) for seed in (7, 7, 8)]
    assert [code for code, _, _ in runs] == [0, 0, 0]
    assert runs[0][1] == runs[1][1]
    assert runs[0][1] != runs[2][1]
    report = json.loads(runs[0][1])
    assert report["published"] == report["delivered"] == sum(bucket["delivered"] for bucket in report["buckets"])
    assert report["violations"] is None


async def test_the_json_goes_to_a_file_beside_the_text(scenario: Path, tmp_path: Path) -> None:
    code, output, _ = await run_cli("simulate", scenario, "--check", "--json", tmp_path / "report.json")
    assert code == 0
    assert "Checked: every rule of the router held." in output
    assert json.loads((tmp_path / "report.json").read_text())["violations"] == []


@pytest.mark.parametrize("ordered", ["true", "false"])
@pytest.mark.parametrize("kind", ["stop", "crash"])
async def test_a_run_with_restarts_and_changes_keeps_every_rule(scenario: Path, ordered: str, kind: str) -> None:
    with scenario.open("a") as file:
        file.write(f'[queue]\nordered = {ordered}\n[[restarts]]\nat = 45\ndown_for = 20\nkind = "{kind}"\n')
        file.write('[[changes]]\nat = 50\npool = "P"\nconcurrency = 2\n[[changes]]\nat = 100\npool = "P"\n')
        file.write("rate_limit_per_minute = 90\n")
    code, output, errors = await run_cli("simulate", scenario, "--check")
    assert "Checked: every rule of the router held." in output
    assert (code, errors) == (0, "")


def test_violations_are_listed_and_the_exit_code_says_so(
    scenario: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(interpreter, "tune", lambda: None)  # for the process of a command, not of all tests
    broken = [("nothing lost", Violation(1.0, f"m{n}", "is gone")) for n in range(60)]
    monkeypatch.setattr(command, "check_history", lambda events, promises: broken)
    with pytest.raises(typer.Exit) as ended:
        command.simulate(scenario, seed=1, check=True, json=None)
    assert ended.value.exit_code == 1
    output = capsys.readouterr().out
    assert "Violation: nothing lost: at 1.000 s, m0: is gone" in output
    assert "Violation: and 10 more" in output


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "does not exist: name a TOML file, such as those in examples/scenarios"),
        ("duration = ", "is not valid TOML: Invalid value"),
        ("\udcff", "is not valid TOML: 'utf-8' codec can't decode"),
        ("", "duration is missing: add it; pools is missing: add it"),
    ],
)
async def test_a_file_that_is_no_scenario_is_refused_in_one_sentence(
    tmp_path: Path, text: str | None, said: str
) -> None:
    file = tmp_path / "wrong.toml"
    if text is not None:
        file.write_bytes(text.encode("utf-8", "surrogateescape"))
    code, output, errors = await run_cli("simulate", file)
    assert (code, output) == (2, "")
    assert errors.startswith(f"flowcatalyst: scenario {file} ")
    assert said in errors
    assert errors.count("\n") == 1


async def test_a_place_for_the_json_that_cannot_be_is_refused_before_the_simulation(
    scenario: Path, tmp_path: Path
) -> None:
    code, output, errors = await run_cli("simulate", scenario, "--json", tmp_path / "no" / "report.json")
    assert (code, output) == (2, "")
    assert f"there is no folder {tmp_path / 'no'}: name another file with --json" in errors
