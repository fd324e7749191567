"""Signed requests, as a sender makes them."""

from collections.abc import Sequence
from urllib.parse import quote

from flowcatalyst.http.signing import sign

SECRET = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD"
OLD_SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
ID = "019a94c2-7f10-7000-8a3e-5d6c1b2a3f40"
NOW = 1_763_000_000


def signed(
    body: bytes = b"{}",
    *,
    webhook_id: str = ID,
    timestamp: int = NOW,
    secrets: Sequence[str] = (SECRET,),
    position: tuple[str, int, int] | None = None,
) -> dict[str, str]:
    """The headers of a webhook; `position` is its group, its place there, and what was delivered before."""
    headers = {
        "webhook-id": webhook_id,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": sign(webhook_id, timestamp, body, secrets),
        "X-FlowCatalyst-Attempt": "1",
    }
    if position is not None:
        group, seq, prev = position
        headers["X-FlowCatalyst-Group"] = quote(group, safe=":-")
        headers |= {"X-FlowCatalyst-Group-Seq": str(seq), "X-FlowCatalyst-Group-Prev": str(prev)}
    return headers
