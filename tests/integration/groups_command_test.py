"""`flowcatalyst groups`, `skip`, `retry`, `pause` and `resume`."""

import json
import sys
from collections.abc import Iterator

import pytest

from tests.support.fake_router import Terminal, endpoint, explanation, fake_router, group, head, pool_view

DONE = {"done": True, "text": "Done as asked.", "group": None}
NOT_DONE = {"done": False, "text": "Nothing was done: the group is empty.", "group": None}


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Terminal]:
    with fake_router() as router:
        yield Terminal(router, monkeypatch, capsys)


def test_blocked_groups_are_listed_with_why_and_what_waits_behind(terminal: Terminal) -> None:
    held = group(group="b", state="HELD", heldBy="ann", heldForMs=60_000, blockedForMs=None, head=None, lastAnswer=None)
    page = {"items": [group(), held], "next": None}
    terminal.router.answer("GET /monitoring/groups?blocked=true&pool=ORDERS&prefix=cust&limit=100", page)
    said = terminal.works("groups", "--blocked", "--pool", "ORDERS", "--prefix", "cust")
    title, first, second = said.splitlines()
    assert title.split("  ")[0] == "GROUP"
    assert " ".join(first.split()) == ("customer-7 BLOCKED 5 min ORDERS order-1 3 41+ 15 s 500 server error: no stock")
    assert " ".join(second.split()) == "b HELD 60 s ORDERS - - 41+ held held by ann"


def test_lists_fit_a_terminal_and_are_whole_for_a_pipe(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    name = "customer-" + "7" * 100
    terminal.router.answer("GET /monitoring/groups?limit=100", {"items": [group(group=name)], "next": None})
    assert name in terminal.works("groups")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    said = terminal.works("groups")
    assert max(map(len, said.splitlines())) <= 80
    assert "\ncusto…77777 " in said


def test_pages_are_followed_up_to_the_limit(terminal: Terminal) -> None:
    router = terminal.router
    router.answer("GET /monitoring/groups?limit=3", {"items": [group(group="a"), group(group="b")], "next": "c1"})
    router.answer("GET /monitoring/groups?limit=1&cursor=c1", {"items": [], "next": "c2"})  # filters may leave none
    router.answer("GET /monitoring/groups?limit=1&cursor=c2", {"items": [group(group="c")], "next": "c3"})
    assert [item["group"] for item in json.loads(terminal.works("groups", "--limit", 3, "--json"))] == ["a", "b", "c"]
    assert "There are more than 3" in terminal.works("groups", "--limit", 3)


def test_no_group_is_said_in_words(terminal: Terminal) -> None:
    terminal.router.answer("GET /monitoring/groups?blocked=true&limit=100", {"items": [], "next": None})
    assert terminal.works("groups", "--blocked") == "No group is blocked or held there.\n"
    assert json.loads(terminal.works("groups", "--blocked", "--json")) == []


def test_one_group_is_shown_with_what_it_waits_for(terminal: Terminal) -> None:
    terminal.router.answer("GET /monitoring/groups/customer-7", group())
    assert terminal.works("groups", "show", "customer-7").endswith("\nthe next attempt at order-1, in 15 s\n")


@pytest.mark.parametrize(("action", "path"), [("hold", "hold"), ("release", "release"), ("retry", "retry-head")])
def test_a_group_is_acted_on_whatever_its_name(terminal: Terminal, action: str, path: str) -> None:
    what = f"POST /monitoring/groups/a%2Fb%20%3F%C3%A4/{path}"
    terminal.router.answer(what, DONE)
    assert terminal.works("groups", action, "a/b ?ä") == "Done as asked.\n"
    terminal.router.answer(what, NOT_DONE)
    assert terminal.fails("groups", action, "a/b ?ä") == "flowcatalyst: Nothing was done: the group is empty.\n"
    assert terminal.router.asked == [what, what]


def test_the_router_may_be_named_before_the_action_too(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal.router.answer("POST /monitoring/groups/g/hold", DONE)
    named, terminal.router.url = terminal.router.url, terminal.router.url + "/elsewhere"
    assert "answered 404" in terminal.fails("groups", "--router", named, "hold", "g")  # the nearer one counts
    terminal.router.url = named
    terminal.works("groups", "--key", "k", "hold", "g")
    assert terminal.router.requests[-1].headers["X-API-Key"] == "k"


@pytest.mark.parametrize("command", [["groups", "skip", "customer-7"], ["skip", "--group", "customer-7"]])
def test_the_head_that_a_person_saw_is_the_one_that_is_skipped(terminal: Terminal, command: list[str]) -> None:
    router = terminal.router
    router.answer("GET /monitoring/groups/customer-7", group())
    router.answer("POST /monitoring/messages/embedded-x-1/skip", DONE)
    said = terminal.works(*command, typed="y\n")
    question = "Skip message order-1 of group customer-7 (failed 3 times, last answer: 500 server error: no stock; "
    assert said.startswith(f"{question}41 or more wait behind it) into the dead letters? [y/N]: ")
    assert said.endswith("Done as asked.\n")
    assert router.asked[-1] == "POST /monitoring/messages/embedded-x-1/skip"


def test_nothing_is_skipped_without_a_yes(terminal: Terminal) -> None:
    terminal.router.answer("GET /monitoring/groups/customer-7", group())
    terminal.router.answer("GET /monitoring/explain/order-1?kind=MESSAGE", explanation())
    for command in (["groups", "skip", "customer-7"], ["skip", "order-1"]):
        assert "add --yes where nobody can be asked" in terminal.fails(*command)
        assert "nothing was done" in terminal.fails(*command, typed="n\n")
    assert not [asked for asked in terminal.router.asked if asked.startswith("POST")]


def test_a_head_that_is_not_known_is_skipped_by_its_group(terminal: Terminal) -> None:
    terminal.router.answer("GET /monitoring/groups/g", group(group="g", head=None))
    terminal.router.answer("POST /monitoring/groups/g/skip-head", DONE)
    assert terminal.works("groups", "skip", "g", "--yes") == "Done as asked.\n"


def test_a_message_is_skipped_and_retried_by_its_id(terminal: Terminal) -> None:
    router = terminal.router
    router.answer("POST /monitoring/messages/a%2Fb/skip", DONE)
    router.answer("POST /monitoring/messages/a%2Fb/retry", DONE)
    router.answer("GET /monitoring/explain/a%2Fb?kind=MESSAGE", explanation(summary="It waits."))
    assert terminal.works("skip", "a/b", "--yes") == "Done as asked.\n"
    assert terminal.works("skip", "a/b", typed="y\n").startswith("It waits.\nSkip message a/b into the dead letters? ")
    assert terminal.works("retry", "a/b") == "Done as asked.\n"


def test_what_is_delivered_already_is_not_asked_about(terminal: Terminal) -> None:
    found = explanation(state="DELIVERED", summary="It was delivered 3 s ago.")
    terminal.router.answer("GET /monitoring/explain/m?kind=MESSAGE", found)
    assert "there is nothing to skip: It was delivered 3 s ago." in terminal.fails("skip", "m", typed="y\n")


@pytest.mark.parametrize("given", [[], ["m", "--group", "g"]])
def test_a_skip_names_one_message_or_one_group(terminal: Terminal, given: list[str]) -> None:
    assert "name either the ID of a message, or a --group" in " ".join(terminal.misused("skip", *given).split())


def test_an_action_is_never_sent_twice(terminal: Terminal) -> None:
    """Over a connection that was idle, it would be, if that broke."""
    terminal.router.answer("GET /monitoring/groups/g", group(group="g", head=head(brokerId="b")))
    terminal.router.answer("POST /monitoring/messages/b/skip", DONE)
    terminal.works("groups", "skip", "g", "--yes")
    assert terminal.router.connections == 2


def test_a_pool_and_an_endpoint_are_paused_and_resumed(terminal: Terminal) -> None:
    router = terminal.router
    paused = pool_view("P 1", queued=1200, inFlight=3, pausedBy="ann", pausedForMs=0)
    router.answer("POST /monitoring/pools/P%201/pause", paused)
    router.answer("POST /monitoring/pools/P%201/resume", {**paused, "pausedBy": None, "pausedForMs": None})
    said = terminal.works("pause", "pool", "P 1")
    assert said == "Pool P 1 is paused by ann; 1,200 messages wait in this router, 3 attempts are in flight.\n"
    assert terminal.works("resume", "pool", "P 1").startswith("Pool P 1 is not paused any more; ")
    query = "endpoint=http%3A%2F%2Fshop.test%2Fhook%3Fa%3Db"
    router.answer(f"POST /monitoring/endpoints/pause?{query}", endpoint(pausedBy=""))
    router.answer(f"POST /monitoring/endpoints/resume?{query}", endpoint())
    said = terminal.works("pause", "endpoint", "http://shop.test/hook?a=b")
    assert said.startswith("Endpoint http://shop.test/hook?a=b is paused; 12 groups wait for it in this router, ")
    assert "is not paused any more" in terminal.works("resume", "endpoint", "http://shop.test/hook?a=b")
    assert "'queue'" in terminal.misused("pause", "queue", "x")


def test_one_message_one_group_and_one_attempt_are_said_as_one(terminal: Terminal) -> None:
    view = pool_view("P", queued=1, inFlight=1, pausedBy="ann", pausedForMs=0)
    terminal.router.answer("POST /monitoring/pools/P/pause", view)
    said = "Pool P is paused by ann; 1 message waits in this router, 1 attempt is in flight.\n"
    assert terminal.works("pause", "pool", "P") == said
    query = "endpoint=http%3A%2F%2Fshop.test%2F"
    terminal.router.answer(f"POST /monitoring/endpoints/resume?{query}", endpoint(waiting=1))
    said = (
        "Endpoint http://shop.test/ is not paused any more; 1 group waits for it in this router, 1 attempt is in "
        "flight.\n"
    )
    assert terminal.works("resume", "endpoint", "http://shop.test/") == said
    terminal.router.answer("GET /monitoring/groups/g", group(group="g", head=head(failures=1)))
    terminal.router.answer("POST /monitoring/messages/embedded-x-1/skip", DONE)
    assert " of group g (failed 1 time, last answer: " in terminal.works("groups", "skip", "g", typed="y\n")


def test_a_pool_that_the_router_does_not_have_now_is_paused_and_resumed_all_the_same(terminal: Terminal) -> None:
    terminal.router.answer("POST /monitoring/pools/P/pause", b"null")
    terminal.router.answer("POST /monitoring/pools/P/resume", b"null")
    assert terminal.works("pause", "pool", "P") == "Pool P is paused; this router has no such pool now.\n"
    assert terminal.works("resume", "pool", "P") == "Pool P is not paused any more; this router has no such pool now.\n"
