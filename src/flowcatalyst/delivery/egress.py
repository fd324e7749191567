"""Which addresses the router may dial.

A name is resolved here, its addresses are checked here, and the clients dial exactly the addresses returned: a name
that resolves to something else a moment later changes nothing.
"""

import socket
from collections.abc import Awaitable, Callable, Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final

from flowcatalyst.delivery.resolver import Address, SystemResolver
from flowcatalyst.errors import (
    LOCAL_SHORTAGES,
    ConfigurationError,
    ConnectError,
    LocalShortageError,
    TargetRefusedError,
)

Resolver = Callable[[str, int], Awaitable[list[Address]]]

ALLOW_PRIVATE_SETTING: Final = "egress.allow_private"
ALLOWED_NETWORKS_SETTING: Final = "egress.allowed_networks"

# Own lists, because `ipaddress.is_global` of Python 3.11 lets multicast, NAT64, 6to4 and ::127.0.0.1 pass.
_DENIED_V4: Final = tuple(
    IPv4Network(network)
    for network in (
        "0.0.0.0/8",
        "10.0.0.0/8",
        "100.64.0.0/10",
        "127.0.0.0/8",
        "169.254.0.0/16",
        "172.16.0.0/12",
        "192.0.0.0/24",
        "192.0.2.0/24",
        "192.31.196.0/24",
        "192.52.193.0/24",
        "192.88.99.0/24",
        "192.168.0.0/16",
        "192.175.48.0/24",
        "198.18.0.0/15",
        "198.51.100.0/24",
        "203.0.113.0/24",
        "224.0.0.0/4",
        "240.0.0.0/4",
    )
)
_ALLOWED_V6: Final = IPv6Network("2000::/3")
_DENIED_V6: Final = tuple(
    IPv6Network(network) for network in ("2001::/23", "2001:db8::/32", "2002::/16", "2620:4f:8000::/48", "3fff::/20")
)


def address_is_public(address: str) -> bool:
    """Whether an address belongs to the public internet. What is no address is not public."""
    try:
        return _is_public(_unwrapped(address))
    except ValueError:
        return False


def _is_public(address: IPv4Address | IPv6Address) -> bool:
    if isinstance(address, IPv4Address):
        return not any(address in network for network in _DENIED_V4)
    return address in _ALLOWED_V6 and not any(address in network for network in _DENIED_V6)


def _unwrapped(address: str) -> IPv4Address | IPv6Address:
    """The address; an IPv4 address that came as ::ffff:a.b.c.d is what the kernel would dial: IPv4."""
    parsed = ip_address(address)
    mapped = parsed.ipv4_mapped if isinstance(parsed, IPv6Address) else None
    return mapped or parsed


class EgressGuard:
    """Resolves hosts and lets only permitted addresses out."""

    def __init__(
        self, allow_private: bool, allowed_networks: Sequence[str] = (), resolver: Resolver | None = None
    ) -> None:
        self._allow_private = allow_private
        self._resolver = resolver or SystemResolver()
        try:
            self._allowed_networks = tuple(ip_network(network) for network in allowed_networks)
        except ValueError as error:
            raise ConfigurationError(f"{ALLOWED_NETWORKS_SETTING}: {error}") from None

    async def resolve(self, host: str, port: int) -> list[Address]:
        """The addresses of `host` that may be dialled, best first; never empty."""
        found = _literal(host) or await self._look_up(host, port)
        permitted = [address for address in found if self._permits(address[1])]
        if not permitted:
            raise TargetRefusedError(
                f"{host} is at {found[0][1]}, which is not a public address: add its network to "
                f"{ALLOWED_NETWORKS_SETTING} or set {ALLOW_PRIVATE_SETTING} to deliver there"
            )
        return permitted

    async def _look_up(self, host: str, port: int) -> list[Address]:
        try:
            found = await self._resolver(host, port)
        except OSError as error:
            if error.errno in LOCAL_SHORTAGES:
                raise LocalShortageError(error.errno) from None
            raise ConnectError(f"{host} cannot be resolved: {error}") from None
        if not found:
            raise ConnectError(f"{host} cannot be resolved: it has no address")
        return list(dict.fromkeys(found))

    def _permits(self, address: str) -> bool:
        if self._allow_private:
            return True
        try:
            parsed = _unwrapped(address)
        except ValueError:
            return False
        return _is_public(parsed) or any(parsed in network for network in self._allowed_networks)


def _literal(host: str) -> list[Address] | None:
    """The address that `host` spells in full, which needs no resolver and no thread."""
    try:
        address = ip_address(host)
    except ValueError:
        return None
    return [(socket.AF_INET if address.version == 4 else socket.AF_INET6, str(address))]
