"""TLS as our HTTP client speaks it: servers are verified, HTTP/1.1 is offered, sessions are resumed."""

import ssl
from collections import OrderedDict
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Final

MAX_SESSIONS: Final = 256  # hosts whose latest session is remembered


class ResumingContext(ssl.SSLContext):
    """Offers each host the session of the latest connection to it, which saves the host's certificates.

    Neither asyncio nor uvloop can be told a session, but both make their TLS objects here.
    """

    latest: OrderedDict[str, ssl.SSLObject]  # by host, used longest ago first

    def wrap_bio(
        self,
        incoming: ssl.MemoryBIO,
        outgoing: ssl.MemoryBIO,
        server_side: bool = False,
        server_hostname: str | bytes | None = None,
        session: ssl.SSLSession | None = None,
    ) -> ssl.SSLObject:
        host = str(server_hostname)
        known = self.latest.pop(host, None)
        if known is not None and session is None:
            with suppress(ValueError):  # its handshake is not over, so it is not known whether its server was verified
                known.getpeercert()
                session = known.session
        wrapped = super().wrap_bio(incoming, outgoing, server_side, server_hostname, session)
        self.latest[host] = wrapped
        if len(self.latest) > MAX_SESSIONS:
            self.latest.popitem(last=False)
        return wrapped


def client_context(ca_file: Path | None = None) -> ssl.SSLContext:
    """Trusts the system's certificates and those of the file. Takes a while; raises `OSError` for a bad file."""
    context = ResumingContext(ssl.PROTOCOL_TLS_CLIENT)
    context.latest = OrderedDict()
    context.load_default_certs()
    context.set_alpn_protocols(["http/1.1"])
    if ca_file is not None:
        context.load_verify_locations(ca_file)
    return context


@cache
def system_context() -> ssl.SSLContext:
    """Trusts the system's certificates, which are read once."""
    return client_context()
