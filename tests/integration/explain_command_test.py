"""`flowcatalyst explain`: an explanation as plain sentences, with the commands that help."""

import json
import sys
from collections.abc import Iterator

import pytest

from flowcatalyst.cli.explain import command_of
from tests.support.fake_router import Terminal, explanation, fake_router, head, last_answer


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Terminal]:
    with fake_router() as router:
        yield Terminal(router, monkeypatch, capsys)


def test_the_chain_is_told_from_its_cause_to_what_can_be_done(terminal: Terminal) -> None:
    terminal.router.answer("GET /monitoring/explain/order-2", explanation())
    assert terminal.works("explain", "order-2") == (
        "Message order-2 waits behind order-1, which fails.\n"
        "  1. order-1 is the head of group customer-7.\n"
        "  2. It failed 3 times: 500 server error.\n"
        "\n"
        "what:               message order-2\n"
        "state:              WAITING (BEHIND_HEAD)\n"
        "where:              pool ORDERS, group customer-7, queue default\n"
        "head:               message order-1 (on hold, failed 3 times, to http://shop.test/hook)\n"
        "last answer:        500 server error: no stock (12 s ago)\n"
        "next attempt:       in 15 s\n"
        "estimate:           not before order-1 is delivered\n"
        "safe to send again: No: it is not lost, and is tried without that.\n"
        "slots:              10\n"
        "breaker:            CLOSED\n"
        "paused:             no\n"
        "looked in:          this router; its dead letters; what it delivered in the last minutes\n"
        "\n"
        "What you can do:\n"
        "  give up message order-1: it becomes a dead letter\n"
        f"    flowcatalyst groups skip --router {terminal.router.url} customer-7\n"
    )


def test_facts_have_names_and_times_that_people_read(terminal: Terminal) -> None:
    facts = {"inRouterMs": 119_199, "copiesDropped": 1200, "waitedMs": 0.4, "paused": False, "subscription": None}
    terminal.router.answer("GET /monitoring/explain/order-2", explanation(facts=facts))
    said = terminal.works("explain", "order-2")
    for line in (
        "in the router:      2 min",
        "copies dropped:     1,200",
        "waited:             0 ms",
        "paused:             no",
    ):
        assert f"\n{line}\n" in said
    assert "subscription" not in said


def test_an_id_may_hold_anything_and_its_kind_can_be_named(terminal: Terminal) -> None:
    terminal.router.answer("GET /monitoring/explain/a%2Fb%3Fc%20d?kind=GROUP", explanation())
    terminal.works("explain", "a/b?c d", "--kind", "group")


def test_programs_get_all_that_there_is(terminal: Terminal) -> None:
    terminal.router.answer("GET /monitoring/explain/order-2", explanation())
    assert json.loads(terminal.works("explain", "order-2", "--json")) == explanation()


def test_what_nobody_knows_of_ends_with_1_and_says_where_was_looked(terminal: Terminal) -> None:
    unknown = explanation(
        kind="UNKNOWN",
        state="NEVER_SEEN",
        cause="",
        summary="Nothing is known of order-2.",
        chain=[],
        head=None,
        lastAnswer=None,
        nextAttemptInMs=None,
        estimateInMs=None,
        estimateText="",
        pool=None,
        group=None,
        queue=None,
        safeToSendAgain=True,
        sendAgainText="Yes.",
        facts={},
        actions=[],
    )
    terminal.router.answer("GET /monitoring/explain/order-2", unknown)
    code, output, errors = terminal.run("explain", "order-2")
    assert (code, errors) == (1, "")
    assert output.splitlines()[0] == "Nothing is known of order-2."
    assert "safe to send again: Yes." in output
    assert "looked in:          this router; its dead letters" in output
    assert "What you can do" not in output


def test_what_an_endpoint_said_steers_no_terminal(terminal: Terminal) -> None:
    found = explanation(summary="\x1b]0;title\x07", facts={"x": "\x9b2J"}, chain=["a\nb"])
    terminal.router.answer("GET /monitoring/explain/order-2", found)
    said = terminal.works("explain", "order-2")
    assert "\\x1b]0;title\\x07\n  1. a\\nb\n" in said
    assert "x:                  \\x9b2J\n" in said


def test_lines_fit_a_terminal_and_nothing_of_them_is_lost(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    long = " ".join(f"word{number}" for number in range(60))
    terminal.router.answer("GET /monitoring/explain/order-2", explanation(summary=long, chain=[long]))
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    said = terminal.works("explain", "order-2")
    assert max(map(len, said.splitlines()[:-1])) <= 80
    assert " ".join(said.split()).count(long) == 2


@pytest.mark.parametrize(
    ("path", "typed"),
    [
        ("/monitoring/groups/customer-7/hold", "groups hold customer-7"),
        ("/monitoring/groups/customer-7/release", "groups release customer-7"),
        ("/monitoring/groups/a%2Fb%20c/retry-head", "groups retry 'a/b c'"),
        ("/monitoring/groups/-x/skip-head", "groups skip -- -x"),
        ("/monitoring/messages/order-1/retry", "retry order-1"),
        ("/monitoring/messages/order-1/skip", "skip order-1"),
        ("/monitoring/pools/ORDERS/pause", "pause pool ORDERS"),
        ("/monitoring/pools/ORDERS/resume", "resume pool ORDERS"),
        ("/monitoring/endpoints/resume?endpoint=http%3A%2F%2Fx.test%2F", "resume endpoint http://x.test/"),
        ("/monitoring/dead-letters/17/replay", "replay 17"),
    ],
)
def test_each_action_has_its_command(path: str, typed: str) -> None:
    assert command_of({"method": "POST", "path": path}) == f"flowcatalyst {typed}"


def test_an_action_without_a_command_is_shown_as_a_request() -> None:
    action = {"method": "POST", "path": "/api/dispatch-jobs/j1/cancel"}
    assert command_of(action) == "POST /api/dispatch-jobs/j1/cancel"


def test_a_head_that_failed_once_failed_one_time(terminal: Terminal) -> None:
    terminal.router.answer("GET /monitoring/explain/order-2", explanation(head=head(failures=1)))
    assert "(on hold, failed 1 time, to http://shop.test/hook)\n" in terminal.works("explain", "order-2")


def test_an_answer_names_its_status_once(terminal: Terminal) -> None:
    for answer, said in [
        (last_answer(detail="HTTP 500"), "HTTP 500: no stock (12 s ago)"),
        (last_answer(status=None, detail="it took too long", excerpt=""), "it took too long (12 s ago)"),
    ]:
        terminal.router.answer("GET /monitoring/explain/order-2", explanation(lastAnswer=answer))
        assert f"last answer:        {said}\n" in terminal.works("explain", "order-2")
