"""What people stopped is a reason of the health, until they let it go on."""

from pathlib import Path

from flowcatalyst.control.platform_settings import PlatformSettings
from tests.api.running import Running, run_router


async def test_a_paused_pool_and_a_held_group_are_reasons_until_they_go_on(router: Running) -> None:
    client = router.client
    await client.post("/monitoring/pools/POOL-LOW/pause")
    await client.post("/monitoring/groups/order:1/hold")
    health = (await client.get("/monitoring/health")).json
    texts = [reason["text"] for reason in health["reasons"]]
    assert any(text.startswith("pool POOL-LOW is paused by anonymous for ") for text in texts), texts
    assert any(text.startswith("group order:1 is held by anonymous for ") for text in texts)
    assert health["status"] == "WARNING"
    await client.post("/monitoring/pools/POOL-LOW/resume")
    await client.post("/monitoring/groups/order:1/release")
    assert (await client.get("/monitoring/health")).json["status"] == "HEALTHY"


async def test_a_held_group_of_jobs_and_a_paused_subscription_are_reasons_too(tmp_path: Path) -> None:
    subscription = {"code": "billing", "targetUrl": "http://127.0.0.1:9/", "eventTypes": [{"eventTypeCode": "order.*"}]}
    job = {"code": "x", "targetUrl": "http://127.0.0.1:9/", "messageGroup": "g", "mode": "BLOCK_ON_ERROR"}
    async with run_router(tmp_path, platform=PlatformSettings(enabled=True)) as router:
        client, watch = router.client, router.app.job_watch
        assert watch is not None
        assert (await client.post("/api/subscriptions", json=subscription)).status == 201
        assert (
            await client.post("/api/dispatch-jobs", json={**job, "scheduledFor": "2100-01-01T00:00:00Z"})
        ).status == 201
        await client.post("/api/subscriptions/billing/pause")
        await client.post("/api/message-groups/g/hold")
        await watch.look()
        health = (await client.get("/monitoring/health")).json
        texts = [reason["text"] for reason in health["reasons"]]
        assert "subscription billing is paused: its webhooks wait" in texts
        assert any(text.startswith("group g of jobs is held by anonymous for ") for text in texts), texts
        await client.post("/api/subscriptions/billing/resume")
        await client.post("/api/message-groups/g/release")
        await watch.look()
        assert (await client.get("/monitoring/health")).json["status"] == "HEALTHY"
