"""The manual is true where a machine can tell: links lead somewhere, and what runbooks and commands name is there."""

import json
import re
from pathlib import Path

import msgspec
import pytest

from flowcatalyst.api.asgi import build_api
from flowcatalyst.app.router import App
from flowcatalyst.control.settings import Settings
from flowcatalyst.core.clock import IdSource, SystemClock
from flowcatalyst.core.message import Delivery, parse_pointer
from flowcatalyst.core.warnings import WarningCode
from flowcatalyst.http.egress import EgressGuard
from flowcatalyst.http.http1.client import Http1Client
from flowcatalyst.http.mediator import Mediator
from flowcatalyst.queues.intake import NewMessage, prepare
from tests.support.http_servers import always, raw_server, reply

ROOT = Path(__file__).parent.parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
RUNBOOKS = (ROOT / "docs" / "runbooks.md").read_text()


def anchors_of(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_of_the_manual_leads_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if link.startswith("https://"):
            continue
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        assert target.exists(), f"{page.name} links {link}"
        assert not anchor or anchor in anchors_of(target), f"{page.name} links {link}"


def test_every_file_that_a_command_of_the_readme_names_is_there() -> None:
    text = (ROOT / "README.md").read_text()
    named = re.findall(r"\.venv/bin/flowcatalyst [^#\n]*?([\w./-]+\.(?:toml|json))", text)
    assert len(named) >= 2
    for name in named:
        assert (ROOT / name).exists(), f"README.md has a command with {name}"


async def test_the_request_that_the_readme_shows_is_the_one_that_its_message_makes() -> None:
    text = (ROOT / "README.md").read_text()
    [sent] = re.findall(r"/api/messages -H 'content-type: application/json' -d '({.*?})'", text, re.DOTALL)
    [shown] = re.findall(r"```\n(POST /hooks/order\n.*?)\n```", text, re.DOTALL)
    head, _, body = shown.partition("\n\n")
    delivery = Delivery("1", None, "", json.loads(sent)["messageGroupId"])
    ready = prepare(msgspec.json.decode(sent, type=NewMessage), IdSource(SystemClock()))
    delivery.pointer, delivery.tries = parse_pointer(ready.outgoing.body), 1
    client = Http1Client(guard=EgressGuard(allow_private=True), clock=SystemClock())
    async with raw_server(always(reply(200))) as server:
        target = delivery.pointer.mediation_target.replace(":9000", f":{server.port}")
        delivery.pointer = msgspec.structs.replace(delivery.pointer, mediation_target=target)
        await Mediator(client, client, SystemClock()).attempt(delivery)
        await client.close()
    [request] = server.requests
    made = [f"{request.method} {request.path}", *(f"{name}: {value}" for name, value in request.headers.items())]
    for line in head.splitlines():
        assert line.lower() in [one.lower() for one in made]
    assert request.body.decode() == body


def test_runbooks_name_only_routes_and_warnings_that_exist(tmp_path: Path) -> None:
    routes = [re.sub(r"{[^}]*}", "[^/]+", route.path) for route in build_api(App(Settings(data_dir=tmp_path))).routes]
    named = set(re.findall(r"8080(/[\w/$-]*)", RUNBOOKS)) | set(
        re.findall(r"`(/(?:monitoring|health)[\w/-]*)", RUNBOOKS)
    )
    assert len(named) > 8
    for path in named:
        assert any(re.fullmatch(route, path) for route in routes), f"docs/runbooks.md names {path}"
    for code in re.findall(r"`([A-Z]+_[A-Z_]+)`", RUNBOOKS):
        assert code in {*WarningCode, "NACKED"}, f"docs/runbooks.md names {code}"


def test_every_runbook_says_what_one_sees_what_to_do_and_when_it_is_over() -> None:
    books = re.split(r"^## ", RUNBOOKS, flags=re.MULTILINE)[1:]
    assert len(books) >= 6
    for book in books:
        for part in ("**What you see", "**What to do", "**How you know it is over.**"):
            assert part in book, f"runbook {book.splitlines()[0]} lacks {part}"
