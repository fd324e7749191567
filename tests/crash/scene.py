"""What the crash tests share: a witness, a data folder, and routers that come and go on it."""

import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from flowcatalyst.app.router import App
from flowcatalyst.control.settings import Settings, load_settings
from flowcatalyst.core.clock import SystemClock
from flowcatalyst.queues.contract import Outgoing
from flowcatalyst.queues.embedded.queue import EmbeddedQueue, EmbeddedStore
from tests.integration.chaos_test import messages
from tests.support.router_process import IMPATIENT, RouterProcess, Waits, router_process
from tests.support.witness import Witness, messages_left

GROUPS, PER_GROUP = 12, 20
ALL = GROUPS * PER_GROUP
PATIENT_MS = 30_000
PATIENT = Waits(timeout_ms=PATIENT_MS)
TEST_BUILD = "tests.support.crashing_router"


class Scene:
    """Routers are started, killed and stopped through it, so that the witness hears of it."""

    def __init__(self, folder: Path, witness: Witness) -> None:
        self.folder = folder
        self.witness = witness
        self.data_dir = folder / "data"

    async def publish(self, groups: int = GROUPS, per_group: int = PER_GROUP) -> None:
        """From this process, into the file that the router process works on."""
        await self.publish_these(messages(self.witness.url, groups, per_group))

    async def publish_these(self, outgoing: list[Outgoing]) -> None:
        queue = EmbeddedQueue(EmbeddedStore(self.data_dir / "queue.db", SystemClock()), "default")
        await queue.open()
        self.witness.published(outgoing)
        await queue.publish(outgoing)
        await queue.close()

    @asynccontextmanager
    async def router(
        self,
        waits: Waits = IMPATIENT,
        module: str = "flowcatalyst",
        crash_at: str | None = None,
    ) -> AsyncIterator[RouterProcess]:
        async with router_process(self.folder, waits, module=module, crash_at=crash_at) as router:
            self.witness.router_started()
            yield router

    async def kill(self, router: RouterProcess) -> None:
        await router.kill()
        await self.witness.router_gone()

    async def dies_by_itself(self, router: RouterProcess) -> None:
        """Wait until the test build reached its point; an end in any other way fails."""
        code, _ = await router.until_ended()
        assert code == -signal.SIGKILL
        await self.witness.router_gone()

    async def stop(self, router: RouterProcess) -> None:
        code, rest = await router.terminate()
        assert (code, "Nothing was lost" in rest) == (0, True), rest
        await self.witness.router_stopped()

    async def deliver_the_rest(self) -> None:
        """One more life, with an endpoint that works, to the end of all messages.

        It is a router in this process: that starts in no time, and nobody is going to kill it.
        """
        left = messages_left(self.data_dir / "queue.db")
        self.witness.fault_rate = 0.0
        self.witness.acked.clear()  # what was answered before and is still there comes again
        app = App(patient_settings(self.data_dir))
        self.witness.router_started()
        async with app.running():
            await self.witness.until_acked(len(left))
        assert app.stopped_clean
        await self.witness.router_stopped()

    async def assert_every_promise_was_kept(self) -> None:
        violations = await self.witness.violations(self.data_dir)
        assert violations == [], "\n".join(violations)
        assert messages_left(self.data_dir / "queue.db") == []


@asynccontextmanager
async def scene(folder: Path, fault_rate: float = 0.0, seed: int = 1) -> AsyncIterator[Scene]:
    witness = Witness(fault_rate, seed)
    async with witness.running():
        yield Scene(folder, witness)


def patient_settings(data_dir: Path) -> Settings:
    """No attempt is given up by the router: an endpoint that works is believed to answer sooner or later."""
    return load_settings(
        data_dir=data_dir,
        retry={"backoff_s": [0.02, 0.04], "nack_delay_s": 0.3, "follower_s": 0.1},
        mediator={"http": {"timeout_ms": PATIENT_MS, "version": "HTTP_1_1"}},
    )
