"""Who is let in: hashes, the check of credentials, and the settings that belong to it."""

import asyncio
import base64
import hmac
import threading
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from litestar.connection import ASGIConnection
from litestar.datastructures import Headers

from flowcatalyst.api.access import (
    MAX_FAILED_PASSWORDS_PER_S,
    CredentialCheck,
    KeyCheck,
    PasswordCheck,
    TooManyFailuresError,
    _comes_from_this_machine,
)
from flowcatalyst.control.settings import load_settings
from flowcatalyst.core.credentials import (
    MAX_SCRYPT_WORK,
    PasswordHash,
    Role,
    hash_key,
    hash_password,
    new_key,
    read_accounts,
    read_keys,
)
from flowcatalyst.core.errors import ConfigurationError
from tests.support.clocks import SetClock

SALT, DIGEST = "ab" * 16, "cd" * 32
KEY_HASH = hash_key(b"key")
ANN = f"ann:scrypt:2:1:1:{SALT}:{DIGEST}"


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_new_keys_are_long_and_differ() -> None:
    keys = {new_key() for _ in range(100)}
    assert len(keys) == 100
    assert all(len(key) == 43 for key in keys)


def test_the_same_password_has_another_hash_each_time() -> None:
    first, second = hash_password(b"correct horse"), hash_password(b"correct horse")
    assert first != second
    for text in (first, second):
        stored = PasswordHash.parse(text)
        assert stored is not None
        assert stored.matches(b"correct horse")
        assert not stored.matches(b"correct horsE")


def test_no_password_matches_a_stand_in() -> None:
    stored = PasswordHash.parse(hash_password(b"correct horse"))
    assert stored is not None
    stand_in = stored.stand_in()
    assert (stand_in.n, stand_in.r, stand_in.p) == (stored.n, stored.r, stored.p)
    assert not stand_in.matches(b"correct horse")


@pytest.mark.parametrize("cost", ["0:8:1", "1:8:1", "3:8:1", "2:0:1", "2:8:0", f"{MAX_SCRYPT_WORK}:2:1", "-2:8:1"])
def test_a_cost_that_scrypt_cannot_have_or_that_would_stop_the_router_is_no_hash(cost: str) -> None:
    assert PasswordHash.parse(f"scrypt:{cost}:{SALT}:{DIGEST}") is None


def test_the_highest_permitted_cost_can_be_computed() -> None:
    stored = PasswordHash.parse(f"scrypt:{MAX_SCRYPT_WORK // 64}:8:8:{SALT}:{DIGEST}")
    assert stored is not None
    assert not stored.matches(b"x")


async def role_of(check: CredentialCheck, credentials: bytes) -> Role | None:
    found = await check.identify(credentials)
    return None if found is None else found.role


def key_check() -> KeyCheck:
    entries = read_keys(
        [hash_key(b"first"), hash_key(b"second")], [hash_key(b"reader"), hash_key("schlüssel".encode())]
    )
    return KeyCheck(entries)


@pytest.mark.parametrize(
    ("key", "role"),
    [
        ("first", Role.ADMIN),
        ("second", Role.ADMIN),
        ("reader", Role.READ_ONLY),
        ("schlüssel", Role.READ_ONLY),
        ("firs", None),
        ("first ", None),
        ("", None),
        (hash_key(b"first"), None),
        ("日本", None),
    ],
)
async def test_a_key_has_the_role_of_its_entry_and_anything_else_has_none(key: str, role: Role | None) -> None:
    assert await role_of(key_check(), key.encode()) is role


async def test_every_entry_is_compared_in_constant_time_also_after_one_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = count_comparisons(monkeypatch)
    check = key_check()
    for key in (b"first", b"reader", b"nobody's"):
        compared.clear()
        await role_of(check, key)
        assert len(compared) == 4


def count_comparisons(monkeypatch: pytest.MonkeyPatch) -> list[None]:
    compared: list[None] = []
    compare = hmac.compare_digest

    def counted(one: Any, other: Any) -> bool:
        assert isinstance(one, bytes)
        assert isinstance(other, bytes)
        compared.append(None)
        return compare(one, other)

    monkeypatch.setattr(hmac, "compare_digest", counted)
    return compared


@pytest.mark.parametrize(
    ("headers", "given"),
    [
        ({"x-api-key": "k"}, b"k"),
        ({"authorization": "Bearer k"}, b"k"),
        ({"authorization": "bearer   k "}, b"k"),
        ({"authorization": "Basic k", "x-api-key": "wins"}, b"wins"),
        ({"authorization": "Bearer other", "x-api-key": "wins"}, b"wins"),
        ({"authorization": "Bearer"}, b""),
        ({"authorization": "k"}, None),
        ({"authorization": "Basic k"}, None),
        ({}, None),
    ],
)
def test_a_key_is_read_from_its_header_or_as_a_bearer_token(headers: dict[str, str], given: bytes | None) -> None:
    assert key_check().given(Headers(headers)) == given


@pytest.mark.parametrize(
    ("header", "given"),
    [
        ("Basic " + base64.b64encode(b"ann:pass:word").decode(), b"ann:pass:word"),
        ("basic " + base64.b64encode("ann:pässwörd".encode()).decode(), "ann:pässwörd".encode()),
        ("Basic !!!", b""),
        ("Basic YQ", b""),
        ("Basic é", b""),
        ("Basic", b""),
        ("Bearer YTpi", None),
    ],
)
def test_a_name_and_its_password_are_read_from_a_basic_header(header: str, given: bytes | None) -> None:
    headers = Headers([(b"authorization", header.encode("latin-1"))])
    assert password_check(SetClock()).given(headers) == given


hashed_once = cache(hash_password)  # it is slow on purpose


def password_check(clock: SetClock) -> PasswordCheck:
    admin, reader = f"ann:{hashed_once(b'anns password')}", f"böb:{hashed_once('böbs password'.encode())}"
    return PasswordCheck(read_accounts([admin], [reader]), clock)


def count_slow_checks(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The passwords that were really checked, which is slow."""
    checked: list[bytes] = []
    matches = PasswordHash.matches

    def counted(self: PasswordHash, password: bytes) -> bool:
        checked.append(password)
        return matches(self, password)

    monkeypatch.setattr(PasswordHash, "matches", counted)
    return checked


async def test_a_password_belongs_to_its_name() -> None:
    check = password_check(SetClock())
    assert await role_of(check, b"ann:anns password") is Role.ADMIN
    assert await role_of(check, "böb:böbs password".encode()) is Role.READ_ONLY
    assert await role_of(check, "ann:böbs password".encode()) is None
    assert await role_of(check, b":anns password") is None


async def test_a_right_password_is_checked_once_and_only_its_trace_is_remembered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    check = password_check(SetClock())
    checked = count_slow_checks(monkeypatch)
    for _ in range(100):
        assert await role_of(check, b"ann:anns password") is Role.ADMIN
    assert checked == [b"anns password"]
    assert len(check._remembered) == 1
    assert "anns password" not in repr(vars(check))


async def test_an_unknown_name_costs_the_same_check_as_a_wrong_password(monkeypatch: pytest.MonkeyPatch) -> None:
    check = password_check(SetClock())
    checked = count_slow_checks(monkeypatch)
    assert await role_of(check, b"ann:wrong") is None
    assert await role_of(check, b"nobody:wrong") is None
    assert checked == [b"wrong", b"wrong"]
    assert check._remembered == {}


async def test_passwords_are_checked_beside_the_loop_and_one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    check = password_check(SetClock())
    threads: list[int] = []
    at_once = 0

    def matches(self: PasswordHash, password: bytes) -> bool:
        nonlocal at_once
        at_once += 1
        threads.append(at_once if threading.current_thread() is not threading.main_thread() else 0)
        threading.Event().wait(0.01)
        at_once -= 1
        return False

    monkeypatch.setattr(PasswordHash, "matches", matches)
    answers = await asyncio.gather(
        *(role_of(check, b"ann:%d" % number) for number in range(20)), return_exceptions=True
    )
    assert threads == [1] * MAX_FAILED_PASSWORDS_PER_S
    assert [type(answer) for answer in answers] == [type(None)] * 5 + [TooManyFailuresError] * 15


async def test_what_is_no_name_and_password_costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    check = password_check(SetClock())
    checked = count_slow_checks(monkeypatch)
    for _ in range(100):
        assert await role_of(check, b"") is None
    assert checked == []


async def test_wrong_passwords_that_come_fast_are_refused_unseen_for_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SetClock()
    check = password_check(clock)
    checked = count_slow_checks(monkeypatch)
    for number in range(MAX_FAILED_PASSWORDS_PER_S):
        assert await role_of(check, b"ann:wrong%d" % number) is None
    for _ in range(100):
        with pytest.raises(TooManyFailuresError):
            await role_of(check, b"ann:anns password")
    assert len(checked) == MAX_FAILED_PASSWORDS_PER_S
    clock.now += 1
    assert await role_of(check, b"ann:anns password") is Role.ADMIN


async def test_who_was_let_in_before_is_not_kept_out_by_the_failures_of_others() -> None:
    check = password_check(SetClock())
    assert await role_of(check, b"ann:anns password") is Role.ADMIN
    for _ in range(MAX_FAILED_PASSWORDS_PER_S):
        await role_of(check, b"ann:wrong")
    assert await role_of(check, b"ann:anns password") is Role.ADMIN


@pytest.mark.parametrize(
    ("peer", "own", "headers", "local"),
    [
        ("127.0.0.1", "127.0.0.1", {}, True),
        ("127.0.0.2", "127.0.0.1", {}, True),
        ("::1", "::1", {}, True),
        ("::ffff:127.0.0.1", "::ffff:127.0.0.1", {}, True),
        ("192.0.2.1", "192.0.2.1", {}, True),
        ("::ffff:192.0.2.1", "::ffff:192.0.2.1", {}, True),
        ("192.0.2.7", "192.0.2.1", {}, False),
        ("::ffff:192.0.2.7", "::ffff:192.0.2.1", {}, False),
        ("192.0.2.7", "127.0.0.1", {}, False),
        ("127.0.0.1", "127.0.0.1", {"x-forwarded-for": "127.0.0.1"}, False),
        ("127.0.0.1", "127.0.0.1", {"via": "1.1 proxy"}, False),
        ("", "", {}, False),
        (None, "127.0.0.1", {}, False),
    ],
)
def test_a_request_is_of_this_machine_if_it_comes_from_loopback_or_from_the_address_it_goes_to(
    peer: str | None, own: str, headers: dict[str, str], local: bool
) -> None:
    scope: Any = {
        "type": "http",
        "client": None if peer is None else (peer, 1),
        "server": (own, 8080),
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
    }
    assert _comes_from_this_machine(ASGIConnection(scope)) is local


@pytest.mark.parametrize(
    ("auth", "said"),
    [
        ({"mode": "api_key"}, "auth has mode api_key but no admin"),
        ({"mode": "basic", "read_only": [ANN]}, "auth has mode basic but no admin"),
        ({"mode": "api_key", "admin": ["top-secret"]}, "no hash of a key at admin[0]: `flowcatalyst hash-key` makes"),
        ({"mode": "api_key", "admin": ["sha256:topsecret"]}, "no hash of a key at admin[0]"),
        ({"mode": "api_key", "admin": [KEY_HASH.upper()]}, "no hash of a key at admin[0]"),
        ({"mode": "api_key", "admin": [ANN]}, "no hash of a key at admin[0]"),
        ({"mode": "api_key", "admin": [KEY_HASH], "read_only": ["top-secret"]}, "no hash of a key at read_only[0]"),
        ({"mode": "api_key", "admin": [KEY_HASH], "read_only": [KEY_HASH]}, "same key at admin[0] and read_only[0]"),
        ({"mode": "basic", "admin": ["ann:top-secret"]}, "no name:hash at admin[0]: `flowcatalyst hash-key --basic"),
        ({"mode": "basic", "admin": [ANN.removeprefix("ann:")]}, "no name:hash at admin[0]"),
        ({"mode": "basic", "admin": [ANN.removeprefix("ann")]}, "no name:hash at admin[0]"),
        ({"mode": "basic", "admin": [f"ann:{KEY_HASH}"]}, "no name:hash at admin[0]"),
        ({"mode": "basic", "admin": [ANN, ANN]}, "same name at admin[0] and admin[1]"),
        ({"mode": "top-secret"}, "auth.mode should be 'none', 'api_key' or 'basic'"),
    ],
)
def test_a_wrong_entry_is_named_in_one_sentence_that_does_not_repeat_it(auth: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        load_settings(auth=auth)
    text = str(caught.value)
    assert said in text
    for secret in ("top-secret", "topsecret", KEY_HASH, DIGEST, SALT):
        assert secret.lower() not in text.lower()
    assert "\n" not in text


@pytest.mark.parametrize("form", ["{0},{1}", '["{0}", "{1}"]', " {0} , {1}, "])
def test_entries_in_the_environment_are_a_json_list_or_separated_by_commas(
    form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    entries = [hash_key(b"one"), hash_key(b"two")]
    monkeypatch.setenv("FLOWCATALYST_AUTH__MODE", "api_key")
    monkeypatch.setenv("FLOWCATALYST_AUTH__ADMIN", form.format(*entries))
    assert load_settings().auth.admin == entries


def test_a_broken_list_in_the_environment_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLOWCATALYST_AUTH__ADMIN", '["top-secret')
    with pytest.raises(
        ConfigurationError, match=r"auth\.admin begins like a JSON list but is none \(variable [A-Z_]+\)$"
    ):
        load_settings()


OTHER_HOSTS = ["0.0.0.0", "::", "192.0.2.1", "router.example"]


@pytest.mark.parametrize("host", OTHER_HOSTS)
def test_a_host_that_others_can_reach_is_refused_without_access_control(host: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        load_settings(host=host)
    assert "set auth.mode to api_key or basic" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("host", OTHER_HOSTS)
@pytest.mark.parametrize("auth", [{"mode": "api_key", "admin": [KEY_HASH]}, {"mode": "basic", "admin": [ANN]}])
def test_a_host_that_others_can_reach_is_allowed_with_access_control(host: str, auth: dict[str, Any]) -> None:
    assert load_settings(host=host, auth=auth).host == host


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "localhost"])
def test_loopback_needs_no_access_control_and_may_deliver_to_private_addresses(host: str) -> None:
    settings = load_settings(host=host)
    assert settings.auth.mode == "none"
    assert settings.egress.allow_private


KEYS = {"mode": "api_key", "admin": [KEY_HASH]}


@pytest.mark.parametrize("egress", [None, {}, {"allowed_networks": ["10.0.0.0/8"]}])
def test_a_host_that_others_can_reach_denies_private_targets_unless_listed(egress: dict[str, Any] | None) -> None:
    settings = load_settings(host="0.0.0.0", auth=KEYS, egress=egress)
    assert not settings.egress.allow_private
    assert settings.egress.allowed_networks == (egress or {}).get("allowed_networks", [])


def test_private_targets_are_allowed_where_the_setting_says_so(
    empty_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert load_settings(host="0.0.0.0", auth=KEYS, egress={"allow_private": True}).egress.allow_private
    monkeypatch.setenv("FLOWCATALYST_EGRESS__ALLOW_PRIVATE", "true")
    assert load_settings(host="0.0.0.0", auth=KEYS).egress.allow_private
    monkeypatch.delenv("FLOWCATALYST_EGRESS__ALLOW_PRIVATE")
    (empty_folder / "flowcatalyst.toml").write_text("[egress]\nallow_private = true\n")
    assert load_settings(host="0.0.0.0", auth=KEYS).egress.allow_private


@pytest.mark.parametrize("auth", [{"mode": "api_key", "admin": [KEY_HASH]}, {"mode": "basic", "admin": [ANN]}])
def test_access_control_on_loopback_denies_private_targets_too_since_others_come_through_a_proxy(
    auth: dict[str, Any],
) -> None:
    assert not load_settings(auth=auth).egress.allow_private
    assert load_settings(auth=auth, egress={"allow_private": True}).egress.allow_private
