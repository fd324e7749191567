"""Variables of the environment that are settings, or look like it. Pure."""

import re
from collections.abc import Collection, Mapping
from difflib import get_close_matches
from typing import Final

PREFIX: Final = "FLOWCATALYST_"
# Kubernetes tells each container of every service beside it. Of one that is named flowcatalyst, or flowcatalyst-api,
# these variables begin like ours.
_SERVICE_LINK: Final = re.compile(
    r"FLOWCATALYST_(?:\w+_)?"
    r"(?:SERVICE_HOST|SERVICE_PORT(?:_\w+)?|PORT_[0-9]+_(?:TCP|UDP|SCTP)(?:_(?:PROTO|PORT|ADDR))?)"
)
_SERVICE_ADDRESS: Final = re.compile(r"(?:tcp|udp|sctp)://\S+:[0-9]+")
_ALIKE: Final = 0.75


def variable_of(setting: str) -> str:
    """The variable of a setting: FLOWCATALYST_LOG__LEVEL for log.level."""
    return PREFIX + setting.replace(".", "__").upper()


def is_service_link(name: str, value: str) -> bool:
    """Whether Kubernetes, not an operator, has set this variable."""
    if name.endswith("_PORT") and _SERVICE_ADDRESS.fullmatch(value):
        return True
    return _SERVICE_LINK.fullmatch(name) is not None


def own_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that mean settings, by their names in capitals."""
    found = {name.upper(): value for name, value in environ.items() if name.upper().startswith(PREFIX)}
    return {name: value for name, value in found.items() if not is_service_link(name, value)}


def complaints(variables: Collection[str], settings: Collection[str]) -> list[str]:
    """A sentence about each variable that is neither a setting nor a section of settings."""
    known = {variable_of(name) for name in settings}
    sections = {name.rsplit("__", depth)[0] for name in known for depth in range(1, name.count("__") + 1)}
    wrong = sorted(set(variables) - known - sections)
    return [f"variable {name} is not a setting{did_you_mean(name, known)}" for name in wrong]


def did_you_mean(name: str, known: Collection[str]) -> str:
    """The known name that is most like a wrong one, as the end of a sentence."""
    by_letters = {_letters(one): one for one in known}
    wanted = _letters(name)
    ends = [letters for letters in by_letters if letters.endswith(wanted)]  # its section was forgotten
    likely = ends if len(ends) == 1 else get_close_matches(wanted, by_letters, n=1, cutoff=_ALIKE)
    return f" (did you mean {by_letters[likely[0]]}?)" if likely else "; `flowcatalyst settings` lists them all"


def _letters(name: str) -> str:
    """A name without what separates its parts, which is what people get wrong."""
    return re.sub(r"[^a-z0-9]", "", name.removeprefix(PREFIX).lower())
