"""Tokens of jobs that are out: for one job and one handing over, and nobody else can make one."""

import base64
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowcatalyst.core.message import MessagePointer, check_pointer
from flowcatalyst.dispatch.sealing import GivenKeys, NoKeys, SealError
from flowcatalyst.dispatch.store.platform_contract import Ticket
from flowcatalyst.dispatch.tokens import MAX_TOKEN_CHARS, InvalidTokenError, Tokens

KEY: Final = bytes(range(32))
OTHER: Final = bytes(range(1, 33))
TICKET: Final = Ticket("job-1", 7, 99 << 41 | 12, 3)


def token_of(ticket: Ticket = TICKET, key: bytes = KEY) -> str:
    (token,) = Tokens(GivenKeys([key])).make([ticket], 1000.5)
    return token


def test_a_token_says_which_handing_over_of_which_job_it_is_for_and_until_when() -> None:
    assert Tokens(GivenKeys([KEY])).read(token_of()) == (TICKET, 1000.5)


def test_a_token_can_be_sent_as_the_credentials_of_a_message() -> None:
    check_pointer(MessagePointer("1", "http://localhost/", auth_token=token_of(Ticket("ä" * 256, 2**62, 2**62, 2**62))))
    assert len(token_of(Ticket("ä" * 256, 2**62, 2**62, 2**62))) < MAX_TOKEN_CHARS


def test_tokens_outlive_a_rotation_of_the_key_as_long_as_the_old_one_is_kept() -> None:
    assert Tokens(GivenKeys([OTHER, KEY])).read(token_of()).ticket == TICKET
    with pytest.raises(InvalidTokenError):
        Tokens(GivenKeys([OTHER])).read(token_of())
    (token,) = Tokens(GivenKeys([OTHER, KEY])).make([TICKET], 1.0)
    assert Tokens(GivenKeys([OTHER])).read(token).ticket == TICKET  # the newest makes them


def test_without_a_key_no_token_is_made_and_none_is_good() -> None:
    with pytest.raises(SealError):
        Tokens(NoKeys()).make([TICKET], 1.0)
    with pytest.raises(InvalidTokenError):
        Tokens(NoKeys()).read(token_of())


def test_no_bit_of_a_token_can_be_changed() -> None:
    tokens, token = Tokens(GivenKeys([KEY])), token_of()
    content = base64.urlsafe_b64decode(token.removeprefix("fcj1."))
    for bit in range(len(content) * 8):
        changed = bytearray(content)
        changed[bit // 8] ^= 1 << bit % 8
        with pytest.raises(InvalidTokenError):
            tokens.read("fcj1." + base64.urlsafe_b64encode(changed).decode())


@given(st.text())
def test_whatever_is_not_a_token_is_refused_as_such(text: str) -> None:
    tokens = Tokens(GivenKeys([KEY]))
    for one in (text, f"fcj1.{text}", token_of() + text if text else "", token_of()[: -1 - len(text)]):
        with pytest.raises(InvalidTokenError):
            tokens.read(one)
