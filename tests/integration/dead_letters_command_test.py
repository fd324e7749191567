"""`flowcatalyst dead-letters` and `flowcatalyst replay`."""

import json
import os
import signal
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from flowcatalyst.cli.router_api import RouterApi
from flowcatalyst.core.clock import SystemClock
from tests.support.fake_router import FakeRouter, Terminal, fake_router

PATH = "/monitoring/dead-letters"


def letter(number: int = 17, **changes: Any) -> dict[str, Any]:
    message = {
        "id": "order-1",
        "mediationTarget": "http://shop.test/hook",
        "poolCode": "ORDERS",
        "mediationType": "HTTP",
        "messageGroupId": "customer-7",
        "highPriority": False,
        "dispatchMode": None,
        "payload": None,
        "contentType": None,
        "headers": {"x-a": "1"},
    }
    return {
        "number": number,
        "messageId": "order-1",
        "queue": "default",
        "group": "customer-7",
        "reason": "it failed 5 times",
        "status": 500,
        "excerpt": "no stock",
        "failures": 5,
        "recordedAt": "2027-01-31T12:34:56.789000Z",
        "message": message,
        "body": None,
        "bodyTruncated": False,
        **changes,
    }


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Terminal]:
    with fake_router() as router:
        yield Terminal(router, monkeypatch, capsys)


def test_dead_letters_are_listed(terminal: Terminal) -> None:
    odd = letter(18, messageId="", group=None, status=None, reason="\x1b[2Jodd")
    terminal.router.answer(f"GET {PATH}?limit=101&after=0", [letter(), odd])
    terminal.router.answer(f"GET {PATH}?limit=101&after=18", [])
    _, first, second = terminal.works("dead-letters").splitlines()
    assert " ".join(first.split()) == ("17 2027-01-31 12:34:56 order-1 customer-7 default 500 5 it failed 5 times")
    assert " ".join(second.split()) == "18 2027-01-31 12:34:56 - - default - 5 \\x1b[2Jodd"
    assert json.loads(terminal.works("dead-letters", "--json")) == [letter(), odd]


def test_there_are_none_or_more_than_were_asked_for(terminal: Terminal) -> None:
    terminal.router.answer(f"GET {PATH}?limit=101&after=0", [])
    assert terminal.works("dead-letters") == "There are no dead letters.\n"
    terminal.router.answer(f"GET {PATH}?limit=2&after=0", [letter(1), letter(2)])
    said = terminal.works("dead-letters", "--limit", 1).splitlines()
    assert (len(said), said[-1].startswith("There are more than 1: ")) == (3, True)


FILTERS = ("--group", "a/b", "--target", "http://x.test/?q", "--status", 500, "--queue", "default")
QUERY = "group=a%2Fb&target=http%3A%2F%2Fx.test%2F%3Fq&status=500&queue=default"


def test_filters_combine(terminal: Terminal) -> None:
    terminal.router.answer(f"GET {PATH}?limit=101&after=0&{QUERY}", [])
    assert terminal.works("dead-letters", *FILTERS) == "There are no such dead letters.\n"


@pytest.mark.parametrize(
    ("given", "sent"),
    [
        ("2027-01-31T12:00:00Z", "2027-01-31T12:00:00Z"),
        ("2027-01-31T12:00:00+02:00", "2027-01-31T12:00:00+02:00"),
        ("2027-01-31", "2027-01-31T00:00:00Z"),
    ],
)
def test_times_are_sent_as_the_api_takes_them(terminal: Terminal, given: str, sent: str) -> None:
    terminal.run("dead-letters", "--until", given)
    assert parse_qs(urlsplit(terminal.router.requests[-1].path).query)["until"] == [sent]


def test_a_time_may_be_so_long_ago(terminal: Terminal) -> None:
    terminal.run("dead-letters", "--since", "2h")
    (sent,) = parse_qs(urlsplit(terminal.router.requests[-1].path).query)["since"]
    ago = datetime.fromtimestamp(SystemClock().wall(), UTC) - datetime.fromisoformat(sent)
    assert 7200 <= ago.total_seconds() < 7500
    assert "--since is no time: give it as 2h" in " ".join(terminal.misused("dead-letters", "--since", "noon").split())


def test_one_is_shown_with_its_message(terminal: Terminal) -> None:
    terminal.router.answer(f"GET {PATH}/17", letter())
    said = terminal.works("dead-letters", "show", 17)
    assert "reason:          it failed 5 times\n" in said
    assert "mediationTarget: http://shop.test/hook\n" in said
    assert "header x-a:      1\n" in said
    assert json.loads(terminal.works("dead-letters", "show", 17, "--json")) == letter()


@pytest.mark.parametrize("command", [["replay"], ["dead-letters", "replay"]])
def test_one_is_replayed_by_its_number(terminal: Terminal, command: list[str]) -> None:
    terminal.router.answer(f"POST {PATH}/17/replay", {"replayed": 1})
    assert terminal.works(*command, 17) == "Dead letter 17 is replayed.\n"
    assert terminal.router.requests[-1].body is None
    said = terminal.works(*command, 17, "--front", "--set-target", "http://new.test/")
    assert said == "Dead letter 17 is replayed in front to http://new.test/.\n"
    assert terminal.router.requests[-1].body == {"position": "FRONT", "target": "http://new.test/"}


def test_many_are_counted_before_they_are_replayed(terminal: Terminal) -> None:
    router = terminal.router
    router.answer(f"POST {PATH}/replay?dryRun=true&{QUERY}", {"replayed": 0, "matching": 1200, "dryRun": True})
    router.answer(f"POST {PATH}/replay?{QUERY}", {"replayed": 1199, "matching": 1200, "dryRun": False})
    assert terminal.works("replay", *FILTERS, "--dry-run") == "1,200 dead letters would be replayed.\n"
    said = terminal.works("replay", *FILTERS, typed="y\n")
    assert said == "Replay 1,200 dead letters? [y/N]: 1,199 dead letters replayed.\n"
    assert "add --yes" in terminal.fails("replay", *FILTERS)
    assert terminal.works("replay", *FILTERS, "--yes") == "1,199 dead letters replayed.\n"


def test_all_are_replayed_only_if_all_is_said(terminal: Terminal) -> None:
    terminal.router.answer(f"POST {PATH}/replay?dryRun=true", {"replayed": 0, "matching": 1, "dryRun": True})
    terminal.router.answer(f"POST {PATH}/replay", {"replayed": 1, "matching": 1, "dryRun": False})
    for given in ([], [17, "--all"], [17, "--group", "g"], ["--all", "--group", "g"]):
        assert "name either the NUMBER" in " ".join(terminal.misused("replay", *given).split())
    assert terminal.works("replay", "--all", "--yes") == "1 dead letter replayed.\n"


def test_what_could_not_be_replayed_is_said_in_one_sentence_with_what_was(terminal: Terminal) -> None:
    said = "2 dead letters were replayed, 1 of queue 'gone' was not: that queue is not known here"
    terminal.router.answer(f"POST {PATH}/replay?dryRun=true", {"replayed": 0, "matching": 3, "dryRun": True})
    terminal.router.answer(f"POST {PATH}/replay", {"detail": said}, 409)
    answered = f"the router at {terminal.router.url} answered 409"
    assert terminal.fails("replay", "--all", "--yes") == f"flowcatalyst: {answered}: {said}\n"


def dead(router: FakeRouter, *letters: dict[str, Any]) -> None:
    """These are the dead letters of group g; those behind the second come on a page of their own."""
    router.answer(f"POST {PATH}/replay?dryRun=true&group=g", {"replayed": 0, "matching": len(letters), "dryRun": True})
    after = 0
    for page in (letters[:2], letters[2:]):
        router.answer(f"GET {PATH}?limit=1000&after={after}&group=g", page)
        after = page[-1]["number"] if page else after
    router.answer(f"GET {PATH}?limit=1000&after={after}&group=g", [])
    for one in letters:
        router.answer(f"POST {PATH}/{one['number']}/replay", {"replayed": 1})


def held(router: FakeRouter, *names: str) -> None:
    pauses = [{"kind": "GROUP", "name": name, "by": "ann", "sinceMs": 1} for name in names]
    router.answer(
        "GET /monitoring/pauses?kind=GROUP&name=g", [*pauses, {"kind": "POOL", "name": "g", "by": "ann", "sinceMs": 1}]
    )


def acts(router: FakeRouter) -> list[str]:
    """What was asked for since the last time, shortly, without what changes nothing."""
    asked = [one.removeprefix("POST /monitoring/") for one in router.asked if one.startswith("POST")]
    router.requests.clear()
    return [one for one in asked if "?" not in one]


REPLAYS = [f"dead-letters/{number}/replay" for number in (5, 2, 1)]
FRONT = ("replay", "--group", "g", "--front", "--yes")


def test_many_in_front_of_their_group_end_there_in_their_order_because_it_is_held_meanwhile(terminal: Terminal) -> None:
    router = terminal.router
    dead(router, *(letter(number, group="g") for number in (1, 2, 5)))
    held(router)
    for verb in ("hold", "release"):
        router.answer(f"POST /monitoring/groups/g/{verb}", {"done": True, "text": "", "group": None})
    assert terminal.works(*FRONT) == "3 dead letters replayed in front.\n"
    assert acts(router) == ["groups/g/hold", *REPLAYS, "groups/g/release"]
    held(router, "g")
    terminal.works(*FRONT)
    assert acts(router) == REPLAYS  # who held it may have a reason
    terminal.works("replay", "--group", "g", "--set-target", "http://new.test/", "--yes")
    assert acts(router) == REPLAYS[::-1]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_replay_that_a_signal_ends_releases_the_group_and_says_how_far_it_came(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    router, post = terminal.router, RouterApi.post
    before = signal.signal(number, signal.default_int_handler)  # whatever runs the tests may have it ignored
    dead(router, *(letter(one, group="g") for one in (1, 2, 5)))
    held(router)
    for verb in ("hold", "release"):
        router.answer(f"POST /monitoring/groups/g/{verb}", {"done": True, "text": "", "group": None})

    def posted(api: RouterApi, *path: str, **options: Any) -> Any:
        if path[-2:] == ("2", "replay"):
            os.kill(os.getpid(), number)
        return post(api, *path, **options)

    monkeypatch.setattr(RouterApi, "post", posted)
    try:
        said = terminal.fails(*FRONT)
    finally:
        signal.signal(number, before)
    assert f"ended by {number.name}; group g, held for this, is released; 1 of 3 dead letters were replayed" in said
    assert acts(router) == ["groups/g/hold", REPLAYS[0], "groups/g/release"]


def test_letters_that_share_no_group_go_in_front_without_a_hold(terminal: Terminal) -> None:
    dead(terminal.router, letter(1, group=None), letter(2, group="a"), letter(5, group=None))
    terminal.works(*FRONT)
    assert sorted(acts(terminal.router)) == sorted(REPLAYS)


def test_what_stops_half_way_says_how_far_it_came_and_leaves_no_group_held(terminal: Terminal) -> None:
    router = terminal.router
    dead(router, *(letter(number, group="g") for number in (1, 2, 5)))
    held(router)
    for verb in ("hold", "release"):
        router.answer(f"POST /monitoring/groups/g/{verb}", {"done": True, "text": "", "group": None})
    router.answer(f"POST {PATH}/2/replay", {"detail": "its queue is away"}, 503)
    said = terminal.fails("replay", "--group", "g", "--set-target", "http://new.test/", "--yes")
    assert said.endswith("its queue is away; 1 of 3 dead letters were replayed before that\n")
    acts(router)
    said = terminal.fails(*FRONT)
    assert "its queue is away; group g, held for this, is released; 1 of 3 dead letters were" in said
    assert acts(router) == ["groups/g/hold", *REPLAYS[:2], "groups/g/release"]
    router.answer("POST /monitoring/groups/g/release", {"detail": "no"}, 503)
    said = terminal.fails(*FRONT)
    assert "its queue is away; group g, held for this, could not be released (" in said
    assert "flowcatalyst groups release g; 1 of 3 dead letters were replayed before that\n" in said


def test_there_may_be_none_to_replay(terminal: Terminal) -> None:
    dead(terminal.router)
    terminal.router.answer(f"POST {PATH}/replay?dryRun=true", {"replayed": 0, "matching": 0, "dryRun": True})
    assert terminal.works("replay", "--group", "g", "--yes") == "There are no such dead letters.\n"
    assert terminal.works("replay", "--all", "--dry-run") == "There are no dead letters.\n"


def test_removing_asks_before(terminal: Terminal) -> None:
    terminal.router.answer(f"DELETE {PATH}/17", None, 204)
    terminal.router.answer(f"DELETE {PATH}", {"purged": 1234, "matching": 1234, "dryRun": False})
    assert "add --yes" in terminal.fails("dead-letters", "delete", 17)
    assert terminal.works("dead-letters", "delete", 17, "--yes") == "Dead letter 17 is removed.\n"
    assert terminal.works("dead-letters", "delete", "--all", "--yes") == "1,234 dead letters removed.\n"
    assert terminal.router.asked == [f"DELETE {PATH}/17", f"DELETE {PATH}"]
    for given in ([], [17, "--all"]):
        assert "name either the NUMBER" in " ".join(terminal.misused("dead-letters", "delete", *given).split())


def test_filters_before_an_action_are_refused_where_they_would_mean_nothing(terminal: Terminal) -> None:
    said = terminal.misused("dead-letters", "--group", "g", "replay", "--all")
    assert "behind the name of the action" in " ".join(said.split())
