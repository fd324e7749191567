"""Parts of a router that are real but do nothing, for tests that only look at what is told of them."""

from flowcatalyst.control.config_sync import ConfigSync
from flowcatalyst.control.router_config import RouterConfig
from flowcatalyst.control.settings import StandbySettings, SyncSettings
from flowcatalyst.control.standby import Standby
from flowcatalyst.control.standby_lock import Holder
from flowcatalyst.router.fence import Fence
from tests.api.running import Running


class NoLock:
    """A lock that nobody asks."""

    async def acquire(self) -> Holder:
        raise AssertionError

    async def refresh(self) -> Holder | None:
        raise AssertionError

    async def release(self) -> None:
        raise AssertionError

    async def close(self) -> None:
        raise AssertionError


def resting_standby(router: Running) -> Standby:
    """Made a part of the router. It was not started, so it waits for its lock."""
    app = router.app
    app.standby = Standby(StandbySettings(), app.clock, app.identity, app.warnings, Fence(), NoLock())
    return app.standby


def resting_sync(router: Running) -> ConfigSync:
    """Made a part of the router. It was not started, so it asked nobody."""

    async def apply(config: RouterConfig) -> None:
        raise AssertionError

    app = router.app
    app.sync = ConfigSync(SyncSettings(), [], app.clock, app.warnings, apply, list)
    return app.sync
