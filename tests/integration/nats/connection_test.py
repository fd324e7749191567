"""Nacks, closed and cancelled receives on JetStream; servers that stop, die or lose a stream; and who we are there."""

import asyncio
import json
import random
from collections.abc import Awaitable
from pathlib import Path

import pytest

from flowcatalyst.core.clock import SystemClock
from flowcatalyst.core.errors import QueueUnavailableError
from flowcatalyst.core.message import Settled
from flowcatalyst.queues.address import NatsAddress
from flowcatalyst.queues.nats.queue import NatsLogin, NatsQueue
from tests.conformance.bench import bodies, grouped, take
from tests.integration.nats.scene import GONE, OK, SHORT_S, Scene, drained, names
from tests.servers.nats import NatsServer, nats_program, nats_server
from tests.servers.nats_jwt import Operator

# Give-backs


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
    receiving = asyncio.gather(queue.receive(5, 60.0))
    await asyncio.sleep(0.2)
    await queue.close()
    async with asyncio.timeout(30):
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
    late = held[:2] + held[6:]
    results = await queue.ack(late)
    assert GONE not in results
    # A server that was killed may have forgotten what it showed last: it ignores acks of that and shows it again.
    unconfirmed = {name for name, result in zip(bodies(late), results, strict=True) if result is not OK}
    shown = await drained(queue, SHORT_S + 2)
    assert [name for name in shown if name not in unconfirmed] == ["a5", "b5"]
    assert shown == [name for name in names("ab", 5) if name in shown]
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


# Who we are


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
    assert "is not a credentials file" in await refused(server, NatsLogin(credentials_file=path))


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
        server._command = lambda: [nats_program(), "-c", tmp_path / "plain.conf"]  # type: ignore[method-assign]
        server.start()
        assert "JetStream is not enabled" in await refused(server, NatsLogin())
