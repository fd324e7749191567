import asyncio
import errno
import socket
from pathlib import Path

import aiohttp
import pytest
from litestar import Litestar

from flowcatalyst.api.server import _bind_error, api_server, bind
from flowcatalyst.app.router import App
from flowcatalyst.app.serve import serve
from flowcatalyst.control.settings import Settings
from flowcatalyst.core.errors import ConfigurationError
from tests.api.running import run_router, until
from tests.support.http_servers import Gate, raw_server
from tests.support.patience import PATIENCE_S


async def test_a_port_in_use_is_one_sentence_and_nothing_has_started(tmp_path: Path) -> None:
    taken = bind("127.0.0.1", 0)
    app = App(Settings(data_dir=tmp_path / "data", port=taken.port))
    with taken.socket, pytest.raises(ConfigurationError) as caught:
        async with serve(app):
            pytest.fail("it must not start")
    text = (
        f"port {taken.port} on 127.0.0.1 is in use: stop the other process or choose another port "
        "(--port or FLOWCATALYST_PORT)"
    )
    assert str(caught.value) == text
    assert not (tmp_path / "data").exists()


def test_a_privileged_port_says_what_to_do() -> None:
    text = _bind_error("127.0.0.1", 80, PermissionError(errno.EACCES, "Permission denied"))
    assert text == "port 80 on 127.0.0.1 needs privileges: choose a port above 1023 (--port or FLOWCATALYST_PORT)"


def test_a_foreign_address_says_what_to_do() -> None:
    with pytest.raises(ConfigurationError, match=r"192\.0\.2\.1 is not an address of this machine"):
        bind("192.0.2.1", 0)


def test_an_unknown_host_says_what_to_do() -> None:
    with pytest.raises(ConfigurationError, match=r"invalid host no such host\.invalid .*: name an address"):
        bind("no such host.invalid", 0)


def test_port_0_takes_a_free_port_and_tells_it() -> None:
    listening = bind("127.0.0.1", 0)
    with listening.socket:
        assert listening.port > 0
        assert listening.url == f"http://127.0.0.1:{listening.port}"


@pytest.mark.parametrize(("host", "from_here"), [("0.0.0.0", "127.0.0.1"), ("127.0.0.1", "127.0.0.1"), ("::", "::1")])
def test_whoever_listens_on_all_addresses_is_reached_by_loopback_from_here(host: str, from_here: str) -> None:
    listening = bind(host, 0)
    with listening.socket:
        assert listening.from_here == (from_here, listening.port)


def test_answers_do_not_wait_for_the_client_to_acknowledge_their_headers() -> None:
    with bind("127.0.0.1", 0).socket as listener:
        assert listener.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


async def test_head_answers_as_get_does_but_without_a_body(tmp_path: Path) -> None:
    async with run_router(tmp_path) as running, aiohttp.ClientSession(running.listening.url) as session:
        for path in ("/", "/health", "/metrics", "/monitoring/pool-stats", "/nothing/here"):
            async with session.get(path) as got, session.head(path) as head:
                assert (head.status, head.headers["content-type"]) == (got.status, got.headers["content-type"])
                assert int(head.headers["content-length"]) > 0
                assert await head.read() == b""


async def test_the_port_is_free_again_after_a_stop(tmp_path: Path) -> None:
    async with run_router(tmp_path) as running:
        port = running.listening.port
    bind("127.0.0.1", port).socket.close()


async def test_an_idle_connection_does_not_delay_the_stop(tmp_path: Path) -> None:
    loop = asyncio.get_running_loop()
    async with aiohttp.ClientSession() as session:
        async with run_router(tmp_path) as running:
            async with session.get(f"{running.listening.url}/health/live") as response:
                assert response.status == 200
            stopping_at = loop.time()
        assert loop.time() - stopping_at < 3


async def test_a_stop_with_nothing_under_way_waits_for_no_timer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[float] = []
    sleep = asyncio.sleep

    async def note(delay: float, result: None = None) -> None:
        waited.append(delay)
        await sleep(delay, result)

    listening = bind("127.0.0.1", 0)
    async with aiohttp.ClientSession(listening.url) as session:
        async with api_server(Litestar([]), listening):
            async with session.get("/nothing/here") as response:
                assert response.status == 404
                assert response.headers["Date"].endswith(" GMT")
            monkeypatch.setattr(asyncio, "sleep", note)
        monkeypatch.undo()
    assert sum(waited) < 0.1


async def test_a_request_under_way_is_cut_short_a_second_after_the_stop(tmp_path: Path) -> None:
    loop = asyncio.get_running_loop()
    async with aiohttp.ClientSession() as session:
        async with run_router(tmp_path) as running:
            url = running.receiver("slow?delayMs=60000")
            request = asyncio.ensure_future(session.post(url, json={"messageId": "m"}))

            async def under_way() -> bool:
                return bool((await running.stats())["totalRequests"])

            await until(under_way)
            stopping_at = loop.time()
        assert loop.time() - stopping_at < 4
        with pytest.raises(aiohttp.ClientError):
            (await request).raise_for_status()


async def test_the_api_tells_about_the_stop_while_attempts_in_flight_end(tmp_path: Path) -> None:
    gate = Gate()
    app = App(Settings(data_dir=tmp_path, port=0))
    stop = asyncio.Event()
    up: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def run() -> None:
        async with serve(app) as listening:
            up.set_result(listening.url)
            await stop.wait()

    async with raw_server(gate) as endpoint, asyncio.TaskGroup() as group, asyncio.timeout(PATIENCE_S):
        group.create_task(run())
        async with aiohttp.ClientSession(await up) as session:
            async with session.get("/health/ready") as response:
                assert response.status == 200
            async with session.post("/api/messages", json={"mediationTarget": endpoint.url()}) as response:
                assert response.status == 202
            await endpoint.until(lambda server: len(server.requests) == 1)
            stop.set()
            while not app.stopping:
                await asyncio.sleep(0.01)
            async with session.get("/health/ready") as response:
                assert response.status == 503
                assert (await response.json())["checks"][0]["detail"] == "stopping"
            async with session.get("/health/live") as response:
                assert response.status == 200
            gate.opened.set()
    assert app.stopped_clean
