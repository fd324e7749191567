"""`flowcatalyst keys` against a platform that runs."""

import json
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from flowcatalyst.core.credentials import hash_key, new_key
from tests.servers import free_port
from tests.support.router_process import RouterProcess, router_process, run_cli

ADMIN_KEY = new_key()
ENV = {
    "FLOWCATALYST_AUTH__MODE": "api_key",
    "FLOWCATALYST_AUTH__ADMIN": hash_key(ADMIN_KEY.encode()),
    "FLOWCATALYST_PLATFORM__ENABLED": "true",
}


@pytest.fixture
async def router(tmp_path: Path) -> AsyncIterator[RouterProcess]:
    async with router_process(tmp_path, env=ENV) as router:
        yield router


async def keys(router: RouterProcess, *args: object, key: str = ADMIN_KEY) -> tuple[int, str, str]:
    return await run_cli("keys", *args, "--url", router.url, env={"MESSAGE_ROUTER_API_KEY": key})


async def status_with(router: RouterProcess, key: str) -> int:
    async with (
        aiohttp.ClientSession(router.url, headers={"X-API-Key": key}) as session,
        session.get("/api/dispatch-jobs") as response,
    ):
        return response.status


async def test_a_key_is_made_listed_rotated_and_revoked_while_the_platform_runs(router: RouterProcess) -> None:
    code, output, errors = await keys(router, "create", "shop", "--scope", "publish", "--scope", "read")
    assert code == 0, errors
    key, key_id = output.splitlines()
    assert "shown this once: it may publish, read" in errors
    assert await status_with(router, key) == 200
    code, output, _ = await keys(router, "rotate", key_id, "--overlap", 0)
    new, same_id = output.splitlines()
    assert (code, same_id) == (0, key_id)
    assert (await status_with(router, key), await status_with(router, new)) == (401, 200)
    code, output, _ = await keys(router, "list")
    head, row = output.splitlines()
    assert (code, head.split()) == (0, ["ID", "NAME", "SCOPES", "STATE", "LAST", "USED"])
    assert row.split()[:4] == [key_id, "shop", "publish,read", "valid"]
    code, output, _ = await keys(router, "revoke", key_id)
    assert (code, output) == (0, f"API key shop ({key_id}) is revoked.\n")
    assert await status_with(router, new) == 401
    code, output, _ = await keys(router, "list", "--json")
    (shown,) = json.loads(output)
    assert (shown["id"], shown["revokedAt"] is None) == (key_id, False)
    assert key not in output
    assert new not in output


async def test_what_is_refused_is_said_in_one_sentence(router: RouterProcess) -> None:
    for args, key, exit_code, said in [
        (("list",), "wrong", 2, "answered 401: these credentials are wrong; set MESSAGE_ROUTER_API_KEY"),
        (("revoke", "nope"), ADMIN_KEY, 1, "answered 404: there is no API key nope"),
        (("create", "", "--scope", "read"), ADMIN_KEY, 1, "answered 400: `name` must have at least 1 character"),
    ]:
        code, output, errors = await keys(router, *args, key=key)
        assert (code, output) == (exit_code, "")
        assert said in errors
        assert errors.count("\n") == 1
        assert ADMIN_KEY not in errors
    _, output, _ = await keys(router, "create", "shop", "--scope", "read", "--expires-at", "2099-01-31")
    code, output, errors = await keys(router, "list", key=output.splitlines()[0])
    assert (code, output) == (2, "")
    assert "answered 403: these credentials may only read: this needs some with the scope admin" in errors


async def test_a_platform_that_is_not_there_is_named() -> None:
    url = f"http://127.0.0.1:{free_port()}"
    code, output, errors = await run_cli("keys", "list", "--url", url)
    assert (code, output) == (1, "")
    assert errors == f"flowcatalyst: the platform at {url} did not answer: Connection refused\n"
    code, output, errors = await run_cli("keys", "list", "--url", "http://ann:s3cret@127.0.0.1")
    assert (code, output) == (2, "")
    assert "s3cret" not in errors


async def test_where_nobody_is_asked_for_a_key_whoever_makes_one_is_told(tmp_path: Path, router: RouterProcess) -> None:
    said = "asks nobody for keys (auth.mode is none)"
    (folder := tmp_path / "open").mkdir()
    async with router_process(folder) as opened:
        code, output, errors = await keys(opened, "create", "shop", "--scope", "read")
    assert (code, len(output.splitlines())) == (0, 2)
    assert said in errors
    assert said not in (await keys(router, "create", "shop", "--scope", "read"))[2]
