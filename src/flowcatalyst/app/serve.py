"""A router and its API, as a process runs them."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio.lowlevel

from flowcatalyst.api.asgi import build_api
from flowcatalyst.api.reception import ConnectionLimits, connections_for
from flowcatalyst.api.server import Listening, api_server, bind
from flowcatalyst.app.router import App
from flowcatalyst.core.interpreter import file_limit


@asynccontextmanager
async def serve(
    app: App, *, with_sandbox: bool = True, limits: ConnectionLimits | None = None
) -> AsyncIterator[Listening]:
    """Run the router and its API. The API comes first and goes last, so that it can tell about start and stop."""
    api = build_api(app, with_sandbox=with_sandbox)
    limits = limits or ConnectionLimits(connections=connections_for(file_limit(), app.settings.api_connections))
    listening = bind(app.settings.host, app.settings.port)
    app.sandbox.address = listening.from_here if with_sandbox else None
    await anyio.lowlevel.checkpoint()  # loads what the first request would load, when there may be no file left to open
    try:
        async with app.storage_open():
            app.store.announce(listening.url_from_here)
            live = api.state.served.live  # ends before the server does: its answers have no end of their own
            async with api_server(api, listening, limits, app.clock), live.running(), app.routing():
                yield listening
    finally:
        listening.socket.close()
