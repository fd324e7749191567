"""The manual is true where a machine can tell: links lead somewhere, and what runbooks and commands name is there."""

import re
from pathlib import Path

import pytest

from flowcatalyst.api.asgi import build_api
from flowcatalyst.app.router import App
from flowcatalyst.control.settings import Settings
from flowcatalyst.core.warnings import WarningCode

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
