"""The built-in receiver of webhooks: it verifies what comes with the kit that applications use, and counts."""

from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

from flowcatalyst.core.clock import IdSource
from flowcatalyst.receiver import GroupGuard, MemoryGuardStore, Verdict, WebhookError, verify

SUBSCRIPTION: Final = "x-flowcatalyst-subscription"
MAX_GROUPS: Final = 1_000  # that are judged: orders come and go
FAILS: Final = 0.1  # of the webhooks of a subscription that is set up so


@dataclass(slots=True)
class WebhookCounts:
    """What came."""

    verified: int = 0  # signature, and place in its group if it has one
    failed: int = 0  # answered with 503 on purpose
    repeats: int = 0
    wrong_signatures: int = 0
    out_of_place: int = 0  # after a gap, or late

    @property
    def taken(self) -> int:
        """Those that were answered with 200."""
        return self.verified + self.repeats + self.out_of_place


class WebhookReceiver:
    """Knows the secrets of the subscriptions that the demo made."""

    def __init__(self, ids: IdSource) -> None:
        self.counts = WebhookCounts()
        self.last_problem = ""
        self.secrets: dict[str, str] = {}  # by subscription
        self.faulty: set[str] = set()  # subscriptions for which it fails now and then
        self.run = ""  # the groups that are judged have it in their names: others begin in the middle
        self._guard = GroupGuard(MemoryGuardStore(MAX_GROUPS))
        self._ids = ids

    def receive(self, headers: Mapping[str, str], body: bytes) -> tuple[int, str]:
        """Status and text of the answer."""
        subscription, counts = headers.get(SUBSCRIPTION, ""), self.counts
        if subscription not in self.secrets:
            return HTTPStatus.NOT_FOUND, "no subscription of the demo"
        try:
            webhook = verify(headers, body, self.secrets[subscription])
        except WebhookError as error:
            counts.wrong_signatures += 1
            self.last_problem = f"{subscription}: {error}"
            return HTTPStatus.UNAUTHORIZED, str(error)
        if subscription in self.faulty and self._ids.rng.random() < FAILS:
            counts.failed += 1
            return HTTPStatus.SERVICE_UNAVAILABLE, "it fails now and then, to show what follows"
        judged = webhook.group is not None and bool(self.run) and self.run in webhook.group
        verdict = self._guard.done(webhook) if judged else Verdict.UNORDERED
        if verdict is Verdict.REPEAT:
            counts.repeats += 1
        elif verdict in (Verdict.GAP, Verdict.REGRESSION):
            counts.out_of_place += 1
            self.last_problem = f"{webhook.group} {webhook.group_seq} after {webhook.group_prev}: {verdict.value}"
        else:
            counts.verified += 1
        return HTTPStatus.OK, verdict.value
