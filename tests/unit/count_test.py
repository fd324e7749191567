import pytest

from flowcatalyst.core.words import count


@pytest.mark.parametrize(
    ("number", "words", "said"),
    [
        (0, ("message",), "0 messages"),
        (1, ("message",), "1 message"),
        (1, ("copy", "copies"), "1 copy"),
        (2, ("copy", "copies"), "2 copies"),
        (12_345, ("message waits", "messages wait"), "12,345 messages wait"),
    ],
)
def test_one_is_said_as_one_and_many_as_many(number: int, words: tuple[str, ...], said: str) -> None:
    assert count(number, *words) == said
