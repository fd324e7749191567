"""What is signed by Standard Webhooks is what its own library and our receiver kit take, and nothing else."""

import base64
from datetime import UTC, datetime

import pytest
import standardwebhooks
from hypothesis import given
from hypothesis import strategies as st

from flowcatalyst.core.webhook import InvalidSecretError, key_of, secret_of
from flowcatalyst.http.signing import new_secret, sign
from flowcatalyst.receiver import verify
from tests.support.webhooks import ID, OLD_SECRET, SECRET, signed

BODY = b'{"test": 2432232314}'


def test_the_vector_of_the_standard_is_signed_as_it_says() -> None:
    signature = sign("msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, BODY, ["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"])
    assert signature == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


def test_while_secrets_change_each_of_them_signs_in_its_order() -> None:
    both = sign(ID, 1614265330, BODY, [SECRET, OLD_SECRET])
    assert both.split(" ") == [sign(ID, 1614265330, BODY, [secret]) for secret in (SECRET, OLD_SECRET)]


@pytest.mark.parametrize("secret", [SECRET, OLD_SECRET])
def test_the_official_library_takes_what_either_secret_signed(secret: str) -> None:
    now = int(datetime.now(UTC).timestamp())
    headers = signed(BODY, timestamp=now, secrets=[SECRET, OLD_SECRET])
    assert standardwebhooks.Webhook(secret).verify(BODY, headers) == {"test": 2432232314}


@given(body=st.text(), timestamp=st.integers(0, 4_000_000_000))
def test_the_official_library_signs_as_we_do_and_we_take_it(body: str, timestamp: int) -> None:
    theirs = standardwebhooks.Webhook(SECRET).sign(ID, datetime.fromtimestamp(timestamp, UTC), body)
    assert theirs == sign(ID, timestamp, body.encode(), [SECRET])
    headers = {"webhook-id": ID, "webhook-timestamp": str(timestamp), "webhook-signature": theirs}
    assert verify(headers, body.encode(), SECRET, now=timestamp).body == body.encode()


@pytest.mark.parametrize("size", [24, 32, 64])
def test_a_new_secret_stands_for_as_many_random_bytes_as_asked_for(size: int) -> None:
    made = [new_secret(size) for _ in range(10)]
    assert {len(key_of(secret)) for secret in made} == {size}
    assert len(set(made)) == 10
    assert secret_of(key_of(made[0])) == made[0]


@pytest.mark.parametrize(
    ("secret", "sentence"),
    [
        ("", "has to begin with whsec_"),
        (base64.b64encode(bytes(32)).decode(), "has to begin with whsec_"),
        ("whsec_", "24 to 64 bytes, and this one stands for 0"),
        ("whsec_" + base64.b64encode(bytes(23)).decode(), "stands for 23"),
        ("whsec_" + base64.b64encode(bytes(65)).decode(), "stands for 65"),
        ("whsec_" + "!" * 44, "has to be base64"),
        ("whsec_" + "ä" * 44, "has to be base64"),
        ("whsec_" + base64.b64encode(bytes(32)).decode().rstrip("="), "has to be base64"),
        (SECRET + "\n", "has to be base64"),
    ],
)
def test_what_is_no_secret_is_refused_without_being_repeated(secret: str, sentence: str) -> None:
    with pytest.raises(InvalidSecretError, match=sentence) as refused:
        sign(ID, 0, b"", [secret])
    assert len(secret) < 10 or secret[6:] not in str(refused.value)


def test_without_a_secret_nothing_is_signed() -> None:
    with pytest.raises(ValueError, match="no secret"):
        sign(ID, 0, b"", [])


@pytest.mark.parametrize("webhook_id", ["", "a.1614265330", "a b", "a\n", "é", "x" * 257])
def test_an_id_that_would_make_a_signature_ambiguous_is_not_signed(webhook_id: str) -> None:
    with pytest.raises(ValueError, match="full stops"):
        sign(webhook_id, 0, b"", [SECRET])


@pytest.mark.parametrize("size", [0, 23, 65])
def test_no_secret_is_made_that_would_be_refused(size: int) -> None:
    with pytest.raises(ValueError, match="24 to 64"):
        new_secret(size)
