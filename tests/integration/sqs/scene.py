"""SQS for tests: queues on a real server, and a server that answers as it is told."""

import json
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from aiobotocore.session import get_session  # type: ignore[import-untyped]

from flowcatalyst.core.clock import Clock, SystemClock
from flowcatalyst.core.message import Settled
from flowcatalyst.queues.address import SqsAddress, parse_queue_uri
from flowcatalyst.queues.sqs.queue import SqsQueue
from tests.servers.elasticmq import ElasticMqServer
from tests.servers.moto import MotoServer
from tests.support.http_servers import Call, RawServer, raw_server, reply

OK, GONE, FAILED = Settled.OK, Settled.GONE, Settled.FAILED
ACCOUNT = "123456789012"
KEY, SECRET = "AKIAVERYSECRETKEY", "this/is+the/secret"
Answer = dict[str, Any] | tuple[int, str, str]  # the body of a success, or status, code and message of an error
Answers = Callable[[str, dict[str, Any]], Answer | None]


class Clients:
    """Makes queues and closes them in the end."""

    def __init__(self) -> None:
        self._queues: list[SqsQueue] = []

    async def __call__(
        self,
        uri: str,
        *,
        clock: Clock | None = None,
        visibility_s: float = 60.0,
        endpoint_override: str | None = None,
        default_region: str | None = None,
    ) -> SqsQueue:
        address = parse_queue_uri(uri)
        assert isinstance(address, SqsAddress)
        queue = SqsQueue(
            "orders",
            address,
            clock or SystemClock(),
            visibility_s=visibility_s,
            endpoint_override=endpoint_override,
            default_region=default_region,
        )
        await queue.open()
        self._queues.append(queue)
        return queue

    async def close(self) -> None:
        for queue in self._queues:
            await queue.close()


def fresh(server: ElasticMqServer | MotoServer, *, fifo: bool = True, create: bool = True) -> str:
    """The queueUri of a queue that nobody used before."""
    name = f"orders-{secrets.token_hex(6)}{'.fifo' if fifo else ''}"
    return f"{server.url}/{ACCOUNT}/{name}?region={server.region}{'&create=true' if create else ''}"


@asynccontextmanager
async def plain_client(server: ElasticMqServer | MotoServer) -> AsyncIterator[Any]:
    """The client of AWS, as any other program has it."""
    keys = {"aws_access_key_id": "x", "aws_secret_access_key": "x"}
    async with get_session().create_client("sqs", region_name=server.region, endpoint_url=server.url, **keys) as plain:
        yield plain


def url_of(uri: str) -> str:
    return uri.partition("?")[0]


def name_of(uri: str) -> str:
    return url_of(uri).rpartition("/")[2]


@asynccontextmanager
async def scripted_sqs(answers: Answers) -> AsyncIterator[RawServer]:
    """Speaks SQS: by `answers` where that has one, and as if all went well elsewhere."""

    async def script(call: Call) -> None:
        operation, parameters = call.headers["x-amz-target"].rpartition(".")[2], json.loads(call.body)
        answer = answers(operation, parameters)
        if isinstance(answer, tuple):
            status, code, message = answer
            body = {"__type": f"com.amazonaws.sqs#{code}", "message": message}
        else:
            status, body = 200, _success(parameters) if answer is None else answer
        await call.send(reply(status, json.dumps(body).encode(), "Content-Type: application/x-amz-json-1.0"))

    async with raw_server(script) as server:
        yield server


def _success(parameters: dict[str, Any]) -> dict[str, Any]:
    entries = parameters.get("Entries", [])
    return {"Successful": [{"Id": entry["Id"], "MessageId": f"m-{secrets.token_hex(4)}"} for entry in entries]}


def messages(*names: str, group: str = "a") -> dict[str, Any]:
    """What a poll brings."""
    system = {"ApproximateReceiveCount": "1", "MessageGroupId": group}
    return {
        "Messages": [
            {"MessageId": f"id-{name}", "ReceiptHandle": f"handle-{name}", "Body": name, "Attributes": system}
            for name in names
        ]
    }


def requests_of(server: RawServer, operation: str) -> list[dict[str, Any]]:
    return [json.loads(call.body) for call in server.requests if call.headers["x-amz-target"].endswith(operation)]
