"""Who did what to a job or a group, and when: in the history of the job, at the group, and in the audit trail."""

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from flowcatalyst.core.clock import SystemClock
from flowcatalyst.core.credentials import hash_key, new_key
from tests.api.dispatching import GROUPS, JOBS
from tests.api.running import Answer, Client, run_router, until

ADMIN_KEY = new_key()
AUTH = {"mode": "api_key", "admin": [hash_key(ADMIN_KEY.encode())]}
GROUP = "account:123"
Ask = Callable[..., Awaitable[Answer]]


async def ask_as(client: Client, key: str, method: str, path: str, body: Any = None) -> Answer:
    answer = await client.request(method, path, json=body, headers={"X-API-Key": key})
    assert answer.status in (200, 201), answer.text
    return answer


async def person(client: Client, name: str) -> tuple[Ask, str]:
    """Somebody with a key of their own: how they ask, and what they are called."""
    asked = {"name": name, "scopes": ["read", "operate", "publish"]}
    made = (await ask_as(client, ADMIN_KEY, "POST", "/api/api-keys", asked)).json
    return partial(ask_as, client, made["key"]), f"key {name} ({made['id'][-8:]})"


def now() -> datetime:
    return datetime.fromtimestamp(SystemClock().wall(), UTC)


async def test_the_history_of_a_job_tells_who_did_what_to_it_and_when(tmp_path: Path, store: dict[str, str]) -> None:
    async with run_router(tmp_path, auth=AUTH, platform={"enabled": True} | store) as running:
        (ann, ann_is), (bob, bob_is) = [await person(running.client, name) for name in ("ann", "bob")]
        job = {"code": "x", "targetUrl": running.receiver("client-error"), "messageGroup": GROUP, "maxRetries": 0}
        path = f"{JOBS}/{(await ann('POST', JOBS, job | {'mode': 'BLOCK_ON_ERROR'})).json['id']}"

        async def failed() -> bool:
            return bool((await ann("GET", path)).json["job"]["status"] == "ERROR")

        began = now()
        await until(failed)
        await bob("POST", f"{path}/retry")
        await until(failed)
        await ann("PATCH", path, {"mode": "NEXT_ON_ERROR"})
        await bob("POST", f"{JOBS}/retry", {"filter": {"messageGroup": GROUP}})
        await until(failed)
        await ann("PATCH", path, {"payload": {"a": 1}})
        await until(failed)
        await bob("POST", f"{path}/cancel")
        whole = (await ann("GET", path)).json
    assert [(line["actor"], line["action"]) for line in whole["history"]] == [
        (bob_is, "retry"),
        (ann_is, "change mode to NEXT_ON_ERROR"),
        (bob_is, "retry"),
        (ann_is, "change payload, content type"),
        (ann_is, "retry"),
        (bob_is, "cancel"),
    ]
    moments = [datetime.fromisoformat(line["at"]) for line in whole["history"]]
    assert moments == sorted(moments)
    assert began <= moments[0] <= moments[-1] <= now()


async def test_a_group_tells_who_holds_it_and_the_audit_trail_who_held_and_released_it(
    tmp_path: Path, store: dict[str, str]
) -> None:
    async with run_router(tmp_path, auth=AUTH, platform={"enabled": True} | store) as running:
        (ann, ann_is), (bob, bob_is) = [await person(running.client, name) for name in ("ann", "bob")]
        job = {"code": "x", "targetUrl": running.receiver("fast"), "messageGroup": GROUP, "mode": "BLOCK_ON_ERROR"}
        began = now()
        await ann("POST", f"{GROUPS}/{GROUP}/hold")
        made = (await bob("POST", JOBS, job)).json
        again = (await bob("POST", f"{GROUPS}/{GROUP}/hold")).json
        assert again["heldBy"] == ann_is
        assert began <= datetime.fromisoformat(again["heldSince"]) <= now()
        assert f"held by {ann_is}" in (await ann("GET", f"{JOBS}/{made['id']}")).json["waitsFor"]
        await bob("POST", f"{GROUPS}/{GROUP}/release")
        trail = (await ask_as(running.client, ADMIN_KEY, "GET", "/monitoring/audit")).json
    told = [(one["action"], one["who"], one["object"]) for one in trail if one["action"].startswith("group_")]
    assert sorted(told) == sorted(
        [
            ("group_hold", ann_is, f"group {GROUP}"),
            ("group_hold", bob_is, f"group {GROUP}"),
            ("group_release", bob_is, f"group {GROUP}"),
        ]
    )
