"""The HTTP clients of a process, as the settings have them."""

import ssl
from dataclasses import dataclass

from flowcatalyst.control.settings import HttpSettings, Settings
from flowcatalyst.core.clock import Clock
from flowcatalyst.core.errors import ConfigurationError
from flowcatalyst.core.extras import needs_extra
from flowcatalyst.http.contract import HttpClient
from flowcatalyst.http.egress import EgressGuard
from flowcatalyst.http.http1.client import Http1Client
from flowcatalyst.http.tls import client_context


@dataclass(slots=True, frozen=True)
class Clients:
    """The HTTP clients of a process."""

    http: HttpClient
    https: HttpClient

    async def close(self) -> None:
        await self.http.close()
        if self.https is not self.http:
            await self.https.close()


def build_clients(settings: Settings, clock: Clock, guard: EgressGuard) -> Clients:
    http = settings.mediator.http
    http1 = Http1Client(
        guard=guard,
        connect_timeout_s=http.connect_timeout_ms / 1000,
        request_timeout_s=http.timeout_ms / 1000,
        max_connections_per_origin=http.max_connections_per_origin,
        ssl_context=ssl_context_of(http),
        clock=clock,
    )
    if http.version == "HTTP_1_1":
        return Clients(http1, http1)
    with needs_extra("http2", "pyreqwest", what="mediator.http.version HTTP_2", package="pyreqwest"):
        from flowcatalyst.http.http2 import Http2Client  # few targets want it
    http2 = Http2Client(
        guard=guard,
        connect_timeout_s=http.connect_timeout_ms / 1000,
        request_timeout_s=http.timeout_ms / 1000,
        root_certificates_pem=None if http.ca_file is None else http.ca_file.read_bytes(),
        clock=clock,
    )
    return Clients(http1, http2)


def ssl_context_of(http: HttpSettings) -> ssl.SSLContext | None:
    """None: the client makes the default one when it first needs it, which takes a while.

    Raises `ConfigurationError` if its file cannot be used.
    """
    if http.ca_file is None:
        return None
    try:
        return client_context(http.ca_file)
    except OSError as error:
        raise ConfigurationError(f"mediator.http.ca_file {http.ca_file} cannot be used: {error}") from None
