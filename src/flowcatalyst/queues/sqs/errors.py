"""What SQS refuses, and why it cannot be reached, in our words. None of them holds credentials."""

import os
import ssl
from collections.abc import Mapping
from typing import Any, Final

from botocore.exceptions import (  # type: ignore[import-untyped]
    ClientError,
    ConnectionClosedError,
    ConnectTimeoutError,
    ReadTimeoutError,
)

from flowcatalyst.core.errors import QueueUnavailableError
from flowcatalyst.core.message import Settled

_GONE: Final = frozenset({"ReceiptHandleIsInvalid", "MessageNotInflight"})
# How older SQS servers say the same, with a code that means any wrong parameter.
_GONE_IN_WORDS: Final = ("receipt handle has expired", "not available for visibility timeout change")
_MISSING: Final = frozenset({"QueueDoesNotExist", "NonExistentQueue"})
_CREDENTIALS: Final = frozenset(
    {
        "AuthFailure",
        "ExpiredToken",
        "ExpiredTokenException",
        "IncompleteSignature",
        "InvalidAccessKeyId",
        "InvalidClientTokenId",
        "InvalidSecurity",
        "InvalidSignatureException",
        "MissingAuthenticationToken",
        "MissingAuthenticationTokenException",
        "RequestExpired",
        "SignatureDoesNotMatch",
        "UnrecognizedClientException",
    }
)
_DENIED: Final = frozenset({"AccessDenied", "AccessDeniedException", "KmsAccessDenied", "NotAuthorized"})
_THROTTLED: Final = frozenset(
    {
        "KmsThrottled",
        "OverLimit",
        "RequestThrottled",
        "SlowDown",
        "Throttling",
        "ThrottlingException",
        "ThrottledException",
    }
)
# Codes that are about a message, not about the queue or about us.
_MESSAGE: Final = frozenset(
    {
        "BatchRequestTooLong",
        "InvalidAttributeValue",
        "InvalidMessageContents",
        "InvalidParameterValue",
        "MissingParameter",
    }
)
_LONGEST_WORDS: Final = 300


class SqsRefusedError(QueueUnavailableError):
    """SQS answered with an error."""

    def __init__(self, where: str, operation: str, code: str, words: str) -> None:
        super().__init__(_sentence(where, operation, code, words))
        self.code = code
        self.words = words

    @property
    def queue_is_missing(self) -> bool:
        return self.code in _MISSING

    @property
    def credentials_are_bad(self) -> bool:
        return self.code in _CREDENTIALS

    @property
    def is_denied(self) -> bool:
        return self.code in _DENIED


def refused(error: ClientError, where: str) -> SqsRefusedError:
    details = error.response.get("Error", {})
    status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", "?")
    code = _code(details.get("Code")) or f"status {status}"
    return SqsRefusedError(where, error.operation_name, code, _one_line(details.get("Message")))


def blames_the_message(code: str) -> bool:
    return code in _MESSAGE


def settled(failure: Mapping[str, Any]) -> Settled:
    """What the failure of one entry of a batch means."""
    words = str(failure.get("Message", ""))
    if _code(failure.get("Code")) in _GONE or any(known in words for known in _GONE_IN_WORDS):
        return Settled.GONE
    return Settled.FAILED


def failure_in_words(failure: Mapping[str, Any]) -> tuple[str, str]:
    """Its code, and what to tell a person."""
    code = _code(failure.get("Code"))
    return code, f"{code}: {_one_line(failure.get('Message'))}".rstrip(": ")


def reason_of(error: Exception) -> str:
    """Why there was no answer."""
    match error:
        case ConnectTimeoutError():
            return "connecting took too long"
        case ReadTimeoutError():
            return "it does not answer"
        case ConnectionClosedError():
            return "it closed the connection"
    inner = getattr(error, "kwargs", {}).get("error", error)
    cause = getattr(inner, "certificate_error", None) or getattr(inner, "os_error", inner)  # of aiohttp's errors
    if isinstance(cause, ssl.SSLCertVerificationError):
        return f"certificate verify failed: {cause.verify_message}"
    if isinstance(cause, ssl.SSLError):
        return f"TLS failed: {cause.reason}"
    if "Expected HTTP/" in str(cause):
        return "what answers there does not speak HTTP: is it the right port?"
    if isinstance(cause, OSError) and cause.errno is not None:
        return os.strerror(cause.errno) if cause.errno > 0 else str(cause.strerror)
    return _one_line(cause) or "it failed without saying why"


def _sentence(where: str, operation: str, code: str, words: str) -> str:
    if code in _MISSING:
        return f"{where} does not exist: create it, or add ?create=true to its queueUri"
    if code in _CREDENTIALS:  # the server's own words may repeat what we signed
        return f"{where} does not accept our AWS credentials ({code}): check them, and this machine's clock"
    if code in _DENIED:
        return f"{where} does not allow us {operation}: grant sqs:{operation} to the router ({words or code})"
    if code in _THROTTLED:
        return f"{where} throttles us ({code})"
    return f"{where} refused {operation}: {code}: {words}".rstrip(": ")


def _code(code: object) -> str:
    """Servers differ in what they put before it."""
    return str(code or "").rpartition("#")[2].rpartition(".")[2]


def _one_line(words: object) -> str:
    return " ".join(str(words or "").split())[:_LONGEST_WORDS]
