"""`flowcatalyst status`, and what all commands that ask a router have in common."""

import base64
import json
from collections.abc import Iterator

import pytest

from tests.servers import free_port
from tests.support.fake_router import WIDTH, Terminal, fake_router, overview


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Terminal]:
    with fake_router() as router:
        router.overviews = [overview()]
        yield Terminal(router, monkeypatch, capsys)


@pytest.mark.parametrize(("level", "code"), [("HEALTHY", 0), ("WARNING", 1), ("DEGRADED", 2)])
def test_the_exit_code_tells_how_the_router_is(terminal: Terminal, level: str, code: int) -> None:
    terminal.router.overviews = [overview(level=level)]
    for option in ([], ["--json"]):
        found, output, errors = terminal.run("status", *option)
        assert (found, errors) == (code, "")
        assert level in output


def test_one_screen_says_what_matters(terminal: Terminal) -> None:
    _, output, _ = terminal.run("status")
    lines = output.splitlines()
    assert lines[0] == f"WARNING  the router at {terminal.router.url} is primary"
    assert lines[1] == "  - WARNING endpoint: http://shop.test/hook is down for 10 min"
    said = dict(line.split("  ", 1) for line in lines[3:12])
    assert {name: value.strip() for name, value in said.items()} == {
        "delivered": "1,204/s",
        "failed": "0.5/s",
        "in flight": "4",
        "in the router": "30",
        "in the queues": "12,000",
        "lag": "p50 12 ms, p95 2 s",
        "blocked groups": "1",
        "dead letters": "5",
        "warnings": "2",
    }
    assert [line.split() for line in lines[-2:]] == [
        ["ORDERS", "4/10", "30", "2", "12,345"],
        ["MAIL", "9/10", "1", "2", "7"],
    ]
    assert max(map(len, lines)) <= WIDTH


def test_programs_get_all_that_there_is(terminal: Terminal) -> None:
    _, output, _ = terminal.run("status", "--json")
    assert json.loads(output) == overview()


def test_a_rate_that_is_not_known_yet_is_waited_for(terminal: Terminal) -> None:
    terminal.router.overviews = [overview(deliveredPerSecond=None, failedPerSecond=None), overview()]
    assert "1,204/s" in terminal.run("status")[1]


def test_what_is_not_known_is_no_number(terminal: Terminal) -> None:
    unknown = {"queued": None, "lagMs": None, "deadLetters": None, "deliveredPerSecond": None}
    terminal.router.overviews = [overview(**unknown), overview(**unknown)]
    _, output, _ = terminal.run("status")
    assert "in the queues   not known" in output
    assert "delivered       -" in output
    assert "\nlag" not in output
    terminal.router.overviews = [overview(queuedExact=False)]
    assert "in the queues   at least 12,000" in terminal.run("status")[1]


def test_a_router_that_cannot_be_reached_is_as_bad_as_one_that_is_degraded(terminal: Terminal) -> None:
    terminal.router.url = f"http://127.0.0.1:{free_port()}"
    said = f"the router at {terminal.router.url} did not answer: Connection refused"
    assert terminal.fails("status", code=2) == f"flowcatalyst: {said}\n"
    code, output, _ = terminal.run("status", "--json")
    assert (code, json.loads(output)) == (2, {"level": "UNREACHABLE", "error": said})


def test_a_stream_that_ends_too_early_is_one_sentence(terminal: Terminal) -> None:
    terminal.router.overviews = [overview(deliveredPerSecond=None)]
    assert "ended its answer" in terminal.fails("status", code=2)


def test_key_and_login_go_along(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal.run("status", "--key", "k1")
    monkeypatch.setenv("MESSAGE_ROUTER_API_KEY", "k2")
    terminal.run("status")
    monkeypatch.setenv("MESSAGE_ROUTER_LOGIN", "ann:pw")
    terminal.run("status")
    terminal.router.url = terminal.router.url.replace("://", "://bob:secret@")
    _, output, _ = terminal.run("status")
    assert "secret" not in output
    sent = [request.headers for request in terminal.router.requests]
    assert [headers.get("X-API-Key") for headers in sent] == ["k1", "k2", "k2", "k2"]
    logins = [headers["Authorization"].removeprefix("Basic ") for headers in sent if "Authorization" in headers]
    assert [base64.b64decode(login) for login in logins] == [b"ann:pw", b"bob:secret"]


@pytest.mark.parametrize("url", ["ftp://x", "http://", "http://a:s3cret@/", "http://h:99999999", "x"])
def test_a_url_that_is_none_is_a_usage_error(terminal: Terminal, url: str) -> None:
    terminal.router.url = url
    said = terminal.misused("status")
    assert "--router is no URL of a router: give it as http://127.0.0.1:8080" in " ".join(said.split())
    assert "s3cret" not in said


def test_refusals_are_one_sentence_and_steer_no_terminal(terminal: Terminal) -> None:
    router, path = terminal.router, "GET /monitoring/explain/x"
    router.answer(path, {"detail": "these credentials are wrong"}, 401)
    said = terminal.fails("explain", "x", code=2)
    assert "answered 401: these credentials are wrong; set MESSAGE_ROUTER_API_KEY to an API key" in said
    router.answer(path, {"detail": "gone\x1b[2J\nfor good"}, 404)
    assert terminal.fails("explain", "x").endswith("answered 404: gone\\x1b[2J\\nfor good\n")
    for body in (b"<html>", {"message": "x"}, [1]):
        router.answer(path, body, 502)
        assert f"{router.url} answered 502, but as no router does: is --router right?" in terminal.fails("explain", "x")
    router.answer(path, b"<html>", 200)
    assert "answered 200, but as no router does" in terminal.fails("explain", "x")


def test_a_key_that_no_header_can_carry_is_refused(terminal: Terminal) -> None:
    assert "printable ASCII" in terminal.fails("status", "--key", "schlüssel", code=2)
