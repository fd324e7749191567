"""docs/quickstart.md, followed to the letter: its blocks are run against `flowcatalyst up`, only ports are others."""

import asyncio
import json
import os
import re
import shutil
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.servers import free_port
from tests.support.patience import PATIENCE_S
from tests.support.router_process import ROOT, Waits, router_process

PAGE = (ROOT / "docs" / "quickstart.md").read_text()
MISSING = next((name for name in ("curl", "bash") if shutil.which(name) is None), None) or (
    None if find_spec("flask") else "Flask"
)
pytestmark = [
    pytest.mark.thorough,
    pytest.mark.skipif(MISSING is not None, reason=f"the page needs {MISSING}, which is not installed"),
]


@dataclass(slots=True)
class Reader:
    """Somebody who does what the page says, in a folder of his own, with ports of his own."""

    folder: Path
    ports: dict[str, str]
    secret: str = ""
    said: list[str] = field(default_factory=list)  # by his application

    def block(self, *words: str) -> str:
        """The block that has these words, with his ports."""
        found = [body for body in re.findall(r"```\w*\n(.*?)```", PAGE, re.DOTALL) if all(one in body for one in words)]
        assert len(found) == 1, f"{len(found)} blocks have {words}"
        return self._his(found[0])

    def inline(self, words: str) -> str:
        """The command within a sentence that has these words."""
        (found,) = [
            one for one in re.findall(r"`(curl[^`]+)`", re.sub(r"```.*?```", "", PAGE, flags=re.S)) if words in one
        ]
        return self._his(" ".join(found.split()))

    async def run(self, command: str) -> list[Any]:
        """What it printed: lines of JSON."""
        bash = await asyncio.create_subprocess_exec(
            *("bash", "-e", "-c", command), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        output, errors = await bash.communicate()
        assert bash.returncode == 0, errors.decode()
        return [json.loads(line) for line in output.decode().splitlines() if line]

    @asynccontextmanager
    async def application(self) -> AsyncIterator[None]:
        """Up, until somebody presses Ctrl-C."""
        command = self.block("WEBHOOK_SECRET=", "app.py").replace("whsec_...", self.secret)
        command = command.replace(".venv/bin/python", sys.executable)
        app = await asyncio.create_subprocess_exec(
            *("bash", "-c", command),
            cwd=self.folder,
            env=os.environ | {"PYTHONPATH": str(ROOT / "src")},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            start_new_session=True,
        )
        assert app.stdout is not None
        reading = asyncio.ensure_future(self._read(app.stdout))
        try:
            async with asyncio.timeout(PATIENCE_S):
                while not await self._is_up():
                    assert app.returncode is None, "it ended"
                    await asyncio.sleep(0.05)
            yield
        finally:
            if app.returncode is None:
                os.killpg(app.pid, signal.SIGINT)
            await app.wait()
            await reading

    async def until_said(self, count: int) -> list[str]:
        async with asyncio.timeout(PATIENCE_S):
            while len(self.said) < count:
                await asyncio.sleep(0.02)
        return self.said[:count]

    def _his(self, text: str) -> str:
        for port, own in self.ports.items():
            text = text.replace(port, own)
        return text

    async def _read(self, output: asyncio.StreamReader) -> None:
        while line := (await output.readline()).decode():
            if "invoice." in line:  # Flask tells of its start too
                self.said.append(line.rstrip("\n"))

    async def _is_up(self) -> bool:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", int(self.ports["9000"]))
        except OSError:
            return False
        writer.close()
        return True


@pytest.fixture
async def reader(tmp_path: Path) -> AsyncIterator[Reader]:
    async with router_process(tmp_path, Waits(timeout_ms=30_000)) as up:
        ports = {"8080": up.url.rpartition(":")[2], "9000": str(free_port())}
        reader = Reader(tmp_path, ports)
        (tmp_path / "app.py").write_text(reader.block("from flask import"))
        yield reader
        await up.terminate()


async def subscribed(reader: Reader) -> None:
    (made,) = await reader.run(reader.block("/api/subscriptions"))
    reader.secret = made["secret"]


async def test_a_newcomer_gets_verified_webhooks_in_order_by_the_page(reader: Reader) -> None:
    await subscribed(reader)
    async with reader.application():
        sent = await reader.run(reader.block("/api/events"))
        assert [one["jobs"] for one in sent] == [1, 1]
        expected = reader.block("NEXT my-app:customer:7 1").splitlines()
        assert await reader.until_said(2) == expected


async def test_what_waits_is_explained_and_comes_in_order_when_the_application_is_up_again(reader: Reader) -> None:
    await subscribed(reader)
    async with reader.application():
        await reader.run(reader.block("/api/events"))
        await reader.until_said(2)
    await reader.run(reader.block("/api/events"))
    look = reader.block("/api/message-groups/my-app:customer:7")
    async with asyncio.timeout(PATIENCE_S):
        while not (await reader.run(look))[0]["head"]["lastError"]:
            await asyncio.sleep(0.02)
    group, jobs = await reader.run(look)
    assert {"lastError", "nextAttemptAt"} <= group["head"].keys()
    (newest,) = jobs["items"]
    (job,) = await reader.run(reader.block("/api/dispatch-jobs/01a1").replace("01a1...", newest["id"]))
    assert job["waiting"]["jobId"] == group["head"]["id"]
    assert group["head"]["id"] in job["waitsFor"]
    async with reader.application():
        await reader.run(reader.block("/api/dispatch-jobs/retry"))  # if that took so long that the job was parked
        said = await reader.until_said(4)
    verdicts = [line.split()[0] for line in said]
    assert verdicts == ["NEXT", "NEXT", "GAP", "NEXT"]
    assert [line.partition("invoice.created ")[2] for line in said] == ["{'total': 12}", "{'total': 13}"] * 2


async def test_who_begins_anew_does_it_as_the_page_says(reader: Reader) -> None:
    await subscribed(reader)
    (again,) = await reader.run(reader.block("/api/subscriptions"))
    assert again["status"] == 409
    (rotated,) = await reader.run(reader.inline("rotate-secret"))
    assert rotated["secret"] not in ("", reader.secret)
    (gone,) = await reader.run(reader.inline("DELETE"))
    assert gone["cancelled"] == 0
    await subscribed(reader)
