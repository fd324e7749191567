"""Which host the API may be bound to."""

import re
from ipaddress import ip_address
from typing import Final

from flowcatalyst.core.spelling import nearest

WHAT_TO_NAME: Final = (
    "name an address of this machine, as 127.0.0.1 for itself alone or 0.0.0.0 for all its networks, without http:// "
    "and without a port"
)
_LABEL: Final = re.compile("(?!-)[A-Za-z0-9_-]{1,63}(?<!-)")
_LONGEST_NAME: Final = 253
_SHOWN: Final = 60


def problem_with_host(host: str) -> str:
    """What is wrong with a host, whether or not it is ours; empty if nothing is. Names are not looked up."""
    if _is_address(host) or host == "localhost":
        return ""
    labels = host.removesuffix(".").split(".")
    can_be_a_name = len(host) <= _LONGEST_NAME and all(map(_LABEL.fullmatch, labels)) and not labels[-1].isdigit()
    if not can_be_a_name:
        return f"invalid host {host[:_SHOWN]!r}: {WHAT_TO_NAME}"
    if nearest(host, ["localhost"]):
        return f"invalid host {host!r} (did you mean localhost?): {WHAT_TO_NAME}"
    return ""


def is_loopback(host: str) -> bool:
    """Whether nobody else can reach it. A name may be anywhere."""
    return host == "localhost" or (_is_address(host) and ip_address(host).is_loopback)


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True
