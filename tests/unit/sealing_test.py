"""Secrets at rest: who has the key reads them, in their place and unchanged; anybody else is told what to do."""

import base64
import os
import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import SecretStr

from flowcatalyst.app.sealing import sealer_of
from flowcatalyst.control.platform_settings import PlatformSettings
from flowcatalyst.control.settings import Settings
from flowcatalyst.dispatch.sealing import (
    GivenKeys,
    KeyFile,
    NoKeys,
    Sealer,
    SealError,
    new_secret_key,
    read_secret_keys,
)
from flowcatalyst.http.signing import new_secret

OLD, NEW = bytes(range(32)), bytes(range(32, 64))
SECRET = new_secret()


@given(text=st.text(), about=st.text(st.characters(codec="utf-8")))
def test_what_was_sealed_is_opened_as_it_was(text: str, about: str) -> None:
    sealer = Sealer(OLD)
    try:
        text.encode()
    except UnicodeEncodeError:
        return
    assert sealer.open(sealer.seal(text, about), about) == text


def test_a_sealed_secret_shows_nothing_of_it_and_differs_each_time() -> None:
    first, second = (Sealer(OLD).seal(SECRET, "orders") for _ in range(2))
    assert first != second
    for sealed in (first, second):
        content = base64.b64decode(sealed, validate=True)
        assert SECRET.encode() not in content
        assert OLD not in content


def test_a_secret_opens_only_for_what_it_was_sealed_about() -> None:
    sealed = Sealer(OLD).seal(SECRET, "orders")
    with pytest.raises(SealError, match="changed since it was sealed"):
        Sealer(OLD).open(sealed, "invoices")


def test_a_secret_with_any_bit_changed_does_not_open() -> None:
    content = base64.b64decode(Sealer(OLD).seal("s", "orders"))
    for bit in range(len(content) * 8):
        changed = bytearray(content)
        changed[bit // 8] ^= 1 << bit % 8
        with pytest.raises(SealError):
            Sealer(OLD).open(base64.b64encode(changed).decode(), "orders")


@pytest.mark.parametrize("sealed", ["", "AQ==", "no base64", "ü", base64.b64encode(b"\x01" + bytes(20)).decode()])
def test_what_was_never_sealed_is_told_as_damage(sealed: str) -> None:
    with pytest.raises(SealError, match="changed since it was sealed: restore it from a backup, or make a new one"):
        Sealer(OLD).open(sealed, "orders")


def test_a_wrong_key_is_told_from_damage_and_says_what_to_do() -> None:
    with pytest.raises(SealError, match=r"another key than platform\.secret_key has now: add the key that it had"):
        Sealer(NEW).open(Sealer(OLD).seal(SECRET, "orders"), "orders")


def test_a_newer_form_is_not_taken_for_damage() -> None:
    with pytest.raises(SealError, match="newer version"):
        Sealer(OLD).open(base64.b64encode(b"\x02" + bytes(60)).decode(), "orders")


def test_while_the_key_changes_the_newest_seals_and_all_of_them_open() -> None:
    before, both, after = Sealer(OLD), Sealer(GivenKeys([NEW, OLD])), Sealer(NEW)
    old, new = before.seal(SECRET, "orders"), both.seal(SECRET, "orders")
    assert both.open(old, "orders") == both.open(new, "orders") == after.open(new, "orders") == SECRET
    assert [both.key_id_of(one) == both.newest_id() for one in (old, new)] == [False, True]
    with pytest.raises(SealError):
        before.open(new, "orders")


def test_keys_are_read_in_their_order_and_made_so_that_they_can_be_read() -> None:
    texts = [new_secret_key() for _ in range(3)]
    assert len(set(texts)) == 3
    assert read_secret_keys(f" {texts[0]},{texts[1]} ,\n{texts[2]},{texts[0]}\n") == [
        base64.b64decode(text) for text in texts
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [("", "no key"), (" , ", "no key"), ("c2hvcnQ=", "number 1"), (f"{new_secret_key()},ü", "number 2")],
    ids=["empty", "commas", "short", "the second one"],  # keys differ from process to process
)
def test_what_is_no_key_is_refused_without_being_repeated(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said) as caught:
        PlatformSettings(secret_key=SecretStr(text))
    if text.strip(" ,"):
        assert text.split(",")[-1] not in str(caught.value).replace("input_value", "")


def test_without_a_key_nothing_is_sealed_or_opened_and_both_say_what_to_do() -> None:
    with pytest.raises(SealError, match="is not set, so that no secret can be kept: set it to what"):
        Sealer(NoKeys()).seal(SECRET, "orders")
    with pytest.raises(SealError, match="is not set, so that no secret can be read: set it to the key that the other"):
        Sealer(NoKeys()).open(Sealer(OLD).seal(SECRET, "orders"), "orders")


def test_the_key_file_is_made_at_the_first_secret_for_its_owner_alone(tmp_path: Path) -> None:
    file = tmp_path / "secret.key"
    sealer = Sealer(KeyFile(file))
    assert list(tmp_path.iterdir()) == []
    sealed = sealer.seal(SECRET, "orders")
    assert [path.name for path in tmp_path.iterdir()] == ["secret.key"]
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert sealer.open(sealed, "orders") == Sealer(KeyFile(file)).open(sealed, "orders") == SECRET


def test_two_processes_that_make_the_key_file_at_once_have_one_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "secret.key"
    sealed_by_other: list[str] = []
    link = os.link

    def other_is_faster(new: Path, place: Path) -> None:
        monkeypatch.setattr(os, "link", link)
        sealed_by_other.append(Sealer(KeyFile(file)).seal("theirs", "orders"))
        link(new, place)

    monkeypatch.setattr(os, "link", other_is_faster)
    ours = Sealer(KeyFile(file)).seal("ours", "orders")
    assert [Sealer(KeyFile(file)).open(one, "orders") for one in (ours, *sealed_by_other)] == ["ours", "theirs"]
    assert [path.name for path in tmp_path.iterdir()] == ["secret.key"]


def test_a_line_added_to_the_key_file_counts_at_once(tmp_path: Path) -> None:
    file = tmp_path / "secret.key"
    sealer = Sealer(KeyFile(file))
    old = sealer.seal(SECRET, "orders")
    old_key = file.read_text()
    file.write_text(new_secret_key() + "\n" + old_key)
    new = sealer.seal(SECRET, "orders")
    assert sealer.key_id_of(old) != sealer.newest_id()
    assert sealer.open(old, "orders") == sealer.open(new, "orders") == SECRET


def test_a_key_file_that_is_gone_is_not_replaced_to_open_what_it_sealed(tmp_path: Path) -> None:
    file = tmp_path / "secret.key"
    sealer = Sealer(KeyFile(file))
    sealed = sealer.seal(SECRET, "orders")
    file.unlink()
    with pytest.raises(SealError, match=r"secret\.key, the key of all secrets, is gone: put it back, or restore"):
        sealer.open(sealed, "orders")
    assert not file.exists()
    file.write_text(new_secret_key())
    with pytest.raises(SealError, match=r"sealed with a key that .*secret\.key does not have"):
        sealer.open(sealed, "orders")


def test_no_key_file_is_made_beside_secrets_that_another_one_sealed(tmp_path: Path) -> None:
    file = tmp_path / "secret.key"
    sealed: list[str] = []
    sealer = Sealer(KeyFile(file, lambda: bool(sealed)))
    sealed.append(sealer.seal(SECRET, "orders"))
    file.rename(tmp_path / "lost")
    with pytest.raises(SealError, match=r"is gone: put it back, .* if it is lost, write into it what `flowcatalyst"):
        sealer.seal("another", "others")
    assert not file.exists()
    (tmp_path / "lost").rename(file)
    assert sealer.open(sealer.seal("another", "others"), "others") == "another"


def test_a_key_file_that_is_no_text_gets_the_same_sentence_as_one_without_a_key(tmp_path: Path) -> None:
    file = tmp_path / "secret.key"
    file.write_bytes(b"\xff\xfe\x00 \x80")
    with pytest.raises(SealError, match=r"cannot be used: it has as number 1 something that is not the base64") as told:
        Sealer(KeyFile(file)).seal(SECRET, "orders")
    assert "codec" not in str(told.value)


def test_a_sealer_tells_of_keys_that_are_missing_without_opening_anything(tmp_path: Path) -> None:
    old = [Sealer(OLD).seal(SECRET, code) for code in ("orders", "others")]
    assert Sealer(OLD).problem_with([]) == Sealer(OLD).problem_with(old) == ""
    assert "sealed with another key" in Sealer(NEW).problem_with(old)
    assert "is gone: put it back" in Sealer(KeyFile(tmp_path / "secret.key")).problem_with(old)


def test_a_key_file_that_cannot_be_used_says_so(tmp_path: Path) -> None:
    file = tmp_path / "secret.key"
    file.write_text("not a key\n")
    with pytest.raises(SealError, match=r"secret\.key cannot be used: it has as number 1 something"):
        Sealer(KeyFile(file)).seal(SECRET, "orders")
    with pytest.raises(SealError, match=r"cannot be made \(No such file or directory\): make its folder writable, or"):
        Sealer(KeyFile(tmp_path / "nowhere" / "secret.key")).seal(SECRET, "orders")
    file.unlink()
    file.mkdir()
    with pytest.raises(SealError, match=r"cannot be read \(Is a directory\)"):
        Sealer(KeyFile(file)).seal(SECRET, "orders")


def test_the_key_of_the_settings_wins_then_a_file_unless_others_share_the_database(tmp_path: Path) -> None:
    url = SecretStr("postgresql://localhost/jobs")
    key = SecretStr(base64.b64encode(NEW).decode() + "," + base64.b64encode(OLD).decode())
    of_old = Sealer(OLD).seal(SECRET, "orders")
    for platform in (PlatformSettings(secret_key=key), PlatformSettings(secret_key=key, database_url=url)):
        sealer = sealer_of(Settings(data_dir=tmp_path, platform=platform))
        assert sealer.open(of_old, "orders") == SECRET
        assert Sealer(NEW).open(sealer.seal(SECRET, "orders"), "orders") == SECRET
    shared = sealer_of(Settings(data_dir=tmp_path, platform=PlatformSettings(database_url=url)))
    with pytest.raises(SealError, match=r"platform\.secret_key is not set"):
        shared.seal(SECRET, "orders")
    assert list(tmp_path.iterdir()) == []
    sealer_of(Settings(data_dir=tmp_path)).seal(SECRET, "orders")
    assert [path.name for path in tmp_path.iterdir()] == ["secret.key"]
