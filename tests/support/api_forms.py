"""The forms in which the API answers, so that nobody cans an answer that no router gives."""

import json
import re
from typing import Any, Final

import msgspec

from flowcatalyst.api.router.dead_letters import DeadLetterView, Purged, Replayed, ReplayedMany
from flowcatalyst.api.router.endpoints import EndpointPage, EndpointView, PauseView
from flowcatalyst.api.router.explain import ExplanationView
from flowcatalyst.api.router.group_views import BlockableGroup, DoneView
from flowcatalyst.api.router.groups import GroupPage
from flowcatalyst.api.router.pools import PoolView
from flowcatalyst.control.overview import Overview

_FORMS: Final = (
    ("GET /monitoring/groups", GroupPage),
    ("GET /monitoring/groups/[^/]+", BlockableGroup),
    ("POST /monitoring/groups/[^/]+/(hold|release|retry-head|skip-head)", DoneView),
    ("POST /monitoring/messages/[^/]+/(retry|skip)", DoneView),
    ("GET /monitoring/explain/[^/]+", ExplanationView),
    ("GET /monitoring/endpoints", EndpointPage),
    ("POST /monitoring/endpoints/(pause|resume)", EndpointView),
    ("POST /monitoring/pools/[^/]+/(pause|resume)", PoolView | None),
    ("GET /monitoring/pauses", list[PauseView]),
    ("GET /monitoring/dead-letters", list[DeadLetterView]),
    ("GET /monitoring/dead-letters/[0-9]+", DeadLetterView),
    ("POST /monitoring/dead-letters/[0-9]+/replay", Replayed),
    ("POST /monitoring/dead-letters/replay", ReplayedMany),
    ("DELETE /monitoring/dead-letters", Purged),
    ("DELETE /monitoring/dead-letters/[0-9]+", None),
    ("GET /monitoring/live", Overview),
)


def check_answer(what: str, answer: Any) -> None:
    """Raises `AssertionError` if a router would never say `answer` to `what`, a request like
    "GET /monitoring/groups?blocked=true": a field is missing, of another kind, or none of its own."""
    request = what.partition("?")[0]
    forms = [form for pattern, form in _FORMS if re.fullmatch(pattern, request)]
    assert len(forms) == 1, f"{request} has no form here"
    text = json.dumps(answer)
    try:
        understood = msgspec.json.decode(text, type=forms[0])
    except msgspec.ValidationError as error:
        raise AssertionError(f"no router answers {request} so: {error}") from None
    meant = json.loads(msgspec.json.encode(understood))
    assert meant == json.loads(text), f"no router answers {request} so, but {meant}"
