"""Who may use the API: the check of credentials and the guard that asks for them.

Credentials are compared in constant time and never logged, stored or repeated in an answer.
"""

import asyncio
import base64
import binascii
import hashlib
import hmac
import secrets
from collections import deque
from collections.abc import Callable, Sequence
from http import HTTPStatus
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Any, Final, Protocol

import structlog
from litestar.connection import ASGIConnection
from litestar.datastructures import Headers
from litestar.exceptions import HTTPException
from litestar.handlers import BaseRouteHandler
from litestar.types import Guard

from flowcatalyst.api.scopes import scope_of
from flowcatalyst.control.settings import AuthSettings
from flowcatalyst.core.clock import Clock
from flowcatalyst.core.credentials import Account, Identity, KeyEntry
from flowcatalyst.dispatch.api_keys import ApiKeys

READING_METHODS: Final = ("GET", "HEAD", "OPTIONS")
PROBES: Final = frozenset({"/health", "/health/live", "/health/ready", "/health/startup", "/metrics"})
RECEIVER: Final = "/api/test/{receiver}"
PAGES: Final = frozenset({"/schema"})
DASHBOARD: Final = frozenset({"/", "/dashboard/{path}"})  # files without data: the page asks for a key or a password
OWN_TOKENS: Final = frozenset({"/api/dispatch/process"})  # what comes there shows a token for one job, and for no more
MAX_FAILED_PASSWORDS_PER_S: Final = 5  # each takes about 20 ms of a processor
REFUSAL_LOG_PERIOD_S: Final = 1.0

_PROXY_HEADERS: Final = ("forwarded", "via", "x-forwarded-for", "x-real-ip")

log = structlog.get_logger("flowcatalyst.web")

Connection = ASGIConnection[Any, Any, Any, Any]


class CredentialCheck(Protocol):
    """One way to show who one is."""

    challenge: str
    how: str
    hint_on_pages: str

    def given(self, headers: Headers) -> bytes | None:
        """The credentials of a request; None if it has none of this kind."""

    async def identify(self, credentials: bytes) -> Identity | None:
        """Whose credentials these are; None if they are nobody's."""


class KeyCheck:
    """API keys: those of the settings and, if there is one, of the platform. X-API-Key wins, since a proxy may need
    Authorization for itself."""

    challenge = 'Bearer realm="FlowCatalyst"'
    how = "an API key in the header X-API-Key, or as Authorization: Bearer"
    hint_on_pages = "; a browser sends none by itself, so to see pages there set auth.mode to basic"

    def __init__(self, entries: Sequence[KeyEntry], of_platform: Callable[[], ApiKeys | None] = lambda: None) -> None:
        self._entries = entries
        self._of_platform = of_platform

    def given(self, headers: Headers) -> bytes | None:
        if (key := headers.get("x-api-key")) is not None:
            return key.strip().encode("latin-1")
        return _authorization(headers, "bearer")

    async def identify(self, credentials: bytes) -> Identity | None:
        digest = hashlib.sha256(credentials).digest()
        found = None
        for entry in self._entries:  # all of them: the time taken must not tell which one fits
            if hmac.compare_digest(entry.digest, digest):
                found = entry.identity
        if found is None and (keys := self._of_platform()) is not None:
            return keys.identify(credentials)
        return found


class TooManyFailuresError(HTTPException):
    """Wrong passwords came so fast that no other is looked at for a moment."""

    def __init__(self) -> None:
        detail = "too many wrong passwords were tried within a second: try again in a second"
        super().__init__(detail=detail, status_code=HTTPStatus.TOO_MANY_REQUESTS, headers={"Retry-After": "1"})


class PasswordCheck:
    """Names with passwords.

    To check a password is slow: one at a time is, in a thread, so that strangers hold up neither the loop nor other
    threads. A right one is remembered, and when wrong ones come fast, those that are not remembered are refused unseen.
    Remembered is not the password but its HMAC under a key of this process: a dump does not tell it, and there is one
    for each account at most.
    """

    challenge = 'Basic realm="FlowCatalyst", charset="UTF-8"'
    how = "a name and a password (HTTP basic authentication)"
    hint_on_pages = ""  # the browser asks for them

    def __init__(self, accounts: Sequence[Account], clock: Clock) -> None:
        self._accounts = accounts
        self._clock = clock
        self._key_of_process = secrets.token_bytes(32)
        self._remembered: dict[bytes, Identity] = {}
        self._failed_at: deque[float] = deque(maxlen=MAX_FAILED_PASSWORDS_PER_S)
        self._stand_in = accounts[0].password.stand_in()
        self._checking = asyncio.Lock()

    def given(self, headers: Headers) -> bytes | None:
        encoded = _authorization(headers, "basic")
        try:
            return encoded if encoded is None else base64.b64decode(encoded, validate=True)
        except binascii.Error:
            return b""  # nobody's

    async def identify(self, credentials: bytes) -> Identity | None:
        """Raises `TooManyFailuresError` instead of looking at a password after many wrong ones."""
        trace = hmac.digest(self._key_of_process, credentials, "sha256")
        if trace in self._remembered:
            return self._remembered[trace]
        name, colon, password = credentials.partition(b":")
        if not colon:
            return None
        account = None
        for one in self._accounts:
            if hmac.compare_digest(one.name, name):
                account = one
        # An unknown name costs as much as a wrong password, so that the time taken does not tell them apart.
        stored = self._stand_in if account is None else account.password
        async with self._checking:
            if trace in self._remembered:
                return self._remembered[trace]
            failed = self._failed_at
            if len(failed) == failed.maxlen and self._clock.monotonic() - failed[0] < 1:  # so many within a second
                raise TooManyFailuresError
            is_right = await asyncio.to_thread(stored.matches, password)
            if not is_right or account is None:
                self._failed_at.append(self._clock.monotonic())
                return None
            self._remembered[trace] = account.identity
            return account.identity


def _authorization(headers: Headers, scheme: str) -> bytes | None:
    """What the header Authorization has for a scheme, as the bytes that were sent."""
    given_scheme, _, credentials = headers.get("authorization", "").partition(" ")
    return credentials.strip().encode("latin-1") if given_scheme.lower() == scheme else None


class AccessGuard:
    """Lets in who showed the right credentials, and to what their scopes permit."""

    def __init__(self, check: CredentialCheck, open_probes: bool, clock: Clock) -> None:
        self._check = check
        self._open_probes = open_probes
        self._clock = clock
        self._refused = 0
        self._log_again_at = 0.0

    async def refuse_strangers(self, connection: Connection, handler: BaseRouteHandler) -> None:
        """A Litestar guard for every route. It is async only because Litestar would run it in a thread otherwise."""
        route, method = connection.scope["path_template"], str(connection.scope.get("method", "GET"))
        if route in OWN_TOKENS or route in DASHBOARD or (self._open_probes and route in PROBES):
            return
        if is_receiver(route, method) and _comes_from_this_machine(connection):
            return
        given = self._check.given(connection.headers)
        if given is None:
            hint = self._check.hint_on_pages if route in PAGES else ""
            raise self._unauthorized(f"this API needs {self._check.how}{hint}")
        identity = await self._check.identify(given)
        if identity is None:
            self._log_refusal(connection)
            raise self._unauthorized("these credentials are wrong")
        connection.scope["user"] = identity
        if method == "OPTIONS" or identity.may(scope := scope_of(method, route)):
            return
        detail = f"these credentials may only {identity.scopes_in_words}: this needs some with the scope {scope}"
        raise HTTPException(detail=detail, status_code=HTTPStatus.FORBIDDEN)

    def _unauthorized(self, detail: str) -> HTTPException:
        headers = {"WWW-Authenticate": self._check.challenge}
        return HTTPException(detail=detail, status_code=HTTPStatus.UNAUTHORIZED, headers=headers)

    def _log_refusal(self, connection: Connection) -> None:
        """One line a second at most, so that nobody fills the disk. No name either: some type a password there."""
        self._refused += 1
        now = self._clock.monotonic()
        if now < self._log_again_at:
            return
        peer = connection.client.host if connection.client else None
        log.warning(
            "access_refused",
            action="access_refused",
            refused=self._refused,
            last_route=connection.scope["path_template"],
            last_peer=peer,
        )
        self._refused, self._log_again_at = 0, now + REFUSAL_LOG_PERIOD_S


def access_guards(auth: AuthSettings, clock: Clock, keys_of_platform: Callable[[], ApiKeys | None]) -> list[Guard]:
    """The guards of every route that ask for credentials; none in mode none."""
    check: CredentialCheck
    match auth.mode:
        case "none":
            return []
        case "api_key":
            check = KeyCheck(auth.keys(), keys_of_platform)
        case "basic":
            check = PasswordCheck(auth.accounts(), clock)
    return [AccessGuard(check, auth.open_probes, clock).refuse_strangers]


def is_receiver(route: str, method: str) -> bool:
    """Whether this is one of the built-in receivers.

    The router itself sends them the messages of `--demo` and `/api/seed`, without credentials: those in a message
    would lie in the queue. So receivers are open to this machine, and to others only with credentials. All one can do
    there is to be counted. What they counted (/api/test/stats) is guarded like everything else.
    """
    return route == RECEIVER and method == "POST"


def _comes_from_this_machine(connection: Connection) -> bool:
    """Not so if a proxy on this machine says that it sends for somebody else."""
    client, server = connection.scope["client"], connection.scope["server"]
    if client is None or any(name in connection.headers for name in _PROXY_HEADERS):
        return False
    peer = _address(client[0])
    # A machine that calls its own address on a network does so from that address.
    return peer is not None and (peer.is_loopback or (server is not None and peer == _address(server[0])))


def _address(text: str) -> IPv4Address | IPv6Address | None:
    try:
        address = ip_address(text)
    except ValueError:
        return None
    return (address.ipv4_mapped or address) if isinstance(address, IPv6Address) else address
