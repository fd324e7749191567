"""The peers of the benchmark: one nginx worker as the sink, wrk as the limit, and an endpoint that takes its time."""

import asyncio
import re
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import trustme
from tests.servers import ServerMissingError, program

_NGINX_CONF = """
worker_processes 1;
daemon off;
pid {folder}/nginx.pid;
error_log {folder}/error.log;
events {{ worker_connections 4096; }}
http {{
  access_log off;
  client_body_temp_path {folder}/body;
  proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi;
  scgi_temp_path {folder}/scgi;
  keepalive_requests 100000000;
  default_type application/json;
  server {{
    listen 127.0.0.1:{port} backlog=4096;
    {tls}
    location / {{ return 200 '{{"ack":true}}'; }}
  }}
}}
"""
_NGINX_TLS = """
    listen 127.0.0.1:{port} ssl http2 backlog=4096;
    ssl_certificate {folder}/server.pem;
    ssl_certificate_key {folder}/server.pem;
"""
_WRK_SCRIPT = """
wrk.method = "POST"
wrk.body = '{"messageId":"m12345"}'
wrk.headers["Content-Type"] = "application/json"
wrk.headers["Accept"] = "application/json"
wrk.headers["Authorization"] = "Bearer secret"
"""


def require_tools() -> None:
    """nginx and wrk, installed as Debian packages if they are missing."""
    try:
        program("nginx")
        program("wrk")
    except ServerMissingError as error:
        sys.exit(f"The benchmark needs nginx and wrk: {error}")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def nginx_sink(folder: Path) -> Iterator[str]:
    """An nginx with one worker that acks every POST; yields its URL."""
    with _nginx(folder, "") as (port, _):
        yield f"http://127.0.0.1:{port}/hook"


@contextmanager
def nginx_sinks(folder: Path) -> Iterator[tuple[str, str, Path]]:
    """The same worker over http and over https, HTTP/2 included: both URLs and the file with its CA."""
    authority = trustme.CA()
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(folder / "server.pem")
    authority.cert_pem.write_to_path(folder / "ca.pem")
    with _nginx(folder, _NGINX_TLS) as (port, tls_port):
        yield f"http://127.0.0.1:{port}/hook", f"https://127.0.0.1:{tls_port}/hook", folder / "ca.pem"


@contextmanager
def _nginx(folder: Path, tls: str) -> Iterator[tuple[int, int]]:
    port, tls_port = free_port(), free_port()
    config = folder / "nginx.conf"
    config.write_text(_NGINX_CONF.format(folder=folder, port=port, tls=tls.format(folder=folder, port=tls_port)))
    process = subprocess.Popen([program("nginx"), "-c", config, "-p", folder, "-e", folder / "error.log"])
    try:
        _wait_for_port(port)
        yield port, tls_port
    finally:
        process.terminate()
        process.wait()


def _wait_for_port(port: int) -> None:
    for _ in range(100):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    sys.exit(f"nginx did not start on port {port}")


def run_wrk(url: str, connections: int, folder: Path, seconds: int = 4) -> float:
    """Requests per second that wrk gets out of the sink."""
    script = folder / "post.lua"
    script.write_text(_WRK_SCRIPT)
    command = [program("wrk"), "-t1", f"-c{connections}", f"-d{seconds}s", "-s", str(script), url]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    found = re.search(r"Requests/sec:\s+([\d.]+)", output)
    if found is None:
        sys.exit(f"wrk said something unexpected:\n{output}")
    return float(found[1])


@asynccontextmanager
async def slow_endpoint(seconds: float) -> AsyncIterator[str]:
    """An endpoint that acks every POST after a while; yields its URL."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = re.search(rb"(?i)content-length: (\d+)", head)
                await reader.readexactly(int(length[1]) if length else 0)
                await asyncio.sleep(seconds)
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 12\r\n\r\n" + b'{"ack":true}')
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/slow"
    finally:
        server.close()
