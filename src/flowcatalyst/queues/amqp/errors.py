"""Why a broker cannot be used, in words for the person who can change that. No secret gets into them."""

import socket
import ssl
from typing import Final

from flowcatalyst.queues.amqp.connection import UNAUTHORIZED, AmqpError, AmqpRefusedError

_NOT_FOUND: Final = "amqp:not-found"
_NOT_AMQP: Final = "amqp:connection:framing-error"
_TEXT_LIMIT: Final = 300


def reason(error: AmqpError | OSError, queue: str, *, user: str | None) -> str:
    """Part of a sentence: what is wrong, and what to do about it where that is known."""
    if isinstance(error, AmqpError):
        who = f"the user {user}" if user else "a client without a user name"
        if error.condition == UNAUTHORIZED and isinstance(error, AmqpRefusedError):
            return f"{who} may not use the queue {queue}: allow it at the broker"
        if error.condition == UNAUTHORIZED:
            return f"{who} is refused: check activemq.user and activemq.password"
        if error.condition == _NOT_FOUND:
            return f"there is no queue {queue}: create it at the broker"
        if error.condition == _NOT_AMQP:
            return "what answers there does not speak AMQP 1.0: is it the right port?"
        if error.text.startswith("local-idle-timeout"):
            return "it does not answer any more"
        return error.text[:_TEXT_LIMIT] or error.condition or "the broker gave no reason"
    match error:
        case ssl.SSLCertVerificationError():
            return (
                f"its certificate is not trusted ({error.verify_message}): "
                "name the authority that signed it in activemq.ca_file"
            )
        case ssl.SSLError():
            return f"TLS failed ({error.reason or 'no answer'}): is this the port for amqps://?"
        case TimeoutError():
            return "it does not answer"
        case ConnectionRefusedError():
            return "nothing listens there"
        case socket.gaierror():
            return "the name of the host is unknown"
    return error.strerror or str(error) or "it failed without saying why"
