"""Errors that nobody expected, as people are told of them."""

import pytest

from flowcatalyst.core.errors import ConfigurationError, plain

INSIDE = "an error inside FlowCatalyst; its log says more"


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ConfigurationError("set another port"), "set another port"),
        (OSError(28, "No space left on device"), "No space left on device"),
        (ConnectionRefusedError(111, "Connection refused"), "Connection refused"),
        (TimeoutError(), "it took too long"),
        (MemoryError(), "this machine has no memory left"),
        (KeyError("inner"), INSIDE),
        (ValueError("inner"), INSIDE),
    ],
)
def test_people_are_told_a_sentence_and_no_name_of_an_exception(error: Exception, said: str) -> None:
    assert plain(error) == said
