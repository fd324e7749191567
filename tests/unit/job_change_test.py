"""What may be changed about a job is checked as if it were new."""

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from flowcatalyst.dispatch.change import JobChange, change_of
from flowcatalyst.dispatch.job import InvalidJobError
from flowcatalyst.dispatch.store.contract import Change
from tests.unit.job_waiting_test import state

JOB = state().job


def asked(**more: Any) -> JobChange:
    return msgspec.json.decode(msgspec.json.encode(more), type=JobChange)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({}, "nothing is to be changed"),
        ({"mode": None, "payload": None}, "nothing is to be changed"),
        ({"targetUrl": "ftp://x/"}, "targetUrl cannot be called"),
        ({"headers": {"X-A": "b\r\nEvil: yes"}}, "X-A may have printable"),
        ({"headers": {"Host": "x"}}, "set by the router alone"),
        ({"payload": "x" * 300_000}, "payload has 300002 bytes"),
        ({"payload": 1, "contentType": "no type"}, "contentType is not a media type"),
        ({"contentType": "text/plain"}, "contentType is there without a payload"),
    ],
)
def test_a_change_that_no_job_could_be_sent_with_is_refused(change: dict[str, Any], words: str) -> None:
    for job in (JOB, None):
        with pytest.raises(InvalidJobError, match=words):
            change_of(asked(**change), job)


def test_a_job_without_a_group_cannot_be_ordered() -> None:
    with pytest.raises(InvalidJobError, match="has no messageGroup"):
        change_of(asked(mode="BLOCK_ON_ERROR"), replace(JOB, group=None))


def test_a_payload_keeps_the_content_type_of_its_job() -> None:
    xml = replace(JOB, content_type="application/xml", payload=b"<a/>")
    assert change_of(asked(payload="<b/>"), xml) == Change(payload=b"<b/>", content_type="application/xml")
    assert change_of(asked(payload="<b/>")) == Change(payload=b'"<b/>"', content_type="application/json")


def test_a_content_type_alone_is_for_the_payload_that_is_there() -> None:
    kept = replace(JOB, payload=b"<a/>")
    assert change_of(asked(contentType="text/xml"), kept) == Change(content_type="text/xml")


def test_empty_headers_take_them_all_away() -> None:
    assert change_of(asked(headers={}), JOB) == Change(headers=())
