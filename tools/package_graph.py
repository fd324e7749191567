"""Draws which packages import which, as docs/architecture.md shows it: `python tools/package_graph.py --write`."""

import re
import sys
from pathlib import Path

import grimp

PAGE = Path(__file__).parent.parent / "docs" / "architecture.md"
BEGIN, END = "<!-- package graph: drawn by tools/package_graph.py -->\n", "<!-- end of package graph -->"


def draw() -> str:
    """A Mermaid drawing. An arrow is left out where a longer way leads to the same package."""
    graph = grimp.build_graph("flowcatalyst")
    rooms = sorted(graph.find_children("flowcatalyst") - {"flowcatalyst.__main__"})
    uses = {
        room: {
            other
            for other in rooms
            if other != room and graph.direct_import_exists(importer=room, imported=other, as_packages=True)
        }
        for room in rooms
    }
    reach: dict[str, set[str]] = {}

    def reached_from(room: str) -> set[str]:
        if room not in reach:
            reach[room] = uses[room].union(*map(reached_from, uses[room]))
        return reach[room]

    lines = ["```mermaid", "graph TD"]
    for room in rooms:
        further = set().union(*map(reached_from, uses[room]))
        lines += [f"  {_name(room)} --> {_name(other)}" for other in sorted(uses[room] - further)]
    return "\n".join([*lines, "```", ""])


def in_page(text: str) -> str:
    """The page with the drawing as it is now."""
    return re.sub(f"{re.escape(BEGIN)}.*?{re.escape(END)}", lambda _: f"{BEGIN}{draw()}{END}", text, flags=re.DOTALL)


def _name(room: str) -> str:
    return room.rpartition(".")[2]


if __name__ == "__main__":
    if "--write" in sys.argv:
        PAGE.write_text(in_page(PAGE.read_text()))
    else:
        print(draw(), end="")
