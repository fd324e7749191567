"""From a queueUri to a queue."""

from collections.abc import Iterable
from typing import Final

from flowcatalyst.errors import ConfigurationError
from flowcatalyst.operations.router_config import QueueConfig
from flowcatalyst.queues.contract import Queue
from flowcatalyst.queues.embedded import EmbeddedQueue
from flowcatalyst.queues.embedded_store import EmbeddedStore

FORMS: Final = ("embedded:name",)


class QueueFactory:
    """Makes the queues of a configuration. Those of the embedded store are shared with whoever publishes to them."""

    def __init__(self, store: EmbeddedStore, names: Iterable[str], visibility_s: float) -> None:
        self.embedded = {name: EmbeddedQueue(store, name, visibility_s=visibility_s) for name in names}
        self._store = store
        self._visibility_s = visibility_s

    async def open(self, config: QueueConfig) -> Queue:
        """The open queue of a configuration. Raises `ConfigurationError` if its URI is none of ours."""
        scheme, _, rest = config.uri.partition(":")
        if scheme != "embedded" or not rest:
            forms = ", ".join(FORMS)
            raise ConfigurationError(f"queue {config.name}: its queueUri has none of the forms {forms}")
        return await self._open_embedded(rest.removeprefix("//"), config.visibility_s)

    async def open_embedded(self) -> None:
        """Open those that are known from the start, so that one can publish to them."""
        for queue in self.embedded.values():
            await queue.open()

    async def close(self, name: str, queue: Queue) -> None:
        """A queue that is no longer polled. Embedded ones stay open: one may still publish to them."""
        if queue not in self.embedded.values():
            await queue.close()

    async def close_all(self) -> None:
        for queue in self.embedded.values():
            await queue.close()

    async def _open_embedded(self, name: str, visibility_s: float | None) -> EmbeddedQueue:
        known = self.embedded.get(name)
        wanted_s = visibility_s or self._visibility_s
        if known is not None and known.capabilities.visibility_s == wanted_s:
            return known
        queue = EmbeddedQueue(self._store, name, visibility_s=wanted_s)
        await queue.open()
        self.embedded.setdefault(name, queue)
        return queue
