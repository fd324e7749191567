"""Answers in the form of the API, for what takes long to bring about on a router."""

from typing import Any

HEAD = {"id": "order-7", "brokerId": "b7", "where": "ON_HOLD", "failures": 3, "endpoint": "http://127.0.0.1:9/hook"}
LAST_ANSWER = {"status": 503, "detail": "HTTP 503", "excerpt": "down for a while", "agoMs": 4200}


def group(name: str, **more: Any) -> dict[str, Any]:
    return {
        "group": name,
        "pool": "DEFAULT-POOL",
        "queue": "default",
        "state": "BLOCKED",
        "blockedForMs": 754_000,
        "head": HEAD,
        "lastAnswer": LAST_ANSWER,
        "nextAttemptInMs": 25_800,
        "waitingBehind": 18,
        "waitingBehindExact": False,
        "waitsFor": "the next attempt of its head",
        "heldBy": None,
        "heldForMs": None,
        **more,
    }


def endpoint(url: str, **more: Any) -> dict[str, Any]:
    return {
        "endpoint": url,
        "state": "CLOSED",
        "pausedBy": None,
        "pausedForMs": None,
        "inFlight": 7,
        "slots": 10,
        "pools": ["DEFAULT-POOL"],
        "waiting": 4,
        "delivered": 1200,
        "failed": 3,
        "meanMs": 31.2,
        "p95Ms": 88.0,
        "lastError": None,
        "downForMs": None,
        **more,
    }


def explanation(name: str, **more: Any) -> dict[str, Any]:
    return {
        "id": name,
        "kind": "MESSAGE",
        "state": "WAITING",
        "cause": "BEHIND_HEAD",
        "summary": "It waits behind message order-7 of its group, which failed three times.",
        "chain": ["It is the 4th message of its group.", "The head was answered with 503."],
        "looked": ["router", "queue default"],
        "pool": "DEFAULT-POOL",
        "group": "customer-1",
        "queue": "default",
        "head": HEAD,
        "lastAnswer": LAST_ANSWER,
        "nextAttemptInMs": 25_800,
        "estimateInMs": 26_200,
        "estimateText": "If the head succeeds at its next attempt, it goes out in about 26 s.",
        "safeToSendAgain": False,
        "sendAgainText": "No: it is not lost, and is tried without that.",
        "facts": {"Slots free": 13},
        "actions": [
            {
                "what": "skip-head",
                "method": "POST",
                "path": "/monitoring/groups/customer-1/skip-head",
                "text": "give up message order-7: it becomes a dead letter",
            }
        ],
        **more,
    }
