"""The whole path in a process of its own: `deliver` events to signed webhooks at a fan-out, or `accept` them over HTTP.

Where they are kept is `platform.database_url` by the environment: a SQLite file in the folder, or PostgreSQL.
"""

import json
import sys
from itertools import islice
from pathlib import Path

import msgspec
import uvloop

from bench.jobs import accept, drain, settings
from bench.measure import Stopwatch
from bench.workload import Workload
from flowcatalyst.app.router import App
from flowcatalyst.core import interpreter
from flowcatalyst.core.logs import configure_logs
from flowcatalyst.core.message import DispatchMode
from flowcatalyst.dispatch.catalog_entries import SealedSecret, StoredSubscription
from flowcatalyst.dispatch.event import NewEvent
from flowcatalyst.dispatch.platform import Platform
from flowcatalyst.dispatch.store.platform_contract import EntryKind
from flowcatalyst.dispatch.subscription import EventTypeBinding
from flowcatalyst.http.signing import new_secret

AT_ONCE = 100  # events of one call, as a client sends them in a batch
DATA = msgspec.Raw(b'{"order":12345,"total":12}')


async def subscribe(app: App, platform: Platform, target: str, fan_out: int) -> None:
    """So many subscriptions that want everything, in strict order, each with a secret of its own."""
    for number in range(fan_out):
        code = f"bench-{number}"
        sealed = SealedSecret(sealed=platform.sealer.seal(new_secret(), code), created_at=app.clock.wall())
        wanted = StoredSubscription(
            code=code,
            target_url=target,
            event_types=(EventTypeBinding("order.*"),),
            mode=DispatchMode.BLOCK_ON_ERROR,
            secrets=(sealed,),
        )
        await platform.catalog.add(EntryKind.SUBSCRIPTION, code, wanted)


async def fill(app: App, workload: Workload, target: str, fan_out: int) -> Stopwatch:
    """Accept as many events as make the webhooks of the workload; how long that took."""
    app.prepare_data_dir()
    platform = platform_of(app)
    await platform.store.open()
    await subscribe(app, platform, target, fan_out)
    groups = iter([group for _, group, _ in workload.bodies(target)][: workload.messages // fan_out])
    with Stopwatch() as watch:
        while some := list(islice(groups, AT_ONCE)):
            asked = [NewEvent(type="order.created", source="bench", message_group=one, data=DATA) for one in some]
            await platform.intake.accept([platform.intake.event_of(one) for one in asked])
    await platform.store.close()
    return watch


async def subscribe_only(app: App, target: str) -> None:
    app.prepare_data_dir()
    platform = platform_of(app)
    await platform.store.open()
    await subscribe(app, platform, target, 1)
    await platform.store.close()


def platform_of(app: App) -> Platform:
    assert app.platform is not None, "FLOWCATALYST_PLATFORM__ENABLED is not set"
    return app.platform


def main() -> None:
    what, folder, target = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
    workload, fan_out = Workload(messages=int(sys.argv[4])), int(sys.argv[5])
    config = settings(folder, workload.slots, works=what == "deliver")
    configure_logs(config.log.level, config.log.format, config.log.file)
    interpreter.tune()
    figures: dict[str, float] = {"messages": workload.messages // fan_out * fan_out}
    if what == "deliver":
        made = uvloop.run(fill(App(config), workload, target, fan_out))
        events = workload.messages // fan_out
        figures |= {"made_per_second": events / made.seconds, "made_cpu_us": made.cpu_s / events * 1e6}
        watch = uvloop.run(drain(App(config), events * fan_out))
    else:
        uvloop.run(subscribe_only(App(config), target))
        watch = uvloop.run(accept(App(config)))
    print(json.dumps({**figures, "seconds": watch.seconds, "cpu_s": watch.cpu_s}))


if __name__ == "__main__":
    main()
