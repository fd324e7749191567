"""A server that speaks the protocol of Redis and answers scripts as it is told, however odd."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

LOCKED_AS_ASKED = b""  # in place of an answer: the lock is given to whoever asks


class OddRedis:
    """Answers each EVAL with `answer`, anything else with OK. It closes the connection after it if `hangs_up`."""

    def __init__(self) -> None:
        self.port = 0
        self.answer = LOCKED_AS_ASKED
        self.hangs_up = False
        self.asked = 0

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while words := await _command(reader):
                if words[0].upper() != b"EVAL":
                    writer.write(b"+OK\r\n")
                    continue
                self.asked += 1
                token = words[6]  # EVAL, script, 2, two keys, identity, token, ...
                as_asked = b"*2\r\n$%d\r\n%b\r\n:1\r\n" % (len(token), token)
                if b"DEL" in words[1]:
                    as_asked = b":1\r\n"
                writer.write(self.answer or as_asked)
                if self.hangs_up:
                    await writer.drain()
                    break
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()


async def _command(reader: asyncio.StreamReader) -> list[bytes]:
    line = await reader.readline()
    words: list[bytes] = []
    for _ in range(int(line[1:]) if line else 0):
        length = int((await reader.readline())[1:])
        words.append((await reader.readexactly(length + 2))[:-2])
    return words


@asynccontextmanager
async def odd_redis() -> AsyncIterator[OddRedis]:
    redis = OddRedis()
    server = await asyncio.start_server(redis.serve, "127.0.0.1", 0)
    redis.port = server.sockets[0].getsockname()[1]
    try:
        yield redis
    finally:
        server.close()
