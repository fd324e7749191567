"""What is special to NATS JetStream: takeover, set-up and its check, groups, broken connections."""

import asyncio
import itertools
import json
import random
from collections.abc import AsyncIterator, Awaitable, Iterator
from pathlib import Path
from typing import Any

import nats
import pytest
from nats.aio.client import Client

from flowcatalyst.clock import SystemClock
from flowcatalyst.errors import InvalidMessageError, QueueUnavailableError
from flowcatalyst.message import Settled
from flowcatalyst.queues import nats_takeover
from flowcatalyst.queues.address import NatsAddress
from flowcatalyst.queues.contract import Outgoing
from flowcatalyst.queues.nats import NatsLogin, NatsQueue
from flowcatalyst.queues.nats_format import GROUP_HEADER
from tests.conformance.bench import bodies, grouped, in_order, nothing_comes, take
from tests.servers.nats import NatsServer, nats_server
from tests.servers.nats_jwt import Operator

OK, GONE = Settled.OK, Settled.GONE
MINUTE_S, SHORT_S = 60.0, 2.0
NANO = 1_000_000_000
numbers = itertools.count(1)
BODY = '{"id": "1", "mediationTarget": "http://127.0.0.1/"}'


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    with nats_server(tmp_path_factory.mktemp("nats")) as running:
        yield running


class Scene:
    """One stream, its clients, and a plain connection to the server."""

    def __init__(self, server: NatsServer) -> None:
        self.server = server
        self.address = NatsAddress((server.url,), f"S{next(numbers)}", "router", create=True)
        self._queues: list[NatsQueue] = []
        self._plain: Client | None = None

    def queue(self, visibility_s: float = MINUTE_S, **address: Any) -> NatsQueue:
        values = {name: getattr(self.address, name) for name in NatsAddress.__slots__} | address
        queue = NatsQueue("q", NatsAddress(**values), SystemClock(), visibility_s=visibility_s, login=NatsLogin())
        self._queues.append(queue)
        return queue

    async def plain(self) -> Client:
        if self._plain is None or not self._plain.is_connected:
            self._plain = await nats.connect(self.server.url)
        return self._plain

    async def api(self, subject: str, request: object = None) -> dict[str, Any]:
        answer = await (await self.plain()).request(
            f"$JS.API.{subject}", json.dumps(request).encode() if request else b""
        )
        result: dict[str, Any] = json.loads(answer.data)
        assert "error" not in result, result
        return result

    async def stream(self, **config: Any) -> None:
        name = self.address.stream
        defaults = {"name": name, "subjects": [f"{name}.>"], "duplicate_window": 300 * NANO}
        await self.api(f"STREAM.CREATE.{name}", defaults | config)

    async def consumer(self, **config: Any) -> None:
        name, durable = self.address.stream, self.address.consumer
        defaults = {"durable_name": durable, "ack_policy": "explicit", "ack_wait": 60 * NANO, "max_ack_pending": 5000}
        request = {"stream_name": name, "config": defaults | config}
        await self.api(f"CONSUMER.DURABLE.CREATE.{name}.{durable}", request)

    async def state(self) -> dict[str, Any]:
        return await self.api(f"CONSUMER.INFO.{self.address.stream}.{self.address.consumer}")

    async def pull_elsewhere(self, count: int) -> list[Any]:
        """As a client would that takes messages and never settles them."""
        connection = await self.plain()
        inbox = await connection.subscribe(connection.new_inbox())
        request = json.dumps({"batch": count, "no_wait": True}).encode()
        where = f"$JS.API.CONSUMER.MSG.NEXT.{self.address.stream}.{self.address.consumer}"
        await connection.publish(where, request, inbox.subject)
        taken = [await inbox.next_msg(2) for _ in range(count)]
        await inbox.unsubscribe()
        return taken

    async def close(self) -> None:
        for queue in self._queues:
            await queue.close()
        if self._plain is not None:
            await self._plain.close()


@pytest.fixture
async def scene(server: NatsServer) -> AsyncIterator[Scene]:
    scene = Scene(server)
    yield scene
    await scene.close()


async def crash(queue: NatsQueue) -> None:
    """Its connection is cut; it settles nothing."""
    assert queue._session is not None
    queue._session.link._connection.abort()
    await queue._session.link.close()
    queue._session = None


async def drained(queue: NatsQueue, within_s: float = 1.0) -> list[str]:
    """Receive and ack until nothing more comes."""
    seen: list[str] = []
    while batch := await queue.receive(7, within_s):
        seen += bodies(batch)
        assert set(await queue.ack(batch)) == {OK}
    return seen


def names(groups: str, count: int) -> list[str]:
    return [f"{group}{number}" for number in range(1, count + 1) for group in groups]


# Takeover


@pytest.mark.parametrize("seed", range(8))
async def test_after_a_crash_all_that_was_not_acked_comes_at_once_and_in_order(scene: Scene, seed: int) -> None:
    rng = random.Random(seed)
    first = scene.queue()
    everything = names("abc", 20)
    await first.publish(grouped(*everything))
    held = await take(first, rng.randint(1, 55))
    acked = [delivery for delivery in held if rng.random() < 0.4]
    rng.shuffle(acked)
    assert set(await first.ack(acked)) <= {OK}
    await crash(first)
    seen = await drained(scene.queue())
    assert sorted(seen) == sorted(set(everything) - set(bodies(acked)))
    assert in_order(seen)


async def test_what_was_published_since_the_crash_comes_after_what_was_hidden(scene: Scene) -> None:
    first, second = scene.queue(), scene.queue()
    await first.publish(grouped(*names("ab", 5)))
    assert len(await take(first, 6)) == 6
    await crash(first)
    await second.publish(grouped("a6", "b6", "a7"))
    assert await drained(second) == [*names("ab", 5), "a6", "b6", "a7"]


async def test_leases_that_ended_before_the_takeover_do_not_disturb_the_order(scene: Scene) -> None:
    first = scene.queue(SHORT_S)
    await first.publish(grouped(*names("ab", 6)))
    early = await take(first, 4)
    later = await take(first, 4)
    for _ in range(3):
        await asyncio.sleep(SHORT_S / 2)
        assert set(await first.extend(later, SHORT_S)) == {OK}
    assert await first.nack(later[-1:], 30.0) == [OK]
    await crash(first)  # the leases of `early` ended, in the server's redelivery queue they are first
    seen = await drained(scene.queue(SHORT_S))
    assert seen == names("ab", 6)
    assert len(early) == 4


async def test_a_restart_after_all_leases_ended_keeps_the_order_too(scene: Scene) -> None:
    first = scene.queue(SHORT_S)
    await first.publish(grouped(*names("ab", 5)))
    held = await take(first, 7)
    await first.ack([held[5], held[1]])
    await crash(first)
    await asyncio.sleep(SHORT_S + 1.0)
    assert await drained(scene.queue(SHORT_S)) == ["a1", "a2", "b2", "a3", "a4", "b4", "a5", "b5"]


async def test_a_takeover_of_a_very_long_span_waits_until_the_leases_end(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nats_takeover, "LARGEST_SPAN", 2)
    first = scene.queue(SHORT_S)
    await first.publish(grouped(*names("a", 8)))
    await take(first, 5)
    await crash(first)
    second = scene.queue(SHORT_S)
    assert await nothing_comes(second, 0.5)
    assert bodies(await take(second, 8)) == names("a", 8)


async def test_a_takeover_that_brings_too_little_waits_until_the_leases_end(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nats_takeover, "NAK", b"+WPI")  # a server that does not heed our give-backs
    first = scene.queue(SHORT_S)
    await first.publish(grouped(*names("a", 8)))
    await take(first, 5)
    await crash(first)
    second = scene.queue(SHORT_S)
    assert await nothing_comes(second, 0.2)
    assert bodies(await take(second, 8)) == names("a", 8)


async def test_a_takeover_waits_for_a_pull_that_somebody_left_open(scene: Scene) -> None:
    queue = scene.queue()
    await queue.receive(1, 0.0)
    await crash(queue)
    connection = await scene.plain()
    taken: list[bytes] = []

    async def keep(message: Any) -> None:
        taken.append(message.data)

    inbox = connection.new_inbox()
    await connection.subscribe(inbox, cb=keep)
    where = f"$JS.API.CONSUMER.MSG.NEXT.{scene.address.stream}.{scene.address.consumer}"
    await connection.publish(where, json.dumps({"batch": 2, "expires": 2 * NANO}).encode(), inbox)
    await connection.flush()
    second = scene.queue()
    assert await nothing_comes(second, 0.0)
    await second.publish(grouped("a1", "a2", "a3"))
    assert bodies(await take(second, 3)) == ["a1", "a2", "a3"]
    assert taken[:2] == [b"a1", b"a2"]


async def test_a_broken_connection_costs_neither_order_nor_what_is_in_hand(scene: Scene) -> None:
    """Two messages were on the wire to nobody when the connection broke; two are in hand and must not come again."""
    queue = scene.queue()
    await queue.publish(grouped(*names("a", 8)))
    held = await take(queue, 2)
    await scene.pull_elsewhere(2)
    assert queue._session is not None
    queue._session.link._connection.abort()
    while queue._session.link.alive:
        await asyncio.sleep(0.01)
    rest = await take(queue, 6)
    assert bodies(rest) == names("a", 8)[2:]
    assert await queue.ack([*held, *rest]) == [OK] * 8
    assert (await scene.state())["num_ack_pending"] == 0


async def test_deliveries_to_somebody_else_are_noticed_by_the_gap_in_their_numbers(
    scene: Scene,
) -> None:
    queue = scene.queue()
    await queue.publish(grouped(*names("a", 9)))
    held = await take(queue, 2)
    await scene.pull_elsewhere(3)
    rest = await take(queue, 7)
    assert bodies([*held, *rest]) == names("a", 9)
    assert [delivery.receive_count for delivery in rest] == [2, 2, 2, 1, 1, 1, 1]


# Give-backs


async def test_two_that_receive_from_one_consumer_are_told(scene: Scene) -> None:
    one, other = scene.queue(), scene.queue()
    await one.publish(grouped(*names("ab", 20)))
    async with asyncio.timeout(60):
        while not (one.advice and other.advice):
            for queue in (one, other):
                await queue.receive(1, 0.1)
    for queue in (one, other):
        assert "somebody else receives from consumer router" in queue.advice[0]


async def test_one_that_follows_another_is_told_nothing(scene: Scene) -> None:
    queue = scene.queue()
    await queue.publish(grouped(*names("ab", 20)))
    for leave in (NatsQueue.close, crash):
        assert len(await queue.receive(5, 1.0)) == 5
        await leave(queue)
        queue = scene.queue()
    assert len(await drained(queue)) == 40
    assert list(queue.advice) == []


async def test_what_is_given_back_in_any_order_comes_again_in_its_own(scene: Scene) -> None:
    queue = scene.queue()
    await queue.publish(grouped(*names("ab", 4)))
    held = await take(queue, 6)
    random.Random(1).shuffle(held)
    for delivery in held:
        assert await queue.nack([delivery], 0.0) == [OK]
    assert bodies(await take(queue, 8)) == names("ab", 4)


async def test_a_close_gives_everything_back_at_once_and_in_order(scene: Scene) -> None:
    queue = scene.queue()
    await queue.publish(grouped(*names("ab", 4)))
    held = await take(queue, 6)
    await queue.ack(held[1:2])
    await queue.nack(held[4:], 0.0)
    await queue.close()
    again = [message.data.decode() for message in await scene.pull_elsewhere(7)]
    assert again == [*bodies(held[:1] + held[2:]), "a4", "b4"]


async def test_a_close_ends_a_receive_that_waits(scene: Scene) -> None:
    queue = scene.queue()
    await queue.receive(1, 0.0)
    receiving = asyncio.gather(queue.receive(5, 5.0))
    await asyncio.sleep(0.2)
    await queue.close()
    async with asyncio.timeout(1):
        [batch] = await receiving
    assert batch == []


async def test_what_comes_after_a_receive_was_cancelled_is_handed_out_by_the_next(scene: Scene) -> None:
    queue, sender = scene.queue(), scene.queue()
    await queue.receive(1, 0.0)
    receiving = asyncio.gather(queue.receive(5, 5.0))
    await asyncio.sleep(0.2)
    receiving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await receiving
    await sender.publish(grouped("a1", "a2", "a3"))
    taken = await take(queue, 3)
    assert bodies(taken) == ["a1", "a2", "a3"]
    assert {delivery.receive_count for delivery in taken} == {1}


async def test_messages_that_come_after_a_pull_timed_out_are_not_lost(scene: Scene) -> None:
    queue = scene.queue()
    await queue.publish(grouped(*names("a", 6)))
    held = await take(queue, 2)
    scene.server.pause()
    try:
        with pytest.raises(QueueUnavailableError) as raised:
            await queue.receive(3, 0.5)
        with pytest.raises(QueueUnavailableError):
            await queue.receive(3, 0.5)
        assert Settled.OK not in await failing(queue.ack(held))
    finally:
        scene.server.resume()
    assert f"127.0.0.1:{scene.server.port}" in str(raised.value)
    rest = await take(queue, 4)
    assert bodies(rest) == names("a", 6)[2:]
    assert await queue.ack([*held, *rest]) == [OK] * 6


async def failing(call: Awaitable[list[Settled]]) -> list[Settled]:
    try:
        return await call
    except QueueUnavailableError:
        return [Settled.FAILED]


async def test_a_killed_server_says_nothing_on_our_output_and_forgets_no_ack(
    scene: Scene, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    queue = scene.queue(SHORT_S)
    await queue.publish(grouped(*names("ab", 5)))
    held = await take(queue, 8)
    assert set(await queue.ack(held[2:6])) == {OK}
    capfd.readouterr()
    scene.server.kill()
    try:
        for _ in range(3):
            with pytest.raises(QueueUnavailableError):
                await queue.receive(1, 0.2)
        with pytest.raises(QueueUnavailableError):
            await queue.publish(grouped("a6"))
    finally:
        scene.server.start()
    assert set(await queue.ack(held[:2] + held[6:])) == {OK}
    assert await drained(queue, SHORT_S + 2) == ["a5", "b5"]
    assert capfd.readouterr() == ("", "")
    assert caplog.records == []


async def test_a_stream_that_was_made_anew_is_not_taken_for_the_old_one(scene: Scene) -> None:
    queue = scene.queue()
    await queue.publish(grouped("a1", "a2", "a3"))
    old = await take(queue, 3)
    await queue.ack(old[:2])
    await scene.api(f"STREAM.DELETE.{scene.address.stream}")
    await scene.stream(retention="workqueue")
    await scene.consumer()
    other = scene.queue()
    await other.publish(grouped("b1", "b2", "b3"))
    await other.close()
    new = await take(queue, 3)
    assert bodies(new) == ["b1", "b2", "b3"]
    assert not {delivery.broker_id for delivery in new} & {delivery.broker_id for delivery in old}
    assert await queue.ack(old) == [GONE] * 3
    assert await queue.ack(new) == [OK] * 3


async def test_a_stream_that_is_deleted_is_told_and_its_receipts_are_gone(scene: Scene) -> None:
    queue = scene.queue(create=False)
    await scene.stream()
    await scene.consumer()
    await queue.publish(grouped("a1"))
    held = await take(queue, 1)
    await scene.api(f"STREAM.DELETE.{scene.address.stream}")
    with pytest.raises(QueueUnavailableError, match="does not exist"):
        await queue.receive(1, 0.5)
    assert await queue.ack(held) == [GONE]


# Set-up


async def test_without_create_what_is_missing_is_told_with_what_to_do(scene: Scene) -> None:
    queue = scene.queue(create=False)
    for call in (lambda: queue.receive(1, 0.0), lambda: queue.publish(grouped("a1")), queue.depth):
        with pytest.raises(QueueUnavailableError, match=r"stream S\d+ does not exist: .*create=true"):
            await call()
    await scene.stream()
    await queue.publish(grouped("a1"))
    with pytest.raises(QueueUnavailableError, match=r"no consumer router: .*create=true"):
        await queue.receive(1, 0.0)
    await scene.consumer()
    assert bodies(await take(queue, 1)) == ["a1"]
    assert queue.advice == []


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        ({"deliver_subject": "somewhere"}, "pushes its messages"),
        ({"ack_policy": "none"}, "ack policy none"),
        ({"ack_policy": "all"}, "ack policy all"),
        ({"headers_only": True}, "headers without bodies"),
    ],
)
@pytest.mark.parametrize("create", [True, False])
async def test_a_consumer_that_cannot_serve_is_refused(
    scene: Scene, config: dict[str, Any], sentence: str, create: bool
) -> None:
    await scene.stream()
    await scene.consumer(**config)
    with pytest.raises(QueueUnavailableError, match=sentence):
        await scene.queue(create=create).receive(1, 0.0)


async def test_a_set_up_that_asks_for_trouble_is_told(scene: Scene) -> None:
    await scene.stream(storage="memory", duplicate_window=NANO * 30, max_age=NANO * 3600)
    await scene.consumer(ack_wait=NANO * 3, max_deliver=5, max_ack_pending=10)
    queue = scene.queue(create=False)
    queue.fit(5000)
    before = SystemClock().monotonic()
    await queue.publish(grouped("a1"))
    [delivery] = await take(queue, 1)
    told = " / ".join(queue.advice)
    for word in ("in memory", "duplicate_window", "max_age", "ack_wait of 3 s", "max_deliver", "max_ack_pending"):
        assert word in told, word
    assert len(queue.advice) == 6
    assert delivery.lease_until < before + 10
    assert await queue.extend([delivery], MINUTE_S) == [OK]
    assert delivery.lease_until < before + 10


async def test_with_create_a_consumer_is_made_to_fit(scene: Scene) -> None:
    await scene.stream()
    await scene.consumer(ack_wait=NANO * 3, max_deliver=5, max_ack_pending=10)
    queue = scene.queue()
    queue.fit(3000)
    await queue.receive(1, 0.0)
    assert queue.advice == []
    config = (await scene.state())["config"]
    assert (config["ack_wait"], config["max_deliver"], config["max_ack_pending"]) == (60 * NANO, -1, 3512)
    queue.fit(9000)
    await queue.receive(1, 0.0)
    assert (await scene.state())["config"]["max_ack_pending"] == 9512


async def test_a_consumer_that_lets_few_be_in_flight_neither_hangs_nor_fails(scene: Scene) -> None:
    await scene.stream()
    await scene.consumer(max_ack_pending=3)
    queue = scene.queue(create=False)
    await queue.publish(grouped(*names("a", 7)))
    seen: list[str] = []
    async with asyncio.timeout(10):
        while len(seen) < 7:
            batch = await queue.receive(5, 1.0)
            seen += bodies(batch)
            assert await queue.receive(5, 0.0) == []
            await queue.ack(batch)
    assert seen == names("a", 7)


@pytest.mark.parametrize(("subject", "published_to"), [("shop.*.new", "shop.messages.new"), ("shop.one", "shop.one")])
async def test_a_subject_is_filtered_by_and_published_to(scene: Scene, subject: str, published_to: str) -> None:
    prefix = scene.address.stream.lower()
    subject, published_to = f"{prefix}.{subject}", f"{prefix}.{published_to}"
    queue = scene.queue(subject=subject)
    await queue.publish(grouped("a1"))
    assert bodies(await take(queue, 1)) == ["a1"]
    assert (await scene.state())["config"]["filter_subject"] == subject
    stream = await scene.api(f"STREAM.INFO.{scene.address.stream}", {"subjects_filter": ">"})
    assert list(stream["state"]["subjects"]) == [published_to]


# Groups, duplicates and sizes


@pytest.mark.parametrize(
    ("headers", "body", "group"),
    [
        ({GROUP_HEADER: "by-header"}, '{"messageGroupId": "by-body"}', "by-header"),
        ({GROUP_HEADER: "50%25 off"}, "{}", "50%25 off"),
        ({}, '{"messageGroupId": "by-body"}', None),  # the router reads it
        ({}, '{"messageGroupId": " "}', "by-token"),
        ({}, '{"messageGroupId": 5}', None),  # nor is it a string there, but it is read as one
        ({}, "no json", "by-token"),
    ],
)
async def test_a_group_comes_from_the_header_else_the_body_else_the_subject(
    scene: Scene, headers: dict[str, str], body: str, group: str | None
) -> None:
    queue = scene.queue(group_token=3)
    await queue.receive(1, 0.0)
    connection = await scene.plain()
    subject = f"{scene.address.stream}.x.by-token"
    await connection.jetstream().publish(subject, body.encode(), headers=headers or None)
    [delivery] = await take(queue, 1)
    assert delivery.group == group


async def test_a_message_published_without_a_group_gets_none_from_its_subject(scene: Scene) -> None:
    queue = scene.queue(group_token=1)
    await queue.publish([Outgoing("{}"), Outgoing("{}", "with one")])
    assert [delivery.group for delivery in await take(queue, 2)] == [None, "with one"]


async def test_the_header_that_names_the_group_can_be_chosen(scene: Scene) -> None:
    queue = scene.queue(group_header="X-Order")
    await queue.publish([Outgoing("1", "größe"), Outgoing("2", "plain")])
    assert [delivery.group for delivery in await take(queue, 2)] == ["größe", "plain"]


async def test_any_deduplication_id_counts_once(scene: Scene) -> None:
    queue = scene.queue()
    ids = ["plain", "größe 漢字", "line\nbreak", "100%", "100%25", " blank", "", "x" * 2000]
    once = await queue.publish([Outgoing(BODY, "a", one) for one in ids])
    again = await queue.publish([Outgoing(BODY, "a", one) for one in ids])
    assert [one.duplicate for one in once] == [False] * len(ids)
    assert [one.duplicate for one in again] == [True] * len(ids)
    assert [one.broker_id for one in once] == [one.broker_id for one in again]
    assert [delivery.broker_id for delivery in await take(queue, 8)] == [one.broker_id for one in once]


async def test_what_the_server_could_never_take_is_refused_before_anything_is_published(scene: Scene) -> None:
    queue = scene.queue()
    with pytest.raises(InvalidMessageError, match="1048576"):
        await queue.publish([Outgoing("1", "a"), Outgoing("2", "g" * 1_100_000)])
    assert await nothing_comes(queue, 0.3)


async def test_no_later_message_of_a_group_is_published_after_one_that_failed(scene: Scene) -> None:
    await scene.stream(max_msg_size=200)
    await scene.consumer()
    queue = scene.queue()
    messages = [Outgoing("a1", "a"), Outgoing("b1", "b"), Outgoing("x" * 300, "a"), Outgoing("a3", "a")]
    with pytest.raises(InvalidMessageError, match="exceeds"):
        await queue.publish(messages)
    assert await drained(queue, 0.3) == ["a1", "b1"]


async def test_a_stream_that_takes_no_more_is_told(scene: Scene) -> None:
    await scene.stream(max_msgs=1, discard="new")
    queue = scene.queue(create=False)
    await queue.publish(grouped("a1"))
    with pytest.raises(QueueUnavailableError, match="maximum messages exceeded"):
        await queue.publish(grouped("a2"))


# Who we are


async def refused(server: NatsServer, login: NatsLogin, url: str | None = None) -> str:
    address = NatsAddress((url or server.url_for(),), "S", "router", create=True)
    queue = NatsQueue("q", address, SystemClock(), visibility_s=60.0, login=login)
    with pytest.raises(QueueUnavailableError) as raised:
        await queue.receive(1, 0.0)
    await queue.close()
    return str(raised.value)


async def works(server: NatsServer, login: NatsLogin) -> bool:
    address = NatsAddress((server.url_for(),), "S", "router", create=True)
    queue = NatsQueue("q", address, SystemClock(), visibility_s=60.0, login=login)
    await queue.publish(grouped("a1"))
    taken = await take(queue, 1)
    await queue.ack(taken)
    await queue.close()
    return bodies(taken) == ["a1"]


async def test_wrong_credentials_are_told_without_showing_them(tmp_path: Path) -> None:
    with nats_server(tmp_path, user="router", password="right-secret") as server:
        assert await works(server, NatsLogin(user="router", password="right-secret"))
        text = await refused(server, NatsLogin(user="router", password="wrong-secret"))
        assert "Authorization Violation" in text
        assert f"127.0.0.1:{server.port}" in text
        assert "secret" not in text
        assert "Authorization" in await refused(server, NatsLogin(token="wrong-secret"))
        assert "secret" not in repr(NatsLogin(user="router", password="wrong-secret", token="secret"))


async def test_tls_is_used_and_a_stranger_is_not_trusted(tmp_path: Path, server: NatsServer) -> None:
    with nats_server(tmp_path, tls=True) as secure:
        assert await works(secure, NatsLogin(ca_file=secure.ca_path))
        assert "certificate" in await refused(secure, NatsLogin())
        plain = server.url_for().replace("nats://", "tls://")
        assert "TLS" in await refused(server, NatsLogin(ca_file=secure.ca_path), plain)
    assert "No such file" in await refused(server, NatsLogin(ca_file=tmp_path / "missing.pem"))


async def test_a_credentials_file_opens_a_server_that_trusts_its_signer(tmp_path: Path) -> None:
    path = tmp_path / "router.creds"
    operator, stranger = Operator(), Operator()
    with nats_server(tmp_path, operator=operator) as server:
        path.write_text(operator.credentials())
        assert await works(server, NatsLogin(credentials_file=path))
        path.write_text(stranger.credentials())
        text = await refused(server, NatsLogin(credentials_file=path))
        assert "Authorization Violation" in text
        assert "eyJ" not in text  # how every token begins
        assert "Authorization" in await refused(server, NatsLogin())


async def test_a_credentials_file_that_is_none_is_told(tmp_path: Path, server: NatsServer) -> None:
    path = tmp_path / "router.creds"
    path.write_text("nothing of use")
    assert "is no credentials file" in await refused(server, NatsLogin(credentials_file=path))


async def test_the_other_servers_are_tried_when_one_is_away(scene: Scene) -> None:
    queue = scene.queue(servers=("nats://127.0.0.1:1", scene.server.url))
    await queue.publish(grouped("a1"))
    assert bodies(await take(queue, 1)) == ["a1"]


async def test_an_account_without_jetstream_is_told(tmp_path: Path) -> None:
    with nats_server(tmp_path) as server:
        configuration = json.loads((tmp_path / "nats.conf").read_text())
        del configuration["jetstream"]
        server.kill()
        (tmp_path / "plain.conf").write_text(json.dumps(configuration))
        server._command = lambda: ["nats-server", "-c", tmp_path / "plain.conf"]  # type: ignore[method-assign]
        server.start()
        assert "JetStream is not enabled" in await refused(server, NatsLogin())
