"""The files of the dashboard, as the API serves them: whole, to be kept by a browser, and from nowhere else."""

import re

import pytest

from flowcatalyst.dashboard.assets import INDEX, load_assets
from tests.api.running import Running, on_idle_router

OURS = {path: asset for path, asset in load_assets().items() if not path.startswith("vendor/")}
MEDIA_TYPES = {"html": "text/html", "js": "text/javascript", "css": "text/css", "svg": "image/svg+xml"}


@on_idle_router
async def test_every_file_has_its_type_and_a_tag_by_which_a_browser_keeps_it(idle_router: Running) -> None:
    for path in load_assets():
        answer = await idle_router.client.get(f"/dashboard/{path}")
        assert (answer.status, answer.media_type) == (200, MEDIA_TYPES[path.rpartition(".")[2]])
        assert answer.headers["Cache-Control"] == "no-cache"
        known = {"If-None-Match": answer.headers["Etag"]}
        again = await idle_router.client.request("GET", f"/dashboard/{path}", headers=known)
        assert (again.status, again.text) == (304, "")


@on_idle_router
@pytest.mark.parametrize("path", ["nope.js", "__init__.py", "assets.py", "vendor/htm.LICENSE", "../api/asgi.py", ""])
async def test_nothing_else_is_served(idle_router: Running, path: str) -> None:
    assert (await idle_router.client.get(f"/dashboard/{path}")).status == 404


@on_idle_router
async def test_the_page_runs_our_files_and_nothing_else_without_any_exception(idle_router: Running) -> None:
    answer = await idle_router.client.get("/")
    directives = set(answer.headers["Content-Security-Policy"].split("; "))
    assert directives == {
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "connect-src 'self'",
        "img-src 'self' data:",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    }
    assert not re.search(r"<style|\son\w+=|\sstyle=|javascript:", answer.text)
    assert all("src=" in tag for tag in re.findall("<script[^>]*>", answer.text))


@pytest.mark.parametrize("path", sorted(OURS))
def test_the_page_asks_no_other_server_and_makes_no_code_of_text(path: str) -> None:
    text = OURS[path].content.decode().replace('xmlns="http://www.w3.org/2000/svg"', "")
    assert "http://" not in text
    assert "https://" not in text
    assert not re.search(r"\beval\(|new Function|innerHTML|dangerouslySetInnerHTML|document\.write", text)


def test_every_module_that_is_imported_is_there() -> None:
    assets = load_assets()
    for path, asset in assets.items():
        folder = path.rpartition("/")[0]
        for wanted in re.findall(r'(?:from|import)\s*"(\.[^"]+)"', asset.content.decode()):
            parts = folder.split("/") if folder else []
            for step in wanted.split("/"):
                parts = parts[:-1] if step == ".." else parts if step == "." else [*parts, step]
            assert "/".join(parts) in assets, f"{path} imports {wanted}"
    assert b"/dashboard/app.js" in assets[INDEX].content
