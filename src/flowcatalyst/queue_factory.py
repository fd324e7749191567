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

    def __init__(self, store: EmbeddedStore, visibility_s: float) -> None:
        self.embedded: dict[str, EmbeddedQueue] = {}  # by their name in the store
        self._store = store
        self._visibility_s = visibility_s

    def problem_with(self, config: QueueConfig) -> str:
        """A sentence about a configuration that no queue can be made of; empty if one can."""
        if _embedded_name(config):
            return ""
        return f"queue {config.name}: its queueUri has none of the forms {', '.join(FORMS)}"

    def add_embedded(self, configs: Iterable[QueueConfig]) -> None:
        """Make those of the store, so that one can publish to them once they are open, whether or not we poll them."""
        for config in configs:
            if name := _embedded_name(config):
                self.embedded.setdefault(name, self._make(name, config))

    async def open_embedded(self) -> None:
        for queue in self.embedded.values():
            await queue.open()

    async def open(self, config: QueueConfig) -> Queue:
        """The open queue of a configuration. Raises `ConfigurationError` if there is a problem with it."""
        name = _embedded_name(config)
        if not name:
            raise ConfigurationError(self.problem_with(config))
        queue = self._make(name, config)
        known = self.embedded.setdefault(name, queue)
        if known.capabilities == queue.capabilities:
            queue = known
        await queue.open()
        return queue

    async def close(self, name: str, queue: Queue) -> None:
        """A queue that is no longer polled. Embedded ones stay open: one may still publish to them."""
        if queue not in self.embedded.values():
            await queue.close()

    def _make(self, name: str, config: QueueConfig) -> EmbeddedQueue:
        return EmbeddedQueue(self._store, name, visibility_s=config.visibility_s or self._visibility_s)


def _embedded_name(config: QueueConfig) -> str:
    """The name of the embedded queue that is meant; empty if none is."""
    scheme, _, rest = config.uri.partition(":")
    return rest.removeprefix("//") if scheme == "embedded" else ""
