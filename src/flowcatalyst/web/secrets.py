"""Keeps tokens out of what is shown."""

import re
from typing import Any, Final

import msgspec

MASK: Final = "***"
# Also a token whose end is missing, since what cannot be parsed may have been cut off.
_TOKEN_IN_TEXT: Final = re.compile(r'("authToken"\s*:\s*)("(?:[^"\\]|\\.)*"?|[^",}\s]+)', re.IGNORECASE | re.DOTALL)


def mask_body(body: str) -> str:
    """A message body that is no valid pointer, as it is but for its tokens."""
    try:
        content = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return _TOKEN_IN_TEXT.sub(rf'\1"{MASK}"', body)
    return msgspec.json.encode(_masked(content)).decode()


def mask_token(text: str, token: str | None) -> str:
    """A text in which an endpoint may have repeated the token it got."""
    return text.replace(token, MASK) if token else text


def _masked(content: Any) -> Any:
    if isinstance(content, list):
        return [_masked(one) for one in content]
    if isinstance(content, dict):
        return {key: MASK if key.lower() == "authtoken" else _masked(one) for key, one in content.items()}
    return content
