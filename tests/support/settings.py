"""How wrong settings are refused."""

import pytest

from flowcatalyst.control.settings import load_settings
from flowcatalyst.core.errors import ConfigurationError


def refusal() -> str:
    """What loading says when it fails: one line, and nothing behind it that would show values."""
    with pytest.raises(ConfigurationError) as caught:
        load_settings()
    assert caught.value.__context__ is None or caught.value.__suppress_context__
    assert "\n" not in str(caught.value)
    return str(caught.value)
