"""Notes in answers: what was accepted, but may not be what its sender meant."""

from collections.abc import Collection

from flowcatalyst.core.message import DEFAULT_POOL


def note_on_pool(pool: str, pools: Collection[str]) -> str | None:
    """Of a pool that nobody configured. `pools` are those there are; none: those of a config URL may yet come."""
    if pool in pools or pool == DEFAULT_POOL or not pools:
        return None
    return f"there is no pool {pool!r} now: {DEFAULT_POOL} will take it"
