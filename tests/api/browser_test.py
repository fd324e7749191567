"""What a browser gets and sends: headers that keep strangers out of our pages, and pages that work all the same."""

import base64
import hashlib
import re

import pytest

from flowcatalyst.api.browser_headers import page_policy
from tests.api.running import Running, on_idle_router

NOTHING_RUNS = "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"


@on_idle_router
@pytest.mark.parametrize(
    "path", ["/", "/schema", "/schema/openapi.json", "/schema/nope", "/nope", "/metrics", "/monitoring/warnings"]
)
async def test_no_answer_is_framed_guessed_at_or_runs_what_is_not_ours(idle_router: Running, path: str) -> None:
    answer = await idle_router.client.get(path)
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert answer.headers["X-Frame-Options"] == "DENY"
    assert answer.headers["Referrer-Policy"] == "same-origin"
    assert answer.headers["Content-Security-Policy"].startswith(NOTHING_RUNS)
    assert "unsafe" not in answer.headers["Content-Security-Policy"]


@on_idle_router
async def test_refusals_carry_the_headers_too(idle_router: Running) -> None:
    answer = await idle_router.client.request("GET", "/", headers={"Host": "evil.example"})
    assert answer.status == 421
    assert answer.headers["Content-Security-Policy"] == NOTHING_RUNS


@on_idle_router
@pytest.mark.parametrize(("path", "kinds"), [("/", []), ("/schema", ["style"])])
async def test_a_page_may_use_exactly_the_script_and_the_style_that_stand_in_it(
    idle_router: Running, path: str, kinds: list[str]
) -> None:
    answer = await idle_router.client.get(path)
    policy = answer.headers["Content-Security-Policy"]
    inline = [found for found in re.findall(r"<(style|script)\b[^>]*>(.*?)</", answer.text, re.DOTALL) if found[1]]
    assert [kind for kind, _ in inline] == kinds
    for kind, text in inline:
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}'" in policy
    assert "'sha256-" not in policy.partition("script-src")[2].partition(";")[0]
    assert not re.search(r"\son\w+=|\sstyle=|javascript:", answer.text)  # no hash would allow these


def test_the_policy_of_a_page_without_script_and_style_allows_neither() -> None:
    assert "script-src" not in page_policy("<p>text")
    assert "style-src" not in page_policy("<p>text")


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
async def test_a_page_of_another_origin_may_not_change_anything_although_it_does_not_say_which(
    router: Running, site: str
) -> None:
    answer = await router.client.post("/api/seed/messages", headers={"Sec-Fetch-Site": site})
    answer.assert_problem(403, "origin")
    own = {"Sec-Fetch-Site": site, "Origin": router.listening.url}
    (await router.client.post("/api/seed/messages", headers=own)).assert_problem(403, "origin")
    assert (await router.stats())["totalRequests"] == 0


@pytest.mark.parametrize("site", ["same-origin", "none"])
async def test_our_own_page_and_the_user_may_change_things(router: Running, site: str) -> None:
    answer = await router.client.post("/api/seed/messages?count=1", headers={"Sec-Fetch-Site": site})
    assert answer.status == 202


@on_idle_router
async def test_a_page_of_another_origin_may_link_here(idle_router: Running) -> None:
    answer = await idle_router.client.request("GET", "/", headers={"Sec-Fetch-Site": "cross-site"})
    assert answer.status == 200
