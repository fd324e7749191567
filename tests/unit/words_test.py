"""Texts that people read say the words of the glossary in CONTRIBUTING.md, and none of those it rules out."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
SRC = ROOT / "src" / "flowcatalyst"
# Only what is wrong wherever it stands: "room" or "kept" may be the right word for something else.
NOT_SAID = re.compile(
    r"\b(giv(e|es|en|ing) (it |them |messages? )?back|goes back|went back to|bur(y|ied)|disown|that is none|is no JSON"
    r"|way in|test bench|made anew|it was asked)\b"
)


def texts_of(path: Path) -> Iterator[tuple[int, str]]:
    """Sentences in string literals, without docstrings and SQL; the parts of an f-string each on their own."""
    tree = ast.parse(path.read_text())
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Constant) or not isinstance(node.value, str) or id(node) in docstrings:
            continue
        if " " in node.value and not re.search(r"\b(SELECT|UPDATE|INSERT|DELETE)\b", node.value):
            yield node.lineno, node.value


def test_no_text_says_a_word_that_the_glossary_rules_out() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {match[0]!r}"
        for path in SRC.rglob("*.py")
        if path.parent.name != "cli"  # its texts are rewritten with its identifiers
        for line, text in texts_of(path)
        if (match := NOT_SAID.search(text))
    ]
    assert found == []


def test_no_manual_says_a_word_that_the_glossary_rules_out() -> None:
    found = [
        f"docs/{path.name}:{line}: {match[0]!r}"
        for path in (ROOT / "docs").glob("*.md")
        for line, text in enumerate(path.read_text().splitlines(), 1)
        if (match := NOT_SAID.search(re.sub(r"`[^`]*`", "", text)))
    ]
    assert found == []
