import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowcatalyst.core.errors import InvalidMessageError
from flowcatalyst.core.message import (
    MAX_NAME_CHARS,
    MAX_TARGET_CHARS,
    Delivery,
    DispatchMode,
    MediationType,
    MessagePointer,
    check_pointer,
    encode_pointer,
    named_group,
    parse_pointer,
    pool_code_of,
)
from flowcatalyst.core.receipts import adopt_receipt
from flowcatalyst.queues.intake import outgoing_of
from flowcatalyst.queues.nats.format import group_of
from tests.support.deliveries import delivery

REQUIRED = {"id": "m1", "mediationTarget": "https://example.org/hook"}


def body(**fields: Any) -> str:
    return json.dumps(REQUIRED | fields)


def without(name: str) -> str:
    return json.dumps({key: value for key, value in REQUIRED.items() if key != name})


targets = st.sampled_from(["http://h", "https://example.org/a?b=c", "http://127.0.0.1:8080/x", "http://[::1]:80/"])
visible = st.text(st.characters(codec="ascii", min_codepoint=32, max_codepoint=126))
pointers = st.builds(
    MessagePointer,
    id=st.text(min_size=1, max_size=MAX_NAME_CHARS).filter(lambda text: not text.isspace()),
    mediation_target=targets,
    pool_code=st.text(max_size=MAX_NAME_CHARS),
    auth_token=st.none() | visible,
    mediation_type=st.sampled_from(MediationType),
    message_group_id=st.none() | st.text(max_size=MAX_NAME_CHARS),
    high_priority=st.booleans(),
    dispatch_mode=st.none() | st.sampled_from(DispatchMode),
)


class TestParsing:
    def test_every_field_is_read(self) -> None:
        assert parse_pointer(
            body(
                poolCode="POOL-A",
                authToken="secret token",
                mediationType="HTTP",
                messageGroupId="order-1",
                highPriority=True,
                dispatchMode="NEXT_ON_ERROR",
            )
        ) == MessagePointer(
            id="m1",
            mediation_target="https://example.org/hook",
            pool_code="POOL-A",
            auth_token="secret token",
            mediation_type=MediationType.HTTP,
            message_group_id="order-1",
            high_priority=True,
            dispatch_mode=DispatchMode.NEXT_ON_ERROR,
        )

    def test_all_but_id_and_target_have_defaults(self) -> None:
        pointer = parse_pointer(body())
        assert (pointer.pool_code, pointer.auth_token, pointer.mediation_type) == (None, None, None)
        assert parse_pointer(body(poolCode=None, authToken=None, mediationType=None)) == pointer
        assert (pointer.message_group_id, pointer.high_priority, pointer.dispatch_mode) == (None, False, None)

    def test_unknown_keys_are_ignored(self) -> None:
        assert parse_pointer(body(batchId="b", nested={"id": "other", "list": [1, {}]})) == parse_pointer(body())

    def test_bytes_and_text_are_read_alike(self) -> None:
        assert parse_pointer(body(messageGroupId="größe").encode()) == parse_pointer(body(messageGroupId="größe"))

    @settings(deadline=None)
    @given(pointers)
    def test_encoded_pointer_parses_to_itself(self, pointer: MessagePointer) -> None:
        assert parse_pointer(encode_pointer(pointer)) == pointer
        assert parse_pointer(encode_pointer(pointer).decode()) == pointer

    def test_pointer_is_encoded_with_the_names_of_002_and_without_defaults(self) -> None:
        pointer = MessagePointer(id="m1", mediation_target="http://h", message_group_id="g")
        assert encode_pointer(pointer) == b'{"id":"m1","mediationTarget":"http://h","messageGroupId":"g"}'


class TestOtherProducers:
    """What is clear is read although we would write it otherwise."""

    @pytest.mark.parametrize(
        "field",
        ["poolCode", "authToken", "mediationType", "messageGroupId", "highPriority", "dispatchMode"],
    )
    def test_null_means_that_an_optional_field_is_absent(self, field: str) -> None:
        assert parse_pointer(body(**{field: None})) == parse_pointer(body())

    @pytest.mark.parametrize("number", [0, 42, -7, 2**63, 10**29])
    def test_a_whole_number_as_id_or_group_is_its_digits(self, number: int) -> None:
        pointer = parse_pointer(body(id=number, messageGroupId=number))
        assert (pointer.id, pointer.message_group_id) == (str(number), str(number))

    @pytest.mark.parametrize("mode", ["next_on_error", "Next_On_Error"])
    def test_enums_are_read_in_any_case(self, mode: str) -> None:
        pointer = parse_pointer(body(dispatchMode=mode, mediationType="http"))
        assert (pointer.dispatch_mode, pointer.mediation_type) == (DispatchMode.NEXT_ON_ERROR, MediationType.HTTP)

    def test_a_byte_order_mark_is_no_part_of_the_body(self) -> None:
        marked = "\ufeff" + body(poolCode="P")
        assert parse_pointer(marked) == parse_pointer(marked.encode()) == parse_pointer(body(poolCode="P"))
        assert pool_code_of(marked) == pool_code_of(marked.encode()) == "P"

    def test_a_space_in_a_url_is_percent_encoded(self) -> None:
        pointer = parse_pointer(body(mediationTarget="https://example.org/a b?c=d e"))
        assert pointer.mediation_target == "https://example.org/a%20b?c=d%20e"

    def test_all_of_it_at_once(self) -> None:
        fields = {"id": 7, "mediationTarget": "http://h/a b", "highPriority": None, "dispatchMode": "immediate"}
        assert parse_pointer("\ufeff" + json.dumps(fields)) == MessagePointer(
            id="7", mediation_target="http://h/a%20b", dispatch_mode=DispatchMode.IMMEDIATE
        )

    def test_the_reason_names_what_is_not_clear_and_not_what_is(self) -> None:
        with pytest.raises(InvalidMessageError) as refusal:
            parse_pointer("\ufeff" + body(id=7, highPriority="yes", mediationType="http"))
        assert str(refusal.value) == "body is not a message pointer: `highPriority` must be true or false, not text"


class TestRefusal:
    @pytest.mark.parametrize(
        "text",
        ["", " ", "{", "[]", "null", '"m1"', "not json", body() + "x", body()[:-1], b"\xff\xfe", b"\xef\xbb\xbf{}"],
    )
    def test_body_that_is_not_a_json_object_is_refused(self, text: str | bytes) -> None:
        with pytest.raises(InvalidMessageError, match="body is not a message pointer"):
            parse_pointer(text)

    @pytest.mark.parametrize("name", ["id", "mediationTarget"])
    def test_missing_field_is_refused_by_name(self, name: str) -> None:
        with pytest.raises(InvalidMessageError, match=f"`{name}` is missing"):
            parse_pointer(without(name))

    @pytest.mark.parametrize(
        ("field", "value"),
        [
            ("id", 1.5),
            ("id", True),
            ("id", None),
            ("mediationTarget", None),
            ("mediationTarget", ["http://h"]),
            ("highPriority", "true"),
            ("dispatchMode", "SOMETIMES"),
            ("dispatchMode", "next on error"),
            ("mediationType", "FAX"),
            ("authToken", 5),
            ("messageGroupId", {}),
        ],
    )
    def test_value_of_the_wrong_kind_is_refused_with_its_place(self, field: str, value: object) -> None:
        with pytest.raises(InvalidMessageError, match=f"`{field}` must be "):
            parse_pointer(body(**{field: value}))

    @pytest.mark.parametrize("field", ["id", "poolCode", "messageGroupId"])
    def test_name_that_is_too_long_is_refused_and_not_repeated(self, field: str) -> None:
        assert parse_pointer(body(**{field: "ä" * MAX_NAME_CHARS}))
        with pytest.raises(InvalidMessageError, match=f"^{field} has 257 characters, more than the 256 allowed$"):
            parse_pointer(body(**{field: "ä" * (MAX_NAME_CHARS + 1)}))

    def test_target_that_is_too_long_is_refused(self) -> None:
        target = "http://h/".ljust(MAX_TARGET_CHARS, "x")
        assert parse_pointer(body(mediationTarget=target)).mediation_target == target
        with pytest.raises(InvalidMessageError, match=r"^mediationTarget has 8193 characters, more than the 8192"):
            parse_pointer(body(mediationTarget=f"{target}x"))

    @pytest.mark.parametrize("message_id", ["", " ", "\t\n", "\u3000"])
    def test_blank_id_is_refused(self, message_id: str) -> None:
        with pytest.raises(InvalidMessageError, match="id is empty"):
            parse_pointer(body(id=message_id))

    @pytest.mark.parametrize(
        ("target", "reason"),
        [
            ("", "mediationTarget is empty"),
            ("ftp://example.org/", "scheme 'ftp'"),
            ("file:///etc/passwd", "scheme 'file'"),
            ("javascript:alert(1)", "scheme 'javascript'"),
            ("example.org/hook", "target has no scheme"),
            ("//example.org/hook", "target has no scheme"),
            ("/hook", "target has no scheme"),
            ("http://", "is not a host name"),
            ("http:///hook", "is not a host name"),
            ("http://:80/", "is not a host name"),
            ("http://example.org:0/", "has port 0"),
            ("http://example.org:65536/", "not a URL"),
            ("http://example.org:port/", "not a URL"),
            ("http://[::1/", "not a URL"),
            ("http://user:pass@example.org/", "carries credentials"),
            ("http://user@example.org/", "carries credentials"),
            ("http://@example.org/", "carries credentials"),
            ("http://exam ple.org/", "is not a host name"),
            ("http://example.org/a\tb c", "percent-encode"),
            (" http://example.org/", "percent-encode"),
            ("http://example.org/\r\nX-Evil: 1", "percent-encode"),
            ("http://example.org/\x00", "percent-encode"),
            ("http://exämple.org/", "percent-encode"),
        ],
    )
    def test_target_that_cannot_be_called_is_refused_with_the_reason(self, target: str, reason: str) -> None:
        for _ in range(2):  # a target that was refused once is not remembered as good
            with pytest.raises(InvalidMessageError, match=reason):
                parse_pointer(body(mediationTarget=target))

    @pytest.mark.parametrize("token", ["a\r\nX-Evil: 1", "a\nb", "a\x00", "a\x7f", "tökén", "\u2028"])
    def test_token_that_cannot_stand_in_a_header_is_refused_and_not_repeated(self, token: str) -> None:
        with pytest.raises(InvalidMessageError, match="authToken") as refusal:
            parse_pointer(body(authToken=token))
        assert token not in str(refusal.value)

    @pytest.mark.parametrize("token", [None, "", "abc", "eyJ.hb-G_c~+/=="])
    def test_token_that_can_stand_in_a_header_is_accepted(self, token: str | None) -> None:
        assert parse_pointer(body(authToken=token)).auth_token == token

    def test_targets_are_still_checked_after_more_good_ones_than_are_remembered(self) -> None:
        for n in range(5000):
            check_pointer(MessagePointer(id="m", mediation_target=f"http://h/{n}"))
        with pytest.raises(InvalidMessageError):
            check_pointer(MessagePointer(id="m", mediation_target="gopher://h/"))

    def test_deeply_nested_body_is_refused_like_any_other_bad_body(self) -> None:
        nested = "[" * 20_000 + "]" * 20_000
        with pytest.raises(InvalidMessageError):
            parse_pointer(f'{{"id": "m1", "mediationTarget": "http://h", "extra": {nested}}}')

    def test_text_that_is_no_unicode_is_refused_like_any_other_bad_body(self) -> None:
        with pytest.raises(InvalidMessageError):
            parse_pointer('{"id": "\ud800", "mediationTarget": "http://h"}')

    @settings(deadline=None)
    @given(st.binary() | st.text() | pointers.map(encode_pointer).flatmap(lambda good: st.just(good[: len(good) // 2])))
    def test_whatever_a_queue_holds_is_a_pointer_or_a_refusal(self, anything: str | bytes) -> None:
        with suppress(InvalidMessageError):
            assert parse_pointer(anything).id


class TestDelivery:
    @pytest.mark.parametrize(
        ("by_queue", "by_pointer", "named"),
        [("q", "p", "q"), (None, "p", "p"), ("", "p", "p"), (" ", "p", "__DEFAULT__"), (None, None, "__DEFAULT__")],
    )
    def test_queue_names_the_group_before_the_pointer_does(
        self, by_queue: str | None, by_pointer: str | None, named: str
    ) -> None:
        message = delivery("m1", group=by_pointer)
        message.group = by_queue
        assert named_group(message) == named

    @pytest.mark.parametrize(
        ("mode", "ordered", "blocks"),
        [
            (None, True, True),
            (DispatchMode.BLOCK_ON_ERROR, True, True),
            (DispatchMode.NEXT_ON_ERROR, True, False),
            (DispatchMode.IMMEDIATE, False, False),
        ],
    )
    def test_mode_says_whether_a_message_is_ordered_and_whether_it_blocks(
        self, mode: DispatchMode | None, ordered: bool, blocks: bool
    ) -> None:
        message = delivery("m1", mode=mode)
        assert (message.ordered, message.blocks_group) == (ordered, blocks)

    def test_two_deliveries_of_one_message_are_different_things(self) -> None:
        assert len({delivery("m1"), delivery("m1")}) == 2


@pytest.mark.parametrize("named", ['{"messageGroupId": 7}', '\ufeff{"messageGroupId": "7"}', '{"messageGroupId": "7"}'])
def test_a_stream_with_groups_by_subject_sees_the_group_of_a_body_however_it_is_written(named: str) -> None:
    assert group_of(None, "orders.x", named.encode(), None, 2) is None
    assert group_of(None, "orders.x", b'{"messageGroupId": null}', None, 2) == "x"


def test_a_stream_may_be_grouped_by_whole_subjects() -> None:
    assert group_of(None, "orders.eu.new", b"<xml/>", None, 0) == "orders.eu.new"
    assert group_of({"FlowCatalyst-Group": "g"}, "orders.eu.new", b"", None, 0) == "g"


def test_a_nul_in_a_name_is_refused_where_it_is_published_and_read_where_a_queue_brings_it() -> None:
    assert parse_pointer(body(messageGroupId="a\0b")).message_group_id == "a\0b"
    with pytest.raises(InvalidMessageError, match=r"^messageGroupId has a NUL character"):
        outgoing_of(parse_pointer(body(messageGroupId="a\0b")), None)


class PlainStamp:
    """Of one lease."""

    def lines(self, delivery: Delivery, body: bytes, wall: float) -> str:
        return ""

    def delivered(self, delivery: Delivery) -> None: ...


@pytest.mark.parametrize("tries", [0, 1])
def test_a_message_that_is_shown_again_has_the_position_of_its_newest_lease_unless_a_request_told_another(
    tries: int,
) -> None:
    owned, again = delivery("a"), delivery("a")
    owned.position, owned.stamp, owned.tries = 4, PlainStamp(), tries
    again.position, again.stamp = 7, PlainStamp()
    newest = again if tries == 0 else owned
    expected = newest.position, newest.stamp
    adopt_receipt(owned, again)
    assert (owned.position, owned.stamp) == expected
