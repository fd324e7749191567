"""Which addresses the router may dial.

A name is resolved here, its addresses are checked here, and the clients dial exactly the addresses returned: a name
that resolves to something else a moment later changes nothing.
"""

import socket
from collections.abc import Awaitable, Callable, Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final

from flowcatalyst.core.errors import (
    LOCAL_SHORTAGES,
    ConfigurationError,
    ConnectError,
    LocalShortageError,
    TargetRefusedError,
)
from flowcatalyst.http.resolver import Address, SystemResolver

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
# Where clouds hand out credentials and settings to whoever asks from inside. No webhook lives there, so that private
# networks are allowed does not open them. Not all of them are in private ranges.
_PLATFORM_ADDRESSES: Final = frozenset(
    ip_address(address)
    for address in (
        "168.63.129.16",  # Azure's wire server
        "169.254.169.254",  # Amazon, Google, Azure, Oracle, DigitalOcean, Hetzner, OpenStack and others
        "169.254.170.2",  # Amazon ECS
        "169.254.170.23",  # Amazon EKS
        "169.254.0.23",  # Tencent
        "169.254.42.42",  # Scaleway
        "100.100.100.200",  # Alibaba
        "192.0.0.192",  # Oracle
        "192.80.8.124",  # Equinix Metal
        "fd00:ec2::254",  # Amazon
        "fd00:ec2::23",  # Amazon EKS
        "fd20:ce::254",  # Google
        "fd00:c1::a9fe:a9fe",  # Oracle
        "fd00:42::42",  # Scaleway
        "fe80::a9fe:a9fe",  # OpenStack
    )
)
_METADATA: Final = ip_address("169.254.169.254")
_METADATA_NAMES: Final = frozenset(
    [
        "instance-data.ec2.internal",
        "metadata.google.internal",
        "metadata.goog",
        "metadata.packet.net",
        "metadata.platformequinix.com",
        "metadata.tencentyun.com",
    ]
)


def address_is_public(address: str) -> bool:
    """Whether an address belongs to the public internet. What is no address is not public."""
    try:
        return _is_public(_unwrapped(address))
    except ValueError:
        return False


def _is_public(address: IPv4Address | IPv6Address) -> bool:
    if address in _PLATFORM_ADDRESSES:
        return False
    if isinstance(address, IPv4Address):
        return not any(address in network for network in _DENIED_V4)
    return address in _ALLOWED_V6 and not any(address in network for network in _DENIED_V6)


def _unwrapped(address: str) -> IPv4Address | IPv6Address:
    """The address; an IPv4 address that came as ::ffff:a.b.c.d is what the kernel would dial: IPv4."""
    parsed = ip_address(address.partition("%")[0])  # the same address in whatever network zone
    mapped = parsed.ipv4_mapped if isinstance(parsed, IPv6Address) else None
    return mapped or parsed


def _addresses_in(host: str) -> list[Address]:
    """The addresses that a host is in itself; none if only a resolver can tell."""
    name = host.rstrip(".")
    if name == "localhost" or name.endswith(".localhost"):
        return [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")]
    try:
        literal = ip_address(host)
    except ValueError:
        try:  # 127.1, 0x7f000001 and 2130706433 are addresses too, for those who dial
            return [(socket.AF_INET, socket.inet_ntoa(socket.inet_aton(host)))]
        except OSError:
            return []
    return [(socket.AF_INET if literal.version == 4 else socket.AF_INET6, str(literal))]


class EgressGuard:
    """Resolves hosts and lets only permitted addresses out."""

    def __init__(
        self,
        allow_private: bool,
        allowed_networks: Sequence[str] = (),
        resolver: Resolver | None = None,
        own: tuple[str, int] | None = None,
    ) -> None:
        """`own` is an address and a port that are always permitted: the built-in receivers."""
        self._allow_private = allow_private
        self._own = own
        self._resolver = resolver or SystemResolver()
        try:
            self._allowed_networks = tuple(ip_network(network) for network in allowed_networks)
        except ValueError as error:
            raise ConfigurationError(f"{ALLOWED_NETWORKS_SETTING}: {error}") from None

    def check(self, host: str, port: int) -> None:
        """Raise `TargetRefusedError` where that can be told without asking anybody: of addresses, in whatever form, and
        of names that mean this machine or one that serves metadata."""
        self._check_name(host)
        if found := _addresses_in(host):
            self._permitted(host, port, found)

    async def resolve(self, host: str, port: int) -> list[Address]:
        """The addresses of `host` that may be dialled, best first; never empty."""
        self._check_name(host)
        try:
            literal = ip_address(host)
        except ValueError:
            found = await self._look_up(host, port)
        else:  # spelled in full, it needs no resolver and no thread
            found = [(socket.AF_INET if literal.version == 4 else socket.AF_INET6, str(literal))]
        return self._permitted(host, port, found)

    def _check_name(self, host: str) -> None:
        if host.rstrip(".") in _METADATA_NAMES and not self._is_listed(_METADATA):
            raise TargetRefusedError(_metadata_refusal(host, f"{_METADATA}/32"))

    def _permitted(self, host: str, port: int, found: list[Address]) -> list[Address]:
        permitted = [address for address in found if (address[1], port) == self._own or self._permits(address[1])]
        if not permitted:
            refused = found[0][1]
            if self._allow_private:  # nothing else is refused then
                raise TargetRefusedError(_metadata_refusal(f"{host}, at {refused},", refused))
            raise TargetRefusedError(
                f"{host} is at {refused}, which is not a public address: add its network to "
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
        try:
            parsed = _unwrapped(address)
        except ValueError:
            return False
        allowed = parsed not in _PLATFORM_ADDRESSES if self._allow_private else _is_public(parsed)
        return allowed or self._is_listed(parsed)

    def _is_listed(self, address: IPv4Address | IPv6Address) -> bool:
        return any(address in network for network in self._allowed_networks)


def _metadata_refusal(what: str, address: str) -> str:
    return (
        f"{what} is where a cloud serves metadata and credentials: add {address} to {ALLOWED_NETWORKS_SETTING} if "
        "messages have to go there"
    )
