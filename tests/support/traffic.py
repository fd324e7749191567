"""Messages by the dozen, for endpoints that answer and for one that does not."""

import pytest

from flowcatalyst.core.message import DEFAULT_POOL
from flowcatalyst.queues.contract import Outgoing
from tests.support.hosts import KINDS
from tests.support.rig import outgoing

any_kind = pytest.mark.parametrize("kind", KINDS)
SILENT, HEALTHY = "http://silent.test/hook", "http://healthy.test/hook"


def spread(prefix: str, count: int, pool: str = DEFAULT_POOL, target: str = HEALTHY) -> list[Outgoing]:
    """Messages of as many groups."""
    return [outgoing(f"{prefix}{n}", f"{prefix}{n}", pool=pool, target=target) for n in range(count)]


def names(prefix: str, count: int) -> set[str]:
    return {f"{prefix}{n}" for n in range(count)}
