"""A program: the router, but on PostgreSQL a process is taken for dead four times as late.

For a test of a cut that is shorter than that: on a busy machine a renewal alone may take seconds.
"""

from typing import Final

from flowcatalyst.cli.entry import main
from flowcatalyst.queues.postgres import owners

SLOWER: Final = 4


if __name__ == "__main__":
    owners.LAPSE_S *= SLOWER  # type: ignore[misc] # final for everybody else
    main()
