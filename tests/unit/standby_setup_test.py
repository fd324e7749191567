"""What a standby says of its Redis: errors in fixed words, wrong URLs, a client that is missing."""

import socket
import ssl
import sys

import pytest
import redis.exceptions
from pydantic import SecretStr

from flowcatalyst.control.redis_lock import _in_words
from flowcatalyst.control.settings import StandbySettings
from flowcatalyst.control.standby import Standby
from flowcatalyst.core.errors import ConfigurationError
from flowcatalyst.core.warnings import WarningLog
from flowcatalyst.router.fence import Fence
from tests.support.clocks import SetClock


def caused_by(cause: Exception) -> Exception:
    error = redis.exceptions.ConnectionError("Error connecting to 10.0.0.1:6379")
    error.__context__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (redis.exceptions.AuthenticationError("WRONGPASS user operator"), "Redis refuses the credentials"),
        (redis.exceptions.NoPermissionError("User operator may not"), "the Redis user may not use EVAL"),
        (redis.exceptions.BusyLoadingError("LOADING"), "Redis is still loading its data"),
        (redis.exceptions.ReadOnlyError("READONLY"), "this Redis is a read-only replica"),
        (redis.exceptions.TimeoutError("Timeout reading from 10.0.0.1"), "Redis does not answer"),
        (TimeoutError(), "Redis does not answer"),
        (caused_by(ConnectionRefusedError(111, "refused")), "Redis refuses connections"),
        (caused_by(socket.gaierror(-2, "Name or service not known")), "the host name of Redis cannot be resolved"),
        (caused_by(ssl.SSLError(1, "certificate")), "the TLS connection to Redis failed"),
        (redis.exceptions.ConnectionError("Connection closed by server 17"), "no connection to Redis"),
        (redis.exceptions.ResponseError("MISCONF errors 17"), "Redis refuses the command (MISCONF)"),
        (redis.exceptions.ResponseError("unknown command"), "Redis refuses the command: see its log"),
    ],
)
def test_what_redis_says_becomes_fixed_words_without_names_and_numbers(error: Exception, words: str) -> None:
    said = _in_words(error)
    assert said.startswith(words)
    assert not any(secret in said for secret in ("operator", "10.0.0.1", "17"))


@pytest.mark.parametrize(
    "url",
    [
        "",
        "localhost:6379",
        "http://user:secret@host",
        "redis://",
        "redis://:secret@/0",
        "redis://user:sec#ret@host",
        "redis://user:secret@host:port",
        "redis://user:secret@host:0",
        "redis://user:secret@host/zero",
        "redis://user:secret@host?no_such_option=1",
        "redis://user:secret@host?socket_timeout=soon",
        "redis://[user:secret@host",
    ],
)
def test_a_wrong_url_is_refused_in_one_sentence_that_does_not_quote_it(url: str) -> None:
    settings = StandbySettings(redis_url=SecretStr(url))
    with pytest.raises(ConfigurationError, match=r"standby\.redis_url cannot be used") as refused:
        Standby(settings, SetClock(), "a", WarningLog(SetClock()), Fence())
    assert "secret" not in str(refused.value)
    assert "\n" not in str(refused.value)


def test_without_a_url_there_is_no_standby_to_make() -> None:
    with pytest.raises(ConfigurationError, match="is not set"):
        Standby(StandbySettings(), SetClock(), "a", WarningLog(SetClock()), Fence())


def test_without_the_client_of_redis_a_standby_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "flowcatalyst.control.redis_lock", raising=False)
    monkeypatch.setitem(sys.modules, "redis", None)
    monkeypatch.setitem(sys.modules, "redis.exceptions", None)
    settings = StandbySettings(redis_url=SecretStr("redis://127.0.0.1:9/0"))
    clock = SetClock()
    with pytest.raises(ConfigurationError) as caught:
        Standby(settings, clock, "a", WarningLog(clock), Fence())
    assert str(caught.value).startswith(
        "standby.redis_url needs the package redis: in a checkout make extras, or pip install '.[redis]'"
    )
