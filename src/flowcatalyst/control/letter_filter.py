"""Which dead letters are meant, and how SQLite finds them without reading one."""

from dataclasses import asdict, dataclass
from typing import Any

from flowcatalyst.core.message import check_target
from flowcatalyst.core.targets import endpoint_of


@dataclass(slots=True, frozen=True)
class LetterFilter:
    """All that is there has to hold; None means any."""

    group: str | None = None
    target: str | None = None  # as `target_prefix` gives it
    status: int | None = None
    queue: str | None = None
    since: float | None = None  # wall time: recorded then or later
    until: float | None = None  # recorded before

    def where(self, numbers: str) -> tuple[str, dict[str, Any]]:
        """What comes after FROM, for a look at no more than indexes; `numbers` says which of them are looked at."""
        terms = {
            "group": "group_id = :group",
            # Whole parts of a path: what is between "/" and the next character, "0", begins with the "/".
            "target": "(target = :target OR target >= :target || '/' AND target < :target || '0')",
            "status": "status = :status",
            "queue": "queue = :queue",
            "since": "recorded_at >= :since",
            "until": "recorded_at < :until",
        }
        given = {name: value for name, value in asdict(self).items() if value is not None}
        index = "dead_letters_by_number" if self.group is None else "dead_letters_by_group"
        conditions = " AND ".join([numbers, *(terms[name] for name in given)])
        return f"dead_letters INDEXED BY {index} WHERE {conditions}", given


ANY = LetterFilter()


def target_prefix(target: str) -> str:
    """The beginning of targets as it is looked for. Raises `InvalidMessageError` if none could begin so."""
    check_target(target)
    return endpoint_of(target).removesuffix("/")
