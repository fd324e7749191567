"""GET /monitoring/top-groups: the few groups that are deepest, oldest and slowest. Metrics name no group."""

import msgspec
from litestar import get

from flowcatalyst.api.dependencies import TheApp


class DeepGroup(msgspec.Struct, rename="camel"):
    """A group of which many messages wait in the router. Its queue may hold more of it."""

    group: str
    pool: str
    waiting: int


class OldGroup(msgspec.Struct, rename="camel"):
    """A group whose next message has waited for long, since it was published as far as its queue tells."""

    group: str
    pool: str
    oldest_ms: float


class SlowGroupView(msgspec.Struct, rename="camel"):
    """A group whose attempts of the last minutes took long. The mean is mostly about the ten latest of them."""

    group: str
    pool: str
    mean_ms: float
    deliveries: int  # attempts since it is watched, also those that failed


class TopGroups(msgspec.Struct, rename="camel"):
    """No more than ten each, the first of them first."""

    by_depth: list[DeepGroup]
    by_age: list[OldGroup]
    by_latency: list[SlowGroupView]


@get("/monitoring/top-groups", tags=["Monitoring"], summary="Deepest, oldest and slowest groups")
async def get_top_groups(app: TheApp) -> TopGroups:
    """The ten groups of which most messages wait in the router, whose next message has waited longest, and whose
    attempts took longest of late. All who ask share one look at the groups, which is at least a second old before there
    is another one, and older with very many groups. Messages on their own (IMMEDIATE) are no group by depth or age.
    """
    figures = await app.group_watch.figures()
    return TopGroups(
        by_depth=[DeepGroup(one.group, one.pool, int(one.value)) for one in figures.by_depth],
        by_age=[OldGroup(one.group, one.pool, round(one.value * 1000, 3)) for one in figures.by_age],
        by_latency=[
            SlowGroupView(one.group, one.pool, round(one.value * 1000, 3), one.attempts) for one in figures.by_latency
        ],
    )
