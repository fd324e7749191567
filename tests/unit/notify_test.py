"""The notifier: what is sent when, what happens if the webhook fails, and what is never sent. All in virtual time."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import msgspec
import pytest

from flowcatalyst.control.notify import MAX_WAITING, POST_LIMIT_S, RETRY_PAUSES_S, Notifier
from flowcatalyst.control.settings import NotificationSettings
from flowcatalyst.core.errors import ConfigurationError, ConnectError
from flowcatalyst.core.message import Severity
from flowcatalyst.core.targets import Target
from flowcatalyst.core.tasks import Tasks
from flowcatalyst.core.warnings import WarningCode, WarningFilter, WarningLog
from flowcatalyst.http.contract import Response
from tests.support.virtual_loop import VirtualClock

pytestmark = pytest.mark.virtual_time

WARN, ERROR, CRITICAL = Severity
URL = "http://hooks.test/s3cret"
BATCH_S = 60.0
GIVE_UP_S = sum(RETRY_PAUSES_S)


@dataclass(slots=True)
class Post:
    at: float
    target: Target
    headers: Sequence[tuple[str, str]]
    body: Any

    @property
    def messages(self) -> list[str]:
        return [warning["message"] for warning in self.body["warnings"]]


class Webhook:
    """A client whose answers a test chooses: a status, an error to raise, or None for no answer at all."""

    def __init__(self) -> None:
        self.answers: list[int | Exception | None] = []
        self.posts: list[Post] = []
        self.latency_s = 0.0

    async def post(
        self,
        target: Target,
        headers: Sequence[tuple[str, str]],
        body: bytes,
        timeout_s: float | None = None,
        lines: str = "",
    ) -> Response:
        self.posts.append(Post(asyncio.get_running_loop().time(), target, headers, msgspec.json.decode(body)))
        answer = self.answers.pop(0) if self.answers else 200
        await asyncio.sleep(self.latency_s)
        if answer is None:
            await asyncio.Event().wait()
        if isinstance(answer, Exception):
            raise answer
        assert answer is not None
        return Response(answer, [], b"")

    async def close(self) -> None:
        """Nothing to close."""

    @property
    def told(self) -> list[tuple[float, list[str]]]:
        return [(post.at, post.messages) for post in self.posts]


class Scene:
    """A log, its notifier and the webhook."""

    def __init__(self, **settings: Any) -> None:
        self.clock = VirtualClock()
        self.webhook = Webhook()
        self.log = WarningLog(self.clock)
        given = NotificationSettings(**{"webhook_url": URL, "batch_s": BATCH_S, **settings})
        self.notifier = Notifier(given, self.webhook, self.clock, self.log, "router-7")
        self.failures: list[tuple[Severity, str, int]] = []  # what the log held of them at the end

    def warn(self, *messages: str, severity: Severity = WARN, sources: int = 1) -> None:
        for number, message in enumerate(messages):
            self.log.add(WarningCode.PROCESSING, severity, message, f"pool {number % sources}")

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        tasks = Tasks()
        task = tasks.spawn(self.notifier.run())
        await asyncio.sleep(0)
        try:
            yield
        finally:
            assert not task.done(), "the notifier died"
            await tasks.cancel()

    def failures_now(self) -> list[tuple[Severity, str, int]]:
        wanted = WarningFilter(code=WarningCode.NOTIFICATION_FAILED)
        return [(warning.severity, warning.message, warning.count) for warning in self.log.recent(wanted)]


async def play(act: Callable[[Scene], Awaitable[None]], **settings: Any) -> Scene:
    """Run the notifier while `act` acts."""
    scene = Scene(**settings)
    async with scene.running():
        await act(scene)
    scene.failures = scene.failures_now()
    return scene


async def test_a_post_holds_everything_about_the_warnings_and_the_router() -> None:
    async def act(scene: Scene) -> None:
        scene.warn("a", severity=ERROR)
        await asyncio.sleep(20)
        scene.warn("a", severity=ERROR)
        await asyncio.sleep(BATCH_S)

    [post] = (await play(act)).webhook.posts
    assert (post.target.authority, post.target.path) == ("hooks.test", "/s3cret")
    assert post.headers == (("Content-Type", "application/json"),)
    [warning] = post.body["warnings"]
    began = datetime.fromisoformat(warning["firstAt"])
    assert (datetime.fromisoformat(warning["lastAt"]) - began).total_seconds() == 20
    assert (datetime.fromisoformat(post.body["sentAt"]) - began).total_seconds() == BATCH_S
    assert began.tzinfo is not None
    del warning["firstAt"], warning["lastAt"], post.body["sentAt"]
    assert post.body == {
        "router": "router-7",
        "warnings": [
            {"id": 1, "code": "PROCESSING", "severity": "ERROR", "message": "a", "source": "pool 0", "count": 2}
        ],
    }


async def test_warnings_are_collected_and_sent_together_in_their_order() -> None:
    async def act(scene: Scene) -> None:
        await asyncio.sleep(100)
        scene.warn("a")
        await asyncio.sleep(59)
        scene.warn("b", "a")
        await asyncio.sleep(2)
        scene.warn("c")
        await asyncio.sleep(500)

    assert (await play(act)).webhook.told == [(160, ["a", "b"]), (221, ["c"])]


async def test_nothing_is_sent_while_there_is_nothing_new() -> None:
    async def act(scene: Scene) -> None:
        scene.warn("a")
        await asyncio.sleep(100)
        for _ in range(100):
            scene.warn("a")
            await asyncio.sleep(100)

    assert (await play(act)).webhook.told == [(60, ["a"])]


async def test_a_critical_warning_is_sent_at_once_together_with_what_waits() -> None:
    async def act(scene: Scene) -> None:
        scene.warn("a")
        await asyncio.sleep(7)
        scene.warn("fire", severity=CRITICAL)
        await asyncio.sleep(1)
        scene.warn("b")
        await asyncio.sleep(500)

    assert (await play(act)).webhook.told == [(7, ["a", "fire"]), (68, ["b"])]


async def test_a_critical_warning_that_comes_while_others_are_on_their_way_follows_at_once() -> None:
    async def act(scene: Scene) -> None:
        scene.webhook.latency_s = 3.0
        scene.warn("a")
        await asyncio.sleep(61)
        scene.warn("fire", severity=CRITICAL)
        await asyncio.sleep(500)

    assert (await play(act)).webhook.told == [(60, ["a"]), (63, ["fire"])]


@pytest.mark.parametrize(
    ("least", "sent"), [("WARN", ["warn", "error", "fire"]), ("ERROR", ["error", "fire"]), ("CRITICAL", ["fire"])]
)
async def test_only_warnings_that_are_severe_enough_are_sent(least: str, sent: list[str]) -> None:
    async def act(scene: Scene) -> None:
        scene.warn("warn", severity=WARN)
        scene.warn("error", severity=ERROR)
        scene.warn("fire", severity=CRITICAL)
        await asyncio.sleep(500)

    assert (await play(act, min_severity=least)).webhook.told == [(0, sent)]


@pytest.mark.parametrize(("least", "sent"), [("ERROR", ["it is down", "it is back"]), ("CRITICAL", [])])
async def test_whoever_is_told_of_a_state_is_told_that_it_is_over(least: str, sent: list[str]) -> None:
    async def act(scene: Scene) -> None:
        scene.log.add(WarningCode.ENDPOINT_DOWN, ERROR, "it is down", "http://shop.test/")
        await asyncio.sleep(100)
        scene.log.end(WarningCode.ENDPOINT_DOWN, "it is back", "http://shop.test/")
        await asyncio.sleep(100)

    told = (await play(act, min_severity=least)).webhook.told
    assert [text for _, texts in told for text in texts] == sent


async def test_an_acknowledged_warning_that_comes_back_is_sent_again() -> None:
    async def act(scene: Scene) -> None:
        scene.warn("a")
        await asyncio.sleep(100)
        scene.log.acknowledge(1)
        scene.warn("a")
        await asyncio.sleep(100)

    assert (await play(act)).webhook.told == [(60, ["a"]), (160, ["a"])]


async def test_a_warning_that_comes_back_while_it_still_waits_is_sent_once() -> None:
    async def act(scene: Scene) -> None:
        for _ in range(3):
            scene.warn("a")
            scene.log.acknowledge(1)
        await asyncio.sleep(500)

    [post] = (await play(act)).webhook.posts
    assert [warning["count"] for warning in post.body["warnings"]] == [3]


@pytest.mark.parametrize("status", [200, 201, 202, 204, 299])
async def test_any_2xx_is_a_success(status: int) -> None:
    async def act(scene: Scene) -> None:
        scene.webhook.answers = [status]
        scene.warn("a")
        await asyncio.sleep(500)

    scene = await play(act)
    assert len(scene.webhook.posts) == 1
    assert scene.failures == []


@pytest.mark.parametrize("failure", [500, 404, 302, 199, ConnectError("refused"), RuntimeError("a bug"), None])
async def test_a_failed_post_is_tried_again_and_nothing_is_lost(failure: int | Exception | None) -> None:
    async def act(scene: Scene) -> None:
        scene.webhook.answers = [failure, failure]
        scene.warn("a", "b")
        await asyncio.sleep(500)

    scene = await play(act)
    waited_s = POST_LIMIT_S if failure is None else 0.0
    times = [60.0, 60.0 + waited_s + 1.0, 60.0 + 2 * waited_s + 1.0 + 5.0]
    assert scene.webhook.told == [(at, ["a", "b"]) for at in times]
    assert scene.failures == []


async def test_a_batch_that_fails_again_and_again_is_dropped_with_a_warning_that_is_never_sent() -> None:
    async def act(scene: Scene) -> None:
        scene.webhook.answers = [500] * 4
        scene.warn("lost")
        await asyncio.sleep(60 + GIVE_UP_S - 1)
        assert scene.failures_now() == []
        await asyncio.sleep(2)
        assert scene.failures_now() == [(ERROR, "warnings could not be sent to hooks.test: it answered 500", 1)]
        await asyncio.sleep(5000)
        scene.warn("next")
        await asyncio.sleep(5000)

    scene = await play(act)
    assert [messages for _, messages in scene.webhook.told] == [["lost"]] * 4 + [["next"]]
    assert "s3cret" not in scene.failures[0][1]


async def test_failures_of_the_same_kind_are_one_warning_with_a_count() -> None:
    async def act(scene: Scene) -> None:
        scene.webhook.answers = [500] * 8
        for number in range(2):
            scene.warn(*(f"{number} {n}" for n in range(number + 1)))
            await asyncio.sleep(500)

    [(_, _, count)] = (await play(act)).failures
    assert count == 2


async def test_what_comes_while_a_batch_is_tried_again_gets_all_its_own_attempts() -> None:
    async def act(scene: Scene) -> None:
        scene.webhook.answers = [500] * 7
        scene.warn("early", severity=CRITICAL)
        await asyncio.sleep(GIVE_UP_S - 1)
        scene.warn("late", severity=CRITICAL)
        await asyncio.sleep(500)

    told = (await play(act)).webhook.told
    assert [messages for _, messages in told] == [["early"]] * 4 + [["late"]] * 4
    assert told[4][0] == GIVE_UP_S  # at once after the one before


async def test_what_waits_is_bounded_the_first_stay_and_critical_ones_always_find_room() -> None:
    async def act(scene: Scene) -> None:
        scene.webhook.answers = [None]
        scene.warn("first", severity=CRITICAL)
        await asyncio.sleep(1)  # on its way, without an answer
        scene.warn(*(f"w{number}" for number in range(MAX_WAITING + 5)), sources=20)
        scene.warn("fire", severity=CRITICAL)
        await asyncio.sleep(500)

    scene = await play(act)
    last = scene.webhook.posts[-1].messages
    assert last == [*(f"w{number}" for number in range(1, MAX_WAITING)), "fire"]
    assert scene.failures == [(ERROR, f"warnings were dropped: more than {MAX_WAITING} wait to be sent", 6)]


async def test_made_up_texts_leave_room_for_others_and_for_what_is_critical() -> None:
    async def act(scene: Scene) -> None:
        scene.warn(*(f"no pool {number}" for number in range(2 * MAX_WAITING)))
        scene.log.add(WarningCode.STANDBY, WARN, "the lock cannot be reached", "standby")
        scene.warn("fire", severity=CRITICAL)
        await asyncio.sleep(500)

    scene = await play(act)
    [post] = scene.webhook.posts
    assert post.messages == [*(f"no pool {n}" for n in range(1, 100)), "the lock cannot be reached", "fire"]
    text = "warnings were dropped: more than 100 of PROCESSING from pool 0 wait to be sent"
    assert scene.failures == [(ERROR, text, 2 * MAX_WAITING - 100 + 1)]


async def test_a_waiting_warning_that_comes_back_needs_no_more_room() -> None:
    async def act(scene: Scene) -> None:
        scene.warn(*(f"w{number}" for number in range(MAX_WAITING)), sources=20)
        scene.log.acknowledge_all()
        scene.log.add(WarningCode.PROCESSING, WARN, "w7", "pool 7")
        await asyncio.sleep(500)

    scene = await play(act)
    assert len(scene.webhook.posts[0].messages) == MAX_WAITING
    assert scene.failures == []


async def stop_and_flush(
    before: Callable[[Scene], Awaitable[None]], limit_s: float = 2.0, *, answer: int | None = 200
) -> tuple[Scene, float]:
    """Act while the notifier runs, stop it, flush, and return how long the flush took."""
    scene = Scene()
    async with scene.running():
        await before(scene)
    scene.webhook.answers = [answer]
    stopped_at = scene.clock.monotonic()
    await scene.notifier.flush(limit_s)
    scene.failures = scene.failures_now()
    return scene, scene.clock.monotonic() - stopped_at


async def collect_two(scene: Scene) -> None:
    scene.warn("a", "b")
    await asyncio.sleep(1)


async def test_what_waits_at_the_stop_is_sent() -> None:
    scene, _ = await stop_and_flush(collect_two)
    assert scene.webhook.told == [(1, ["a", "b"])]


async def test_what_was_on_its_way_at_the_stop_is_sent_again_with_what_came_since() -> None:
    async def hang(scene: Scene) -> None:
        scene.webhook.answers = [None]
        scene.warn("a", severity=CRITICAL)
        await asyncio.sleep(1)
        scene.warn("b")

    scene, _ = await stop_and_flush(hang)
    assert scene.webhook.told == [(0, ["a"]), (1, ["a", "b"])]


async def test_what_was_sent_is_not_sent_again_at_the_stop() -> None:
    async def send(scene: Scene) -> None:
        scene.warn("a")
        await asyncio.sleep(100)

    scene, _ = await stop_and_flush(send)
    assert scene.webhook.told == [(60, ["a"])]


@pytest.mark.parametrize(("answer", "seconds"), [(None, 2.0), (500, 0.0)])
async def test_a_webhook_that_fails_does_not_hold_up_the_stop(answer: int | None, seconds: float) -> None:
    scene, took_s = await stop_and_flush(collect_two, answer=answer)
    assert took_s == seconds
    assert len(scene.webhook.posts) == 1
    assert len(scene.failures) == 1


async def test_a_notifier_that_is_started_again_goes_on_with_what_it_had() -> None:
    scene = Scene()
    scene.webhook.answers = [None]
    async with scene.running():
        scene.warn("a", severity=CRITICAL)
        await asyncio.sleep(1)
    async with scene.running():
        await asyncio.sleep(1)
    assert scene.webhook.told == [(0, ["a"]), (1, ["a"])]


@pytest.mark.parametrize("url", [None, "", "hooks.test/x", "ftp://hooks.test/s3cret", "http://me:s3cret@hooks.test/"])
def test_a_url_that_cannot_be_called_is_a_configuration_error_that_does_not_repeat_it(url: str | None) -> None:
    with pytest.raises(ConfigurationError, match=r"notifications\.webhook_url cannot be used: target ") as caught:
        Scene(webhook_url=url)
    assert "s3cret" not in str(caught.value)
