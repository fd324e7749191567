"""`flowcatalyst publish` with a payload, headers, and into a raw queue."""

import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support.command import TARGET, Command


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    return Command(tmp_path, monkeypatch, capsys)


def test_a_payload_gets_into_the_message_as_it_is(command: Command) -> None:
    command.works("publish", "--target", TARGET, "--payload", '{ "balance":5.0 }', "--header", "X-Tenant: acme")
    command.works("publish", "--target", TARGET, "--payload", "<a/>", "--content-type", "application/xml")
    (command.folder / "p.json").write_bytes('[1, "ü"]'.encode())
    command.works("publish", "--target", TARGET, "--payload-file", "p.json")
    first, second, third = command.pointers()
    assert (bytes(first.payload), first.headers) == (b'{ "balance":5.0 }', {"X-Tenant": "acme"})
    assert (bytes(second.payload), second.content_type) == (b'"<a/>"', "application/xml")
    assert bytes(third.payload) == '[1, "ü"]'.encode()


@pytest.mark.parametrize(
    ("args", "why"),
    [
        (["--payload", "<a/>"], "the payload is not JSON"),
        (["--payload", "1", "--payload-file", "x"], "either --payload or --payload-file"),
        (["--payload", "x", "--content-type", "text"], "contentType is not a media type"),
        (["--content-type", "text/plain"], "contentType is there without a payload"),
        (["--header", "Host: x"], "the header Host is set by the router alone"),
        (["--header", "X-Key"], "a name and a value with a colon"),
        (["--header", "X-A: 1", "--header", "X-A: 2"], "the header X-A is there twice"),
        (["--header", "Authorization: x", "--auth-token", "t"], "Authorization is made of authToken"),
    ],
)
def test_what_cannot_be_sent_is_refused_up_front(command: Command, args: Sequence[str], why: str) -> None:
    said = command.misused("publish", "--target", TARGET, *args)
    assert why in re.sub(r"[\s│]+", " ", said)
    assert not command.file.exists()


def test_a_payload_file_that_cannot_be_read_is_named(command: Command) -> None:
    assert "file nowhere cannot be read" in command.fails(
        "publish", "--target", TARGET, "--payload-file", "nowhere", code=2
    )
    (command.folder / "binary").write_bytes(b"\xff")
    said = command.fails("publish", "--target", TARGET, "--payload-file", "binary", code=2)
    assert "file binary is not UTF-8 text" in said


def test_a_raw_queue_takes_a_payload_as_its_body_and_nothing_else(command: Command) -> None:
    raw = '[[queues]]\nname = "shop"\nuri = "embedded:shop"\nraw = { target = "http://127.0.0.1:9/" }\n'
    (command.folder / "flowcatalyst.toml").write_text(raw)
    command.works("publish", "--queue", "shop", "--payload", "<order/>", "--group", "g")
    [delivery] = command.held("shop")
    assert (delivery.body, delivery.group) == ("<order/>", "g")
    for args in (["--target", TARGET, "--payload", "1"], ["--file", "x"], ["--payload", "1", "--id", "m"], []):
        said = re.sub(r"[\s│]+", " ", command.misused("publish", "--queue", "shop", *args))
        assert "queue shop is raw" in said
