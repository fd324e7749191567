"""For applications that receive webhooks: `verify` says whose a request is, `GroupGuard` whether it comes in order.

Knows of FlowCatalyst only what `core` says in the standard library's words: to import this loads no server, no queue
and no package from elsewhere.
"""

from flowcatalyst.core.webhook import InvalidSecretError
from flowcatalyst.receiver.guard import GroupGuard, GuardStore, Known, MemoryGuardStore, Verdict
from flowcatalyst.receiver.sqlite_store import SqliteGuardStore, SqliteTransactionStore
from flowcatalyst.receiver.verify import (
    InvalidHeaderError,
    MissingHeaderError,
    SignatureError,
    TimestampError,
    Webhook,
    WebhookError,
    check_secrets,
    verify,
)

__all__ = [
    "GroupGuard",
    "GuardStore",
    "InvalidHeaderError",
    "InvalidSecretError",
    "Known",
    "MemoryGuardStore",
    "MissingHeaderError",
    "SignatureError",
    "SqliteGuardStore",
    "SqliteTransactionStore",
    "TimestampError",
    "Verdict",
    "Webhook",
    "WebhookError",
    "check_secrets",
    "verify",
]
