"""What people stopped is a reason of the health, until they let it go on."""

from tests.api.running import Running


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
