"""What a request for a job says of its place in its group, and how it is signed."""

from collections.abc import Sequence

import pytest

from flowcatalyst.core.clock import SystemClock
from flowcatalyst.core.errors import NotSignedError
from flowcatalyst.core.message import Delivery
from flowcatalyst.dispatch.stamp import JobStamp, LeasedGroup, LeasedGroups, SecretsOf, no_secrets
from flowcatalyst.http.signing import new_secret
from flowcatalyst.receiver import Webhook, verify
from tests.support.http_servers import always, raw_server, reply
from tests.unit.mediator_test import mediator, message

BODY = '{"total": 12, "café": "☕"}'.encode()
NEW, OLD = new_secret(), new_secret()


def secrets(*known: str) -> SecretsOf:
    return lambda subscription, wall: known if subscription == "orders" else ()


def job(port: int, stamp: JobStamp, position: int = 0) -> Delivery:
    made = message(port, token=None, message_id="0199-job", group="orders:7")
    made.body, made.is_raw, made.stamp, made.position = BODY, True, stamp, position
    return made


async def sent(stamp: JobStamp, secret: str | Sequence[str], position: int = 0) -> Webhook:
    """A webhook as its receiver verifies it, over a real connection."""
    sender = mediator()
    async with raw_server(always(reply(200))) as server:
        await sender.attempt(job(server.port, stamp, position))
        await sender.close()
    (request,) = server.requests
    return verify(request.headers, request.body, secret, now=SystemClock().wall())


@pytest.mark.parametrize("known", [NEW, OLD], ids=["the new secret", "the old one"])
async def test_while_secrets_change_a_receiver_may_know_either(known: str) -> None:
    webhook = await sent(JobStamp(None, "orders", secrets(NEW, OLD)), known)
    assert (webhook.id, webhook.body) == ("0199-job", BODY)


async def test_a_job_tells_its_position_and_what_was_delivered_before_it() -> None:
    webhook = await sent(JobStamp(LeasedGroup(4), "orders", secrets(NEW)), NEW, position=6)
    assert (webhook.group, webhook.group_seq, webhook.group_prev) == ("orders:7", 6, 4)


async def test_the_jobs_of_a_lease_know_what_was_delivered_of_it() -> None:
    lease = LeasedGroup(0)
    first, second = JobStamp(lease, None, no_secrets), JobStamp(lease, None, no_secrets)
    first.delivered(job(1, first, position=3))
    assert second.lines(job(1, second, position=4), BODY, 0.0) == (
        "X-FlowCatalyst-Group-Seq: 4\r\nX-FlowCatalyst-Group-Prev: 3\r\n"
    )


async def test_a_job_that_is_leased_for_itself_knows_what_is_delivered_of_its_group_meanwhile() -> None:
    groups = LeasedGroups()
    ordered = job(1, JobStamp(groups.of("g", 4), None, no_secrets), position=5)
    late = JobStamp(groups.of("g", 4), None, no_secrets)
    assert ordered.stamp is not None
    ordered.stamp.delivered(ordered)
    assert "Prev: 5\r\n" in late.lines(job(1, late, position=2), BODY, 0.0)
    groups.settled([ordered, ordered])
    assert groups.of("g", 4).delivered == 5  # the late one is still in hand
    for _ in range(2):
        groups.of("g", 4).in_hand = 0
    assert groups.of("g", 9).delivered == 9  # nothing is: the store knows


async def test_what_is_ordered_with_nothing_has_no_position() -> None:
    stamp = JobStamp(None, None, no_secrets)
    stamp.delivered(job(1, stamp))
    assert stamp.lines(job(1, stamp), BODY, 0.0) == ""


async def test_a_job_that_cannot_be_signed_is_not_sent() -> None:
    def lost(subscription: str, wall: float) -> Sequence[str]:
        raise NotSignedError(f"the secret of {subscription} cannot be opened")

    sender = mediator()
    async with raw_server(always(reply(200))) as server:
        with pytest.raises(NotSignedError, match="deliveries wait: the secret of orders cannot be opened"):
            await sender.attempt(job(server.port, JobStamp(None, "orders", lost)))
        await sender.close()
    assert not server.requests


async def test_what_others_delivered_of_a_group_is_known_with_the_next_lease_of_it() -> None:
    groups = LeasedGroups()
    mine = groups.of("orders:7", 1)
    mine.note(3)
    assert groups.of("orders:7", 1).delivered == 3  # the store does not know of ours yet
    assert groups.of("orders:7", 5).delivered == 5
    assert mine.delivered == 5
