"""Variables of the environment that are settings, or look like it. Pure."""

import re
from collections.abc import Collection, Mapping
from typing import Final

from flowcatalyst.core.spelling import nearest

PREFIX: Final = "FLOWCATALYST_"
# The names that operators of earlier routers know, and what the commands take beside them.
OTHER_PREFIX: Final = "MESSAGE_ROUTER_"
CONFIG_URL: Final = "MESSAGE_ROUTER_CONFIG_URL"
ENABLED: Final = "MESSAGE_ROUTER_ENABLED"
API_KEY: Final = "MESSAGE_ROUTER_API_KEY"
LOGIN: Final = "MESSAGE_ROUTER_LOGIN"
_OTHERS: Final = (CONFIG_URL, ENABLED, API_KEY, LOGIN)
# Kubernetes tells each container of every service beside it. Of one that is named flowcatalyst, or message-router-api,
# these variables begin like ours.
_SERVICE_LINK: Final = re.compile(
    r"(?:FLOWCATALYST|MESSAGE_ROUTER)_(?:\w+_)?"
    r"(?:SERVICE_HOST|SERVICE_PORT(?:_\w+)?|PORT_[0-9]+_(?:TCP|UDP|SCTP)(?:_(?:PROTO|PORT|ADDR))?)"
)
_SERVICE_ADDRESS: Final = re.compile(r"(?:tcp|udp|sctp)://\S+:[0-9]+")


def variable_of(setting: str) -> str:
    """The variable of a setting: FLOWCATALYST_LOG__LEVEL for log.level."""
    return PREFIX + setting.replace(".", "__").upper()


def is_service_link(name: str, value: str) -> bool:
    """Whether Kubernetes, not an operator, has set this variable."""
    if name.endswith("_PORT") and _SERVICE_ADDRESS.fullmatch(value):
        return True
    return _SERVICE_LINK.fullmatch(name) is not None


def own_variables(environ: Mapping[str, str], prefix: str = PREFIX) -> dict[str, str]:
    """The variables that mean settings, by their names in capitals."""
    found = {name.upper(): value for name, value in environ.items() if name.upper().startswith(prefix)}
    return {name: value for name, value in found.items() if not is_service_link(name, value)}


def complaints(variables: Collection[str], settings: Collection[str]) -> list[str]:
    """A sentence about each variable that is neither a setting nor a section of settings.

    A MESSAGE_ROUTER_ variable that is like none of ours belongs to somebody else; one of a single word, as his version,
    is only compared with those that begin so here.
    """
    known = {variable_of(name) for name in settings}
    wrong = sorted(set(variables) - known - {variable_of(name) for name in sections_of(settings)} - set(_OTHERS))
    of_both = [*sorted(known), *_OTHERS]  # the last counts, where only the beginnings differ
    rests = {True: [_rest(one) for one in of_both], False: [_rest(one) for one in _OTHERS]}
    ours = [name for name in wrong if name.startswith(PREFIX) or nearest(_rest(name), rests["_" in _rest(name)])]
    return [
        f"variable {name} is not a setting{did_you_mean(name, known if name.startswith(PREFIX) else of_both)}"
        for name in ours
    ]


def sections_of(settings: Collection[str]) -> set[str]:
    """What settings are parts of: mediator and mediator.http for mediator.http.version."""
    return {name.rsplit(".", depth)[0] for name in settings for depth in range(1, name.count(".") + 1)}


def did_you_mean(name: str, known: Collection[str]) -> str:
    """The known name that is most like a wrong one, as the end of a sentence. How variables begin does not count."""
    by_rest = {_rest(one): one for one in known}
    near = nearest(_rest(name), by_rest)
    return f" (did you mean {by_rest[near]}?)" if near else "; `flowcatalyst settings` lists them all"


def _rest(name: str) -> str:
    return name.removeprefix(PREFIX).removeprefix(OTHER_PREFIX)
