import socket

import pytest

from flowcatalyst.core.errors import ConfigurationError, ConnectError, TargetRefusedError
from flowcatalyst.core.targets import Target, parse_target
from flowcatalyst.http.egress import EgressGuard, Resolver, address_is_public
from flowcatalyst.http.resolver import Address

V4, V6 = int(socket.AF_INET), int(socket.AF_INET6)
PUBLIC = (
    "1.1.1.1 8.8.8.8 100.63.255.255 100.128.0.0 172.15.255.255 172.32.0.0 192.0.1.1 198.20.0.0 223.255.255.255 "
    "2606:4700::1111 2001:200::1 2a00:1450::1 3ffe::1 ::ffff:8.8.8.8"
)
NOT_PUBLIC = (
    "0.0.0.0 0.1.2.3 10.0.0.1 100.64.0.1 127.0.0.1 127.255.255.255 169.254.169.254 172.16.0.1 172.31.255.255 "
    "192.0.0.1 192.0.2.1 192.31.196.1 192.52.193.1 192.88.99.1 192.168.1.1 192.175.48.1 198.18.0.1 198.19.255.255 "
    "198.51.100.1 203.0.113.1 224.0.0.1 239.255.255.255 240.0.0.1 255.255.255.255 "
    ":: ::1 ::127.0.0.1 ::ffff:127.0.0.1 ::ffff:10.0.0.1 fe80::1 fe80::1%eth0 fc00::1 fd00:ec2::254 ff02::1 "
    "64:ff9b::8.8.8.8 64:ff9b:1::1 100::1 2001::1 2001:1ff::1 2001:db8::1 2002:7f00:1:: 2620:4f:8000::1 3fff::1 "
    "4000::1 5f00::1 localhost 127.1 1.2.3 168.63.129.16 ::ffff:168.63.129.16 192.80.8.124 100.100.100.200 192.0.0.192"
)
METADATA = (
    "168.63.129.16 169.254.169.254 169.254.170.2 169.254.170.23 169.254.0.23 169.254.42.42 100.100.100.200 192.0.0.192 "
    "192.80.8.124 ::ffff:169.254.169.254 fd00:ec2::254 fd00:ec2::23 fd20:ce::254 fd00:c1::a9fe:a9fe fd00:42::42 "
    "fe80::a9fe:a9fe fe80::a9fe:a9fe%eth0"
)


def resolver_of(*addresses: str) -> Resolver:
    async def resolve(host: str, port: int) -> list[Address]:
        return [(V6 if ":" in address else V4, address) for address in addresses]

    return resolve


@pytest.mark.parametrize("address", PUBLIC.split())
def test_public_address_is_public(address: str) -> None:
    assert address_is_public(address)


@pytest.mark.parametrize("address", NOT_PUBLIC.split())
def test_other_address_is_not_public(address: str) -> None:
    assert not address_is_public(address)


async def test_private_addresses_are_left_out_and_the_order_is_kept() -> None:
    found = resolver_of("10.0.0.1", "9.9.9.9", "::1", "2606:4700::1111", "9.9.9.9", "8.8.8.8")
    guard = EgressGuard(allow_private=False, resolver=found)
    assert await guard.resolve("shop.test", 443) == [(V4, "9.9.9.9"), (V6, "2606:4700::1111"), (V4, "8.8.8.8")]


async def test_refusal_names_host_address_and_settings() -> None:
    guard = EgressGuard(allow_private=False, resolver=resolver_of("10.1.2.3"))
    with pytest.raises(
        TargetRefusedError, match=r"^shop\.test is at 10\.1\.2\.3, .*egress\.allowed_networks .*egress\.allow_private"
    ):
        await guard.resolve("shop.test", 443)


async def test_listed_networks_are_allowed_and_no_others() -> None:
    networks = ["10.1.0.0/16", "fd00::/8"]
    found = resolver_of("10.2.0.1", "10.1.0.1", "fd00::1", "fe80::1", "::ffff:10.1.0.2")
    guard = EgressGuard(allow_private=False, allowed_networks=networks, resolver=found)
    assert [address for _, address in await guard.resolve("x.test", 80)] == ["10.1.0.1", "fd00::1", "::ffff:10.1.0.2"]


async def test_private_addresses_pass_when_allowed() -> None:
    guard = EgressGuard(allow_private=True, resolver=resolver_of("10.1.2.3", "::1"))
    assert await guard.resolve("shop.test", 443) == [(V4, "10.1.2.3"), (V6, "::1")]


@pytest.mark.parametrize("address", METADATA.split())
async def test_addresses_of_metadata_services_are_refused_although_private_ones_are_allowed(address: str) -> None:
    guard = EgressGuard(allow_private=True, resolver=resolver_of(address))
    with pytest.raises(TargetRefusedError, match=r"metadata.* add .* to egress\.allowed_networks"):
        await guard.resolve("shop.test", 80)


@pytest.mark.parametrize("host", ["metadata.google.internal", "metadata.google.internal.", "metadata.tencentyun.com"])
async def test_names_of_metadata_services_are_refused_and_not_looked_up(host: str) -> None:
    async def unused(host: str, port: int) -> list[Address]:
        raise AssertionError

    with pytest.raises(TargetRefusedError, match="metadata"):
        await EgressGuard(allow_private=True, resolver=unused).resolve(host, 80)


async def test_a_metadata_service_that_is_listed_is_allowed() -> None:
    found = resolver_of("169.254.169.254")
    guard = EgressGuard(allow_private=False, allowed_networks=["169.254.169.254/32"], resolver=found)
    assert await guard.resolve("metadata.google.internal", 80) == [(V4, "169.254.169.254")]
    assert await guard.resolve("169.254.169.254", 80) == [(V4, "169.254.169.254")]


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1", "0x7f.1", "2130706433", "0177.0.0.1", "localhost", "::1"])
async def test_loopback_is_refused_in_whatever_form_it_is_written(host: str) -> None:
    with pytest.raises(TargetRefusedError):
        await EgressGuard(allow_private=False).resolve(host, 80)


async def test_literal_address_needs_no_resolver() -> None:
    async def unused(host: str, port: int) -> list[Address]:
        raise AssertionError

    guard = EgressGuard(allow_private=False, resolver=unused)
    assert await guard.resolve("9.9.9.9", 80) == [(V4, "9.9.9.9")]
    assert await guard.resolve("2606:4700::1111", 80) == [(V6, "2606:4700::1111")]


async def test_unknown_name_is_a_connect_error() -> None:
    async def unknown(host: str, port: int) -> list[Address]:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    with pytest.raises(ConnectError, match=r"nowhere\.test cannot be resolved: .*not known"):
        await EgressGuard(allow_private=True, resolver=unknown).resolve("nowhere.test", 80)


@pytest.mark.parametrize("host", ["a..b", "a" * 64 + ".test"])
async def test_impossible_name_is_a_connect_error(host: str) -> None:
    with pytest.raises(ConnectError, match="cannot be resolved"):
        await EgressGuard(allow_private=True).resolve(host, 80)


async def test_name_without_addresses_is_a_connect_error() -> None:
    with pytest.raises(ConnectError, match="has no address"):
        await EgressGuard(allow_private=True, resolver=resolver_of()).resolve("empty.test", 80)


def test_network_that_is_none_is_a_configuration_error() -> None:
    with pytest.raises(ConfigurationError, match=r"egress\.allowed_networks"):
        EgressGuard(allow_private=False, allowed_networks=["10.0.0.1/8"])


# -- targets --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "target"),
    [
        ("http://a.test", Target("http", "a.test", 80, "a.test", "/")),
        ("HTTP://A.Test:80/", Target("http", "a.test", 80, "a.test", "/")),
        ("https://a.test:443/x?y=1#z", Target("https", "a.test", 443, "a.test", "/x?y=1")),
        ("https://a.test:8443?y", Target("https", "a.test", 8443, "a.test:8443", "/?y")),
        ("http://[::1]:8080/x", Target("http", "::1", 8080, "[::1]:8080", "/x")),
        ("http://[0:0::1]/", Target("http", "::1", 80, "[::1]", "/")),
        ("http://my_service:9000/%20", Target("http", "my_service", 9000, "my_service:9000", "/%20")),
    ],
)
def test_target_is_parsed_into_its_parts(url: str, target: Target) -> None:
    assert parse_target(url) == target
    assert parse_target(url) is parse_target(url)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "a.test",
        "//a.test/",
        "ftp://a.test/",
        "http://",
        "http:///x",
        "http://a.test:0/",
        "http://a.test:99999/",
        "http://a.test:x/",
        "http://u:p@a.test/",
        "http://u@a.test/",
        "http://@a.test/",
        "http://a.test/x y",
        "http://a.test/\r\nX-A: b",
        "http://a.test/\n",
        "\thttp://a.test/",
        "http://a.test\t/",
        "http://a.test/\x7f",
        "http://a.test/\xe9",
        "http://b\xfccher.test/",
        "http://%31.test/",
        "http://a.test\\@b.test/",
        "http://a<b/",
        "http://[::1/",
        "http://[nonsense]/",
        "http://[fe80::1%25eth0]/",
        "http://a.test,b.test/",
        f"http://{'a' * 254}/",
    ],
)
def test_url_that_could_mean_something_else_is_refused(url: str) -> None:
    with pytest.raises(TargetRefusedError):
        parse_target(url)


async def test_the_own_receivers_are_permitted_at_exactly_their_address_and_port() -> None:
    guard = EgressGuard(allow_private=False, resolver=resolver_of("127.0.0.1"), own=("127.0.0.1", 8080))
    assert await guard.resolve("127.0.0.1", 8080) == [(V4, "127.0.0.1")]
    assert await guard.resolve("localhost", 8080) == [(V4, "127.0.0.1")]
    for host, port in (("127.0.0.1", 8081), ("127.0.0.2", 8080), ("::1", 8080)):
        with pytest.raises(TargetRefusedError):
            await guard.resolve(host, port)


@pytest.mark.parametrize(
    "host", ["10.1.2.3", "127.0.0.1", "127.1", "0x7f000001", "2130706433", "::1", "localhost", "a.localhost."]
)
def test_what_is_a_private_address_is_refused_without_asking_anybody(host: str) -> None:
    with pytest.raises(TargetRefusedError, match=r"egress\.allow"):
        EgressGuard(allow_private=False, resolver=unused).check(host, 80)
    EgressGuard(allow_private=True, resolver=unused).check(host, 80)


def test_what_only_a_resolver_can_tell_is_not_refused_before_it_is_asked() -> None:
    for host in ("shop.test", "8.8.8.8", "2606:4700::1111"):
        EgressGuard(allow_private=False, resolver=unused).check(host, 80)


def test_a_name_of_this_machine_is_permitted_if_one_of_its_addresses_is() -> None:
    EgressGuard(allow_private=False, allowed_networks=["::1/128"], resolver=unused).check("localhost", 80)
    EgressGuard(allow_private=False, own=("127.0.0.1", 8080), resolver=unused).check("localhost", 8080)


async def unused(host: str, port: int) -> list[Address]:
    raise AssertionError
