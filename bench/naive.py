"""The reference: the router one writes in an afternoon with asyncio, uvloop, aiohttp and SQLite.

It keeps order per group and loses nothing, as long as nothing fails: a lock per group, a semaphore for the slots, and
one durable commit per batch of acks.
"""

import asyncio
import json
import sqlite3
import sys
from collections import defaultdict
from pathlib import Path

import aiohttp
import uvloop

from bench.measure import Stopwatch
from bench.workload import Workload


def seed(path: Path, workload: Workload, target: str) -> None:
    db = sqlite3.connect(path)
    db.execute("PRAGMA journal_mode=WAL")
    db.execute("CREATE TABLE queue (seq INTEGER PRIMARY KEY, grp TEXT, body TEXT)")
    rows = [(group, body) for _, group, body in workload.bodies(target)]
    db.executemany("INSERT INTO queue (grp, body) VALUES (?, ?)", rows)
    db.commit()
    db.close()


async def route_all(path: Path, slots: int) -> int:
    db = sqlite3.connect(path, isolation_level=None)
    db.execute("PRAGMA synchronous=FULL")
    locks: dict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
    free = asyncio.Semaphore(slots)
    done: list[tuple[int]] = []

    async def deliver(session: aiohttp.ClientSession, seq: int, group: str, body: str) -> None:
        pointer = json.loads(body)
        headers = {"Authorization": f"Bearer {pointer['authToken']}"}
        payload = {"messageId": pointer["id"]}
        request = session.post(pointer["mediationTarget"], json=payload, headers=headers)
        async with locks[group], free, request as response:
            if (await response.json())["ack"]:
                done.append((seq,))

    delivered = 0
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=slots)) as session:
        while rows := db.execute("SELECT seq, grp, body FROM queue ORDER BY seq LIMIT 1280").fetchall():
            async with asyncio.TaskGroup() as tasks:
                for row in rows:
                    tasks.create_task(deliver(session, *row))
            db.execute("BEGIN")
            db.executemany("DELETE FROM queue WHERE seq = ?", done)
            db.execute("COMMIT")
            delivered += len(done)
            done.clear()
    return delivered


def main() -> None:
    path, target, workload = Path(sys.argv[1]) / "naive.db", sys.argv[2], Workload(messages=int(sys.argv[3]))
    seed(path, workload, target)
    with Stopwatch() as watch:
        delivered = uvloop.run(route_all(path, workload.slots))
    watch.report(delivered)


if __name__ == "__main__":
    main()
