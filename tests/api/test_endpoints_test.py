from random import Random

import pytest

from tests.api.running import Running, on_idle_router

MESSAGE = {"messageId": "m"}


@on_idle_router
@pytest.mark.parametrize(
    ("receiver", "status", "body"),
    [
        ("fast", 200, {"ack": True}),
        ("slow?delayMs=1", 200, {"ack": True}),
        ("success", 200, {"ack": True}),
        ("pending", 200, {"ack": False, "delaySeconds": 30}),
        ("pending?delaySeconds=7", 200, {"ack": False, "delaySeconds": 7}),
        ("client-error", 400, {"ack": False}),
        ("fail", 500, {"ack": False}),
        ("server-error", 500, {"ack": False}),
    ],
)
async def test_each_receiver_answers_as_its_name_says(
    idle_router: Running, receiver: str, status: int, body: dict[str, object]
) -> None:
    answer = await idle_router.client.post(f"/api/test/{receiver}", MESSAGE)
    assert (answer.status, answer.json) == (status, body)


async def test_faulty_loses_nothing(router: Running) -> None:
    router.app.ids.rng = Random(1)
    answers = [await router.client.post("/api/test/faulty", MESSAGE) for _ in range(200)]
    assert {answer.status for answer in answers} == {200, 429, 500}
    assert {answer.headers["Retry-After"] for answer in answers if answer.status == 429} == {"1"}
    assert {answer.json["ack"] for answer in answers if answer.status == 200} == {True, False}


@on_idle_router
@pytest.mark.parametrize("receiver", ["fast?delayMs=60001", "fast?delayMs=-1", "pending?delaySeconds=0"])
async def test_a_delay_out_of_bounds_is_refused(idle_router: Running, receiver: str) -> None:
    (await idle_router.client.post(f"/api/test/{receiver}", MESSAGE)).assert_problem(400, "delay")


@on_idle_router
async def test_an_unknown_receiver_lists_the_receivers(idle_router: Running) -> None:
    (await idle_router.client.post("/api/test/nope", MESSAGE)).assert_problem(404, "'nope'", "fast, slow, faulty")


@on_idle_router
async def test_a_body_without_a_message_id_is_refused(idle_router: Running) -> None:
    (await idle_router.client.post("/api/test/fast", {"id": "m"})).assert_problem(400, "`messageId`")


async def test_stats_show_violations_in_words_and_can_be_reset(router: Running) -> None:
    for position in (1, 3, 3):
        await router.client.post("/api/test/fast", {"messageId": f"r.g.{position}"})
    await router.client.post("/api/test/client-error", {"messageId": "r.g.4"})
    await router.client.post("/api/test/fail", {"messageId": "r.g.5"})
    await router.client.post("/api/test/pending", {"messageId": "r.g.6"})
    stats = await router.stats()
    assert stats["totalRequests"] == 6
    assert stats["orderViolations"] == 2
    assert (stats["duplicates"], stats["groups"]) == (1, 1)
    assert stats["endpoints"]["fast"] == {"requests": 3, "orderViolations": 1, "statusCounts": {"200": 3}}
    assert stats["lastViolations"] == [
        "r.g.3 came before position 2 was settled (fast)",
        "r.g.6 came before position 5 was settled (pending)",
    ]
    assert (await router.client.delete("/api/test/stats")).status == 204
    assert (await router.stats())["totalRequests"] == 0
    await router.client.post("/api/test/fast", MESSAGE)
    assert (await router.client.post("/api/test/stats/reset")).status == 204
    assert (await router.stats())["totalRequests"] == 0


async def test_a_payload_of_any_kind_is_received(router: Running) -> None:
    target = router.receiver("fast")
    await router.send(mediationTarget=target, id="größe", payload="<order/>", contentType="application/xml")
    await router.send(mediationTarget=target, id="m-2", payload=[1, 2])
    await router.send(mediationTarget=target, id="m-3")
    await router.until_settled()
    assert (await router.stats())["totalRequests"] == 3
    assert await router.app.dead_letters.count() == 0
