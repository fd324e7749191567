"""What somebody may have meant by a name that nothing has. Pure."""

import re
from collections.abc import Collection
from difflib import get_close_matches
from typing import Final

_ALIKE: Final = 0.75
_SHORTEST_END: Final = 3


def nearest(name: str, known: Collection[str]) -> str | None:
    """The known name that is most like a wrong one, or None if none is like it.

    What separates the parts of a name, and capitals, are what people get wrong: they do not count.
    """
    by_letters = {_letters(one): one for one in known}
    wanted = _letters(name)
    may_be_an_end = len(wanted) >= _SHORTEST_END
    ends = [
        letters for letters in by_letters if may_be_an_end and letters.endswith(wanted)
    ]  # its section was forgotten
    likely = ends if len(ends) == 1 else get_close_matches(wanted, by_letters, n=1, cutoff=_ALIKE)
    return by_letters[likely[0]] if likely else None


def _letters(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())
