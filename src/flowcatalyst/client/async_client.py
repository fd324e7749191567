"""The client for applications with an event loop: the same one, in threads.

Publishing waits for a server, so threads cost little here; and there is one place that knows HTTP, TLS, retries and
keys, not two that have to agree.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any, Final, ParamSpec, Self, TypeVar

from flowcatalyst.client.client import Client
from flowcatalyst.client.results import Result

AT_ONCE: Final = 16

P = ParamSpec("P")
T = TypeVar("T")


class AsyncClient:
    """As `Client`, with methods to await; up to `at_once` requests at a time, others wait for their turn.

    Whoever is cancelled while he waits does not know whether his request was taken, as after a lost answer: publish
    under a key of your own what you may have to publish again.
    """

    def __init__(self, url: str, *, at_once: int = AT_ONCE, **options: Any) -> None:
        self._client = Client(url, **options)
        self._threads = ThreadPoolExecutor(at_once, thread_name_prefix="flowcatalyst-client")

    async def publish_job(self, job: Mapping[str, object]) -> Result:
        return await self._in_thread(self._client.publish_job, job)

    async def publish_jobs(self, jobs: Iterable[Mapping[str, object]]) -> list[Result]:
        return await self._in_thread(self._client.publish_jobs, _as_it_is_now(jobs))

    async def publish_event(self, event: Mapping[str, object]) -> Result:
        return await self._in_thread(self._client.publish_event, event)

    async def publish_events(self, events: Iterable[Mapping[str, object]]) -> list[Result]:
        return await self._in_thread(self._client.publish_events, _as_it_is_now(events))

    async def close(self) -> None:
        """Requests under way end first, pauses between attempts do not."""
        self._client.close()
        await asyncio.to_thread(self._threads.shutdown)
        self._client.close()  # connections of requests that ended meanwhile

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.close()

    async def _in_thread(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        if self._client.closed:  # it raises at once, and there may be no threads any more
            return work(*args, **kwargs)
        return await asyncio.get_running_loop().run_in_executor(self._threads, lambda: work(*args, **kwargs))


def _as_it_is_now(items: Iterable[Mapping[str, object]]) -> Iterable[Mapping[str, object]]:
    """The caller may change his list while a thread reads it; what is no list is for the client to refuse."""
    return items if isinstance(items, Mapping) else list(items)
