"""`python -m tests`, which is `make test`: two runs at once, and none of them can fail unnoticed."""

import sys

import pytest

from tests import __main__ as both


def ends_with(code: int, text: str) -> list[str]:
    return [sys.executable, "-c", f"print({text!r}); raise SystemExit({code})"]


@pytest.mark.parametrize(("brokers", "others", "code"), [(0, 0, 0), (1, 0, 1), (0, 2, 2), (1, 2, 2)])
def test_it_fails_where_one_of_its_runs_fails_and_tells_what_both_said(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], brokers: int, others: int, code: int
) -> None:
    monkeypatch.setattr(both, "BROKERS", ends_with(brokers, "of brokers"))
    monkeypatch.setattr(both, "OTHERS", ends_with(others, "of others"))
    assert both.main() == code
    assert capfd.readouterr().out.splitlines() == ["of others", "Tests of brokers:", "of brokers"]


def test_every_test_is_in_one_of_its_runs() -> None:
    chosen = [command[command.index("-m", command.index("pytest")) + 1] for command in (both.BROKERS, both.OTHERS)]
    assert chosen == ["brokers", "not brokers"]
