"""What stands for a router in tests says only what a router may say."""

from typing import Any

import pytest

from tests.browser import contract
from tests.support import fake_router
from tests.support.api_forms import check_answer

ENDPOINTS = [fake_router.endpoint(), contract.endpoint("http://shop.test/hook")]


@pytest.mark.parametrize("group", [fake_router.group(), contract.group("customer-7")])
def test_a_canned_group_is_one(group: dict[str, Any]) -> None:
    check_answer("GET /monitoring/groups/customer-7", group)
    check_answer("GET /monitoring/groups?blocked=true", {"items": [group], "next": None})


@pytest.mark.parametrize("explanation", [fake_router.explanation(), contract.explanation("order-2")])
def test_a_canned_explanation_is_one(explanation: dict[str, Any]) -> None:
    check_answer("GET /monitoring/explain/order-2?kind=MESSAGE", explanation)


@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_a_canned_endpoint_is_one(endpoint: dict[str, Any]) -> None:
    check_answer("POST /monitoring/endpoints/pause?endpoint=x", endpoint)
    check_answer("GET /monitoring/endpoints", {"items": [endpoint], "next": None})


def test_a_canned_overview_and_a_canned_pool_are_what_they_stand_for() -> None:
    check_answer("GET /monitoring/live", fake_router.overview())
    check_answer("POST /monitoring/pools/ORDERS/pause", fake_router.pool_view())


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"state": "BLOKED"}, "Invalid enum value 'BLOKED'"),
        ({"waitingBehind": "41"}, "Expected `int`, got `str`"),
        ({"behind": 41}, "so, but"),
    ],
)
def test_what_no_router_says_cannot_be_canned(change: dict[str, Any], complaint: str) -> None:
    with fake_router.fake_router() as router, pytest.raises(AssertionError, match=complaint):
        router.answer("GET /monitoring/groups/customer-7", fake_router.group(**change))


def test_an_answer_without_a_field_cannot_be_canned() -> None:
    overview = fake_router.overview()
    del overview["lagMs"]
    with fake_router.fake_router() as router, pytest.raises(AssertionError, match="missing required field `lagMs`"):
        router.overviews = [overview]
