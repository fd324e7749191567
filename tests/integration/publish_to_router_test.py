"""`flowcatalyst publish` and `flowcatalyst seed` with `--router`: through the API of a router that runs."""

from pathlib import Path

import pytest

from flowcatalyst.core.credentials import hash_key, hash_password
from tests.integration.publish_command_test import lines, run, stats_of, works
from tests.support.command import TARGET
from tests.support.router_process import router_process


async def test_a_running_router_takes_what_the_commands_send_it_from_any_folder(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "messages.jsonl").write_bytes(lines({"id": "run.g.2", "mediationTarget": TARGET}))
    async with router_process(tmp_path) as router:
        to = ("publish", "--router", router.url)
        one = (*to, "--target", f"{router.url}/api/test/fast", "--id", "run.g.1", "--group", "g")
        said = await works(elsewhere, *one)
        assert said.startswith(f"message run.g.1 is published to queue default (router {router.url}) as embedded-")
        assert "run.g.1 was published before" in await works(elsewhere, *one)
        said = await works(elsewhere, *to, "--file", "messages.jsonl", "--queue", "low")
        assert said == f"1 message published to queue low (router {router.url})\n"
        _, _, errors = await run(elsewhere, *one[:5], "--id", "run.h.1", "--group", "h", "--pool", "NOPE")
        assert errors == "flowcatalyst: there is no pool 'NOPE' now: DEFAULT-POOL will take it\n"
        await works(elsewhere, "seed", "--router", router.url, "--count", 20, "--queue", "high")
        stats = await stats_of(router.url, 22)
        code, _, errors = await run(elsewhere, *one, "--queue", "nope")
        assert (code, "there is no queue 'nope'; the queues are: default" in errors) == (2, True)
        await router.terminate()
    code, _, errors = await run(elsewhere, *one)
    assert (code, f"the router {router.url} did not take it: " in errors) == (1, True)
    assert stats["orderViolations"] == 0
    assert [file.name for file in elsewhere.iterdir()] == ["messages.jsonl"]


@pytest.mark.parametrize("mode", ["api_key", "basic"])
async def test_a_router_that_wants_credentials_gets_them(tmp_path: Path, mode: str) -> None:
    key = "s3cret-key"
    entry = hash_key(key.encode()) if mode == "api_key" else f"ann:{hash_password(key.encode())}"
    right = {"MESSAGE_ROUTER_API_KEY": key} if mode == "api_key" else {"MESSAGE_ROUTER_LOGIN": f"ann:{key}"}
    wrong = dict.fromkeys(right, "ann:wr0ng")
    env = {"FLOWCATALYST_AUTH__MODE": mode, "FLOWCATALYST_AUTH__ADMIN": entry}
    async with router_process(tmp_path, env=env) as router:
        to = ("publish", "--router", router.url, "--target", f"{router.url}/api/test/fast")
        await works(tmp_path, *to, env=right)
        in_url = router.url.replace("://", f"://ann:{key}@")
        option = ("--api-key", key) if mode == "api_key" else ("--router", in_url)
        assert key not in await works(tmp_path, *to, *option)
        for given in ({}, wrong):
            code, output, errors = await run(tmp_path, *to, env=given)
            assert (code, output) == (2, "")
            assert "set MESSAGE_ROUTER_API_KEY to an API key or MESSAGE_ROUTER_LOGIN to name:password" in errors
            assert "wr0ng" not in errors
