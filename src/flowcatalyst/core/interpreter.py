"""How the process itself is set up for a router."""

import gc
import resource
import sys
from contextlib import suppress
from typing import Final

# A router makes and drops thousands of small objects a second and almost no reference cycles. With the defaults the
# collector would look through all of them every few hundred messages, for nothing.
YOUNG_OBJECTS: Final = 20_000


def tune() -> None:
    """Call once, after imports: what exists by then stays for good and is not looked at again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS, 20, 20)


def raise_file_limit() -> int:
    """Let the process open as many files as it may; how many that is.

    The soft limit is often 1,024, for programs that use select(). Nothing here does.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):  # some systems allow less than they say
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return file_limit()


def file_limit() -> int:
    """How many files the process may have open at a time."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if soft == resource.RLIM_INFINITY else soft
