"""How the tests of a run are shared out among its processes.

xdist hands out each test that belongs to no group by itself, and looks at all that it has handed out after each of
them: with thousands of tests that took a seventh of all processor time, and processes waited for it. Here up to
`TOGETHER` tests of a file are handed out at once, but those by themselves that take long, for the sake of the end of
the run.
"""

from collections import Counter
from collections.abc import Callable
from typing import Any, Final

import pytest
from xdist.scheduler import LoadGroupScheduling

TOGETHER: Final = 12


class Shares(LoadGroupScheduling):  # type: ignore[misc] # xdist has no types
    """See the module. `takes_long` tells of the path of a file, as ids of tests have it, whether its tests do."""

    def __init__(self, config: pytest.Config, log: Any, takes_long: Callable[[str], bool]) -> None:
        super().__init__(config, log)
        self._takes_long = takes_long
        self._share_of: dict[str, str] = {}
        self._seen: Counter[str] = Counter()

    def _split_scope(self, nodeid: str) -> str:
        if nodeid not in self._share_of:
            self._share_of[nodeid] = self._choose_share(nodeid)
        return self._share_of[nodeid]

    def _choose_share(self, nodeid: str) -> str:
        group: str = super()._split_scope(nodeid)
        file = nodeid.partition("::")[0]
        if group != nodeid or self._takes_long(file):
            return group
        self._seen[file] += 1
        return f"{file} {(self._seen[file] - 1) // TOGETHER}"
