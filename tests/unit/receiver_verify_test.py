"""`flowcatalyst.receiver.verify`: whose a request is, from whatever framework, however hostile its headers."""

import hmac
import subprocess
import sys
from collections.abc import Callable
from email.message import Message
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from starlette.datastructures import Headers as StarletteHeaders
from werkzeug.datastructures import Headers as WerkzeugHeaders

from flowcatalyst.receiver import (
    InvalidHeaderError,
    InvalidSecretError,
    MissingHeaderError,
    SignatureError,
    TimestampError,
    Webhook,
    WebhookError,
    verify,
)
from tests.support.webhooks import ID, NOW, OLD_SECRET, SECRET, signed

BODY = b'{"total": 12}'
FOREVER = float("inf")


def message_of(headers: dict[str, str]) -> Message:
    message = Message()
    for name, value in headers.items():
        message[name] = value
    return message


FORMS: dict[str, Callable[[dict[str, str]], Any]] = {
    "mapping": dict,
    "upper case": lambda headers: {name.upper(): value for name, value in headers.items()},
    "pairs": lambda headers: list(headers.items()),
    "an iterator of pairs": lambda headers: iter(headers.items()),
    "bytes": lambda headers: [(name.lower().encode(), value.encode()) for name, value in headers.items()],
    "mapping of bytes": lambda headers: {name.encode(): value.encode() for name, value in headers.items()},
    "Starlette": StarletteHeaders,
    "Werkzeug": WerkzeugHeaders,
    "http.server": message_of,
}


@pytest.mark.parametrize("form", FORMS)
def test_headers_of_any_framework_will_do(form: str) -> None:
    headers = signed(BODY, position=("order:7", 3, 2)) | {"Accept": "é", "Cookie": "a" * 100_000}
    if form in ("bytes", "mapping of bytes", "Starlette"):
        headers["Accept"] = "*/*"
    webhook = verify(FORMS[form](headers), BODY, SECRET, now=NOW)
    assert webhook == Webhook(ID, NOW, BODY, 1, "order:7", 3, 2)
    assert webhook.json() == {"total": 12}


def test_what_belongs_to_no_order_has_no_position() -> None:
    webhook = verify(signed(BODY), BODY, SECRET, now=NOW)
    assert (webhook.group, webhook.group_seq, webhook.group_prev) == (None, None, None)
    grouped = verify(signed(BODY) | {"X-FlowCatalyst-Group": "order:7"}, BODY, SECRET, now=NOW)
    assert (grouped.group, grouped.group_seq, grouped.group_prev) == ("order:7", None, None)


@pytest.mark.parametrize("group", ["Bestellung 7/ä", "100%", "a+b", "日本"])
def test_a_group_is_what_its_sender_calls_it(group: str) -> None:
    assert verify(signed(BODY, position=(group, 1, 0)), BODY, SECRET, now=NOW).group == group


@pytest.mark.parametrize("known", [[SECRET], [OLD_SECRET], [SECRET, OLD_SECRET], (OLD_SECRET, SECRET)])
@pytest.mark.parametrize("signing", [[SECRET, OLD_SECRET], [OLD_SECRET, SECRET]])
def test_while_secrets_change_either_side_may_know_both(known: list[str], signing: list[str]) -> None:
    assert verify(signed(BODY, secrets=signing), BODY, known, now=NOW).id == ID


def test_another_secret_is_refused() -> None:
    with pytest.raises(SignatureError, match="no signature of the webhook is that of a secret of ours"):
        verify(signed(BODY, secrets=[OLD_SECRET]), BODY, SECRET, now=NOW)


@pytest.mark.parametrize("age_s", [300, -300, 0])
def test_within_the_tolerance_it_is_taken(age_s: int) -> None:
    assert verify(signed(BODY), BODY, SECRET, now=NOW + age_s).timestamp == NOW


@pytest.mark.parametrize(
    ("age_s", "sentence"),
    [(301, "signed 301 s ago, which is more than the 300 s"), (-301, "signed 301 s in the future")],
)
def test_what_is_too_old_or_too_new_is_refused(age_s: int, sentence: str) -> None:
    with pytest.raises(TimestampError, match=sentence):
        verify(signed(BODY), BODY, SECRET, now=NOW + age_s)
    verify(signed(BODY), BODY, SECRET, tolerance_s=301, now=NOW + age_s)


def test_without_a_time_given_it_is_now() -> None:
    with pytest.raises(TimestampError):
        verify(signed(BODY, timestamp=0), BODY, SECRET)


@given(body=st.binary(max_size=40), where=st.integers(min_value=0), change=st.integers(1, 255))
def test_any_changed_byte_of_the_body_is_refused(body: bytes, where: int, change: int) -> None:
    assume(body)
    where %= len(body)
    changed = body[:where] + bytes([body[where] ^ change]) + body[where + 1 :]
    with pytest.raises(SignatureError):
        verify(signed(body), changed, SECRET, now=NOW)


@given(body=st.binary(max_size=10), more=st.binary(min_size=1, max_size=5))
def test_a_longer_or_shorter_body_is_refused(body: bytes, more: bytes) -> None:
    for sent, came in ((body, body + more), (body + more, body), (body, more + body)):
        assume(sent != came)
        with pytest.raises(SignatureError):
            verify(signed(sent), came, SECRET, now=NOW)


@pytest.mark.parametrize("name", ["webhook-id", "webhook-timestamp", "webhook-signature"])
@given(data=st.data())
def test_any_changed_byte_of_id_timestamp_or_signature_is_refused(name: str, data: st.DataObject) -> None:
    headers = signed(BODY)
    right = headers[name]
    where = data.draw(st.integers(0, len(right) - 1))
    byte = data.draw(st.integers(0, 255).map(chr).filter(lambda one: one != right[where]))
    headers[name] = right[:where] + byte + right[where + 1 :]
    with pytest.raises(WebhookError):
        verify(headers, BODY, SECRET, tolerance_s=FOREVER, now=NOW)


@given(data=st.data())
def test_a_byte_more_or_less_of_them_is_refused(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(["webhook-id", "webhook-timestamp", "webhook-signature"]))
    headers = signed(BODY)
    right = headers[name]
    where = data.draw(st.integers(0, len(right) - 1))
    more = data.draw(st.integers(0, 255).map(chr))
    assume(not (name == "webhook-signature" and more == " " and where == 0))  # an empty signature before the right one
    shorter, longer = right[:where] + right[where + 1 :], right[:where] + more + right[where:]
    headers[name] = data.draw(st.sampled_from([shorter, longer]))
    assume(headers[name] != right)
    with pytest.raises(WebhookError):
        verify(headers, BODY, SECRET, tolerance_s=FOREVER, now=NOW)


def test_no_border_between_id_timestamp_and_body_can_be_moved() -> None:
    """The same bytes are signed, read otherwise."""
    headers = signed(b"7.x", webhook_id="a", timestamp=5)
    headers |= {"webhook-id": "a.5", "webhook-timestamp": "7"}
    with pytest.raises(InvalidHeaderError, match="webhook-id is no id"):
        verify(headers, b"x", SECRET, now=7)


@pytest.mark.parametrize("name", ["webhook-id", "webhook-timestamp", "webhook-signature"])
@pytest.mark.parametrize("value", [None, ""])
def test_a_missing_header_is_named(name: str, value: str | None) -> None:
    headers = {**signed(BODY), name: value or ""}
    if value is None:
        del headers[name]
    with pytest.raises(MissingHeaderError, match=f"no header {name}"):
        verify(headers, BODY, SECRET, now=NOW)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"webhook-id": "é"}, "webhook-id is not ASCII"),
        ({"webhook-signature": "v1,\u2028"}, "webhook-signature is not ASCII"),
        ({"webhook-signature": "v1," + "A" * 9000}, "at most 8192 characters"),
        ({"webhook-id": "a" * 257}, "webhook-id is no id"),
        ({"webhook-id": "a\tb"}, "webhook-id is no id"),
        ({"webhook-timestamp": "1e9"}, "webhook-timestamp is no whole number"),
        ({"webhook-timestamp": "-5"}, "no whole number"),
        ({"webhook-timestamp": "nan"}, "no whole number"),
        ({"webhook-timestamp": f"0{NOW}"}, "no whole number"),
        ({"webhook-timestamp": f"{NOW}\n"}, "no whole number"),
        ({"webhook-timestamp": "9" * 5000}, "no whole number"),
        ({"X-FlowCatalyst-Attempt": "first"}, "x-flowcatalyst-attempt is no whole number"),
        ({"X-FlowCatalyst-Group-Seq": "-1"}, "group-seq is no whole number"),
        ({"X-FlowCatalyst-Group-Seq": "0"}, "positions in a group begin with 1"),
        ({"X-FlowCatalyst-Group-Prev": "٣"}, "group-prev is not ASCII"),
        ({"X-FlowCatalyst-Group-Prev": "9" * 19}, "at most 18 digits"),
    ],
)
def test_a_hostile_header_is_refused_with_a_sentence(changes: dict[str, str], sentence: str) -> None:
    headers = signed(BODY, position=("g", 2, 1)) | changes
    with pytest.raises(InvalidHeaderError, match=sentence):
        verify(headers, BODY, SECRET, now=NOW)


@pytest.mark.parametrize("name", ["Webhook-Id", "WEBHOOK-SIGNATURE", "x-flowcatalyst-group-seq"])
def test_a_header_that_is_there_twice_is_refused(name: str) -> None:
    headers = [*signed(BODY, position=("g", 2, 1)).items(), (name, "1")]
    with pytest.raises(InvalidHeaderError, match="there twice"):
        verify(headers, BODY, SECRET, now=NOW)


def test_a_value_that_is_no_text_is_refused() -> None:
    with pytest.raises(InvalidHeaderError, match="webhook-id is not ASCII text"):
        verify({**signed(BODY), "webhook-id": [ID]}, BODY, SECRET, now=NOW)


@pytest.mark.parametrize("missing", ["", "-Seq", "-Prev"])
def test_half_a_position_is_refused(missing: str) -> None:
    headers = signed(BODY, position=("g", 2, 1))
    del headers[f"X-FlowCatalyst-Group{missing}"]
    with pytest.raises(MissingHeaderError, match="come together"):
        verify(headers, BODY, SECRET, now=NOW)


@pytest.mark.parametrize(
    "signature",
    [
        "v1a,{0}",  # Ed25519, of which we have no key
        "v2,{0}",
        "{0}",
        "v1,",
        "v1",
        ",",
        " ",
        "v1,{0}x",
        "v1,{0},{0}",
        "V1,{0}",
        "v1,{0}\tv1,{0}",
        "v1,%",
    ],
)
def test_other_versions_and_other_forms_are_no_signature(signature: str) -> None:
    headers = signed(BODY)
    right = headers["webhook-signature"].removeprefix("v1,")
    with pytest.raises(SignatureError):
        verify(headers | {"webhook-signature": signature.format(right)}, BODY, SECRET, now=NOW)


def test_a_right_signature_among_many_others_is_found() -> None:
    headers = signed(BODY)
    others = " ".join([f"v1a,{n}" for n in range(500)] + ["v1,AAAA", "", "nonsense"])
    headers["webhook-signature"] = f"{others} {headers['webhook-signature']} v2,x"
    assert verify(headers, BODY, SECRET, now=NOW).id == ID


def test_every_signature_is_compared_in_constant_time_whichever_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[bytes] = []

    def compare(given: bytes, own: bytes) -> bool:
        compared.append(given)
        return real(given, own)

    real = hmac.compare_digest
    monkeypatch.setattr(hmac, "compare_digest", compare)
    headers = signed(BODY, secrets=[SECRET, OLD_SECRET])
    headers["webhook-signature"] += " v1,AAAA"
    verify(headers, BODY, [SECRET, OLD_SECRET], now=NOW)
    assert len(compared) == 6  # three signatures, two secrets


def test_an_unpadded_or_otherwise_encoded_signature_is_another_one() -> None:
    """Base64 has several texts for the same bytes; only the one that is sent counts."""
    headers = signed(BODY)
    right = headers["webhook-signature"]
    last = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/".index(right[-2])
    twin = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"[last ^ 1]
    for other in (right.rstrip("="), right[:-2] + twin + "="):
        with pytest.raises(SignatureError):
            verify(headers | {"webhook-signature": other}, BODY, SECRET, now=NOW)


@pytest.mark.parametrize("secrets", ["", "secret", [], [SECRET, "whsec_"]])
def test_wrong_secrets_are_no_fault_of_the_request(secrets: Any) -> None:
    with pytest.raises(InvalidSecretError) as refused:
        verify(signed(BODY), BODY, secrets, now=NOW)
    assert not isinstance(refused.value, WebhookError)


def test_a_body_that_is_not_bytes_is_a_mistake_of_the_caller() -> None:
    with pytest.raises(TypeError, match="as they came"):
        verify(signed(BODY), {"total": 12}, SECRET, now=NOW)  # type: ignore[arg-type]


def test_no_part_of_the_server_and_no_other_package_is_loaded_with_the_kits_for_applications() -> None:
    code = (
        "import sys; import flowcatalyst.receiver, flowcatalyst.client; "
        "print(*sorted(name for name in sys.modules if name.partition('.')[0] not in sys.stdlib_module_names))"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", f"import sys; sys.path[:0] = {[p for p in sys.path if p]}; {code}"],
        capture_output=True,
        text=True,
    )
    rooms = {".".join(name.split(".")[:2]) for name in done.stdout.split() if name != "__main__"}
    assert rooms == {
        "flowcatalyst",
        "flowcatalyst.client",
        "flowcatalyst.core",
        "flowcatalyst.receiver",
    }, done.stderr
