"""Whether it is this machine that cannot open a connection."""

import errno
import os
from collections.abc import Iterable

from flowcatalyst.core.errors import LOCAL_SHORTAGES


def shortage_among(failures: Iterable[Exception]) -> int | None:
    """The error number of the shortage that kept all addresses of a host from being dialled; None: it was not that.

    A shortage of files or memory is one whatever else failed. No local address may also mean that this machine knows
    no IPv6, which is none if another address of the host was dialled and refused.
    """
    numbers = [failure.errno if isinstance(failure, OSError) else None for failure in failures]
    for number in numbers:
        if number in LOCAL_SHORTAGES and number != errno.EADDRNOTAVAIL:
            return number
    return errno.EADDRNOTAVAIL if numbers and set(numbers) == {errno.EADDRNOTAVAIL} else None


def shortage_of_files() -> int | None:
    """The error number if no file can be opened now. What looks up names does not say so itself."""
    try:
        os.close(os.open(os.devnull, os.O_RDONLY))
    except OSError as error:
        return error.errno if error.errno in LOCAL_SHORTAGES else None
    return None
