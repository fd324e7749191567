"""A connection to one SQS queue: where it is, who we are there, and one call at a time with its errors in our words."""

import asyncio
import logging
import os
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from functools import cache
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

from aiobotocore.config import AioConfig  # type: ignore[import-untyped]
from aiobotocore.session import get_session  # type: ignore[import-untyped]
from aiohttp import ClientError as HttpError
from botocore.exceptions import BotoCoreError, ClientError  # type: ignore[import-untyped]
from botocore.loaders import Loader, create_loader  # type: ignore[import-untyped]

from flowcatalyst.core.errors import QueueUnavailableError
from flowcatalyst.queues.address import SqsAddress
from flowcatalyst.queues.sqs.errors import SqsRefusedError, reason_of, refused

CONNECT_LIMIT_S: Final = 5.0
CALL_LIMIT_S: Final = 10.0
# Pollers (up to a thousand are allowed) and settle calls must never wait for each other's sockets.
MAX_SOCKETS: Final = 1100
LOCAL_REGION: Final = "us-east-1"
LOCAL_KEYS: Final = {"aws_access_key_id": "local", "aws_secret_access_key": "local"}
_AMAZON: Final = (".amazonaws.com", ".amazonaws.com.cn", ".amazonaws.eu", ".api.aws")
_ENDPOINT_VARIABLES: Final = ("AWS_ENDPOINT_URL_SQS", "AWS_ENDPOINT_URL")


for _name in ("botocore", "aiobotocore"):
    logging.getLogger(_name).setLevel(logging.WARNING)  # below that they log what they sign

_UNKNOWN: Final = {"Code": "NoAnswer", "Message": "SQS did not say what became of the message"}

Entry = dict[str, Any]  # of a batch request


class Answer(NamedTuple):
    """About one message of a batch."""

    success: Mapping[str, Any] | None
    failure: Mapping[str, Any]  # means nothing if there is a success


class SqsConnection:
    """Connects when first called. After `close` it has to be opened again."""

    def __init__(self, address: SqsAddress, *, endpoint_override: str | None, default_region: str | None) -> None:
        self.calls: Counter[str] = Counter()  # requests that were really sent, by operation
        self.attributes: Mapping[str, str] = {}  # of the queue, as they were when we connected
        self.on_connected: list[Callable[[], None]] = []
        self.on_created: list[Callable[[], None]] = []  # by us: the server did not have it, or not any more
        self._address = address
        self._override = endpoint_override
        self._endpoint, self._is_amazon = _endpoint(address, endpoint_override)
        self._region = address.region or default_region
        self._client: Any = None
        self._url: str | None = None
        self._sockets = AsyncExitStack()
        self._connecting = asyncio.Lock()
        self._closed = False

    @property
    def where(self) -> str:
        """The queue, for people."""
        place = urlsplit(self._endpoint).netloc if self._endpoint else f"Amazon {self._region or ''}".rstrip()
        return f"SQS queue {self._address.queue_name} at {place}"

    def open(self) -> None:
        self._closed = False

    async def close(self) -> None:
        """Calls under way fail."""
        self._closed = True
        async with self._connecting:
            await self._drop_client()

    async def call(self, operation: str, limit_s: float = CALL_LIMIT_S, **parameters: Any) -> dict[str, Any]:
        """One call on the queue. Raises `QueueUnavailableError`; `SqsRefusedError` if SQS answered with an error."""
        if self._url is None:
            await self._connect()
        try:
            return await self._ask(operation, limit_s, QueueUrl=self._url, **parameters)
        except SqsRefusedError as error:
            if error.queue_is_missing:
                self._url = None  # the next call looks it up again, and creates it if it may
            if error.credentials_are_bad:
                await self.renew()  # somebody may have repaired them: they are read again
            raise

    async def call_batch(self, operation: str, entries: Sequence[Entry]) -> list[Answer]:
        """One call for several messages: what SQS said about each of them."""
        numbered = [{**entry, "Id": str(number)} for number, entry in enumerate(entries)]
        answer = await self.call(operation, Entries=numbered)
        successes = {one["Id"]: one for one in answer.get("Successful") or ()}
        failures = {one["Id"]: one for one in answer.get("Failed") or ()}
        ids = [str(number) for number in range(len(entries))]
        return [Answer(successes.get(one), failures.get(one, _UNKNOWN)) for one in ids]

    async def renew(self) -> None:
        """The next call makes new connections, with the credentials that there are then."""
        async with self._connecting:
            await self._drop_client()

    async def read_attributes(self) -> Mapping[str, str]:
        """Of the queue, as they are now; none if we may not ask."""
        return await _attributes(self.call("get_queue_attributes", AttributeNames=["All"]))

    async def _connect(self) -> None:
        async with self._connecting:
            if self._closed:
                raise QueueUnavailableError(f"{self.where} is closed here")
            if self._url is not None:
                return
            try:
                async with asyncio.timeout(CONNECT_LIMIT_S):
                    if self._client is None:
                        self._client = await self._new_client()
                    await self._look_up()
            except TimeoutError:
                raise QueueUnavailableError(self._unreachable(f"no answer within {CONNECT_LIMIT_S:g} s")) from None
            except SqsRefusedError as error:
                if error.credentials_are_bad:
                    await self._drop_client()
                raise

    async def _new_client(self) -> Any:
        session = get_session()
        session.register_component("data_loader", _loader())
        config = AioConfig(
            connect_timeout=CONNECT_LIMIT_S,
            read_timeout=60,  # each call has a shorter limit of its own
            max_pool_connections=MAX_SOCKETS,
            parameter_validation=False,
            # None: consumer and settler wait and try again themselves, and a long poll must not be repeated unseen.
            retries={"mode": "standard", "total_max_attempts": 1},
        )
        try:
            here = os.environ.get("AWS_REGION") or session.get_config_variable("region")
            self._region = self._region or here or (None if self._is_amazon else LOCAL_REGION)
            if self._region is None:
                raise QueueUnavailableError(
                    f"{self.where} has no region: add ?region=NAME to its queueUri, or set sqs.region or AWS_REGION"
                )
            # What the standard chain does not find, a server that is not Amazon's does not check.
            keys = {} if await session.get_credentials() is not None else LOCAL_KEYS
            if keys and self._is_amazon:
                raise QueueUnavailableError(
                    f"{self.where} needs AWS credentials, and none were found: "
                    "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or give this machine a role"
                )
            making = session.create_client(
                "sqs", region_name=self._region, endpoint_url=self._endpoint, config=config, **keys
            )
            client = await self._sockets.enter_async_context(making)
        except (BotoCoreError, ValueError) as error:
            raise QueueUnavailableError(f"{self.where} cannot be called: {reason_of(error)}") from None
        client.meta.events.register("before-send.sqs", self._count)
        return client

    async def _look_up(self) -> None:
        address = self._address
        try:
            if address.queue_url is not None and self._override is None:
                url = address.queue_url
            else:
                url = (await self._ask("get_queue_url", QueueName=address.queue_name))["QueueUrl"]
            self.attributes = await self._attributes_of(url)
        except SqsRefusedError as error:
            if not (error.queue_is_missing and address.create):
                raise
            settings = {"FifoQueue": "true"} if address.fifo else {}
            url = (await self._ask("create_queue", QueueName=address.queue_name, Attributes=settings))["QueueUrl"]
            self.attributes = await self._attributes_of(url)
            _tell(self.on_created)
        self._url = url
        _tell(self.on_connected)

    async def _attributes_of(self, url: str) -> Mapping[str, str]:
        return await _attributes(self._ask("get_queue_attributes", QueueUrl=url, AttributeNames=["All"]))

    async def _ask(self, operation: str, limit_s: float = CALL_LIMIT_S, **parameters: Any) -> dict[str, Any]:
        client = self._client
        if client is None:
            raise QueueUnavailableError(f"{self.where} is closed here")
        try:
            async with asyncio.timeout(limit_s):
                answer: dict[str, Any] = await getattr(client, operation)(**parameters)
                return answer
        except (AttributeError, KeyError, RuntimeError, TypeError, ValueError) as error:
            if client is not self._client:  # whose sockets are gone: the library has no error for that
                raise QueueUnavailableError(f"{self.where} was closed here") from None
            if isinstance(error, RuntimeError):
                raise
            raise QueueUnavailableError(
                f"what answers for {self.where} does not speak SQS: correct its queueUri or sqs.endpoint_override"
            ) from error
        except TimeoutError:
            raise QueueUnavailableError(self._unreachable(f"no answer within {limit_s:g} s")) from None
        except ClientError as error:
            raise refused(error, self.where) from None
        except (BotoCoreError, HttpError, OSError) as error:
            raise QueueUnavailableError(self._unreachable(reason_of(error))) from None

    def _unreachable(self, why: str) -> str:
        return f"{self.where} cannot be reached: {why}"

    async def _drop_client(self) -> None:
        self._client = self._url = None
        await self._sockets.aclose()
        self._sockets = AsyncExitStack()

    def _count(self, event_name: str, **_: Any) -> None:
        self.calls[event_name.rpartition(".")[2]] += 1


async def _attributes(call: Awaitable[dict[str, Any]]) -> Mapping[str, str]:
    """A router that may not ask for them works, but without advice and depth."""
    try:
        answer = await call
    except SqsRefusedError as error:
        if not error.is_denied:
            raise
        return {}
    found: dict[str, str] = answer.get("Attributes", {})
    return found


def _endpoint(address: SqsAddress, override: str | None) -> tuple[str | None, bool]:
    """Where to call instead of the region's own endpoint, and whether Amazon is there."""
    if other := override or address.endpoint:
        return other.rstrip("/"), False
    if address.queue_url is not None:
        host = urlsplit(address.queue_url).netloc
        if ".vpce." in host or host.startswith("sqs-fips."):
            return f"https://{host}", True
    for variable in _ENDPOINT_VARIABLES:
        if url := os.environ.get(variable):
            return url.rstrip("/"), (urlsplit(url).hostname or "").endswith(_AMAZON)
    return None, True


@cache
def _loader() -> Loader:
    """Shared: it reads the description of SQS, which takes a while, once for all queues."""
    return create_loader()


def _tell(listeners: Sequence[Callable[[], None]]) -> None:
    for listener in listeners:
        listener()
