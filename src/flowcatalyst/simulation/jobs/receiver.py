"""The applications behind the endpoints of a simulation: they verify each webhook and have a guard for its place."""

from collections.abc import Callable, Mapping, Sequence
from urllib.parse import unquote

from flowcatalyst.core.errors import ConnectionBrokenError, DeliveryError
from flowcatalyst.core.targets import Target
from flowcatalyst.core.webhook import SIGNATURE, key_of, signature
from flowcatalyst.dispatch.subscription import SUBSCRIPTION
from flowcatalyst.http.contract import Response
from flowcatalyst.http.mediator import MESSAGE_ID
from flowcatalyst.receiver import GroupGuard, MemoryGuardStore, Verdict, WebhookError, verify
from flowcatalyst.simulation.endpoint import Behaviour, SimulatedHttp, respond
from flowcatalyst.simulation.jobs.history import History, Kind, Received
from flowcatalyst.simulation.jobs.world import SENDER
from flowcatalyst.simulation.queue import Dice


class Receivers(SimulatedHttp):
    """All endpoints, which share what they remember. One that answers with success has handled the webhook before."""

    history: History
    wall: Callable[[], float]

    def __init__(
        self, behaviours: Mapping[str, Behaviour], timeout_s: float, secrets: Mapping[str, Sequence[str]], dice: Dice
    ) -> None:
        super().__init__(behaviours, timeout_s)
        self._secrets, self._dice = secrets, dice
        self._guard = GroupGuard(MemoryGuardStore())
        self._done: set[str] = set()  # ids of webhooks

    def _answer(
        self, target: Target, headers: Sequence[tuple[str, str]], body: bytes, lines: str
    ) -> tuple[float, Response | DeliveryError]:
        latency_s, answer = super()._answer(target, headers, body, lines)
        given = [*headers, *(_pair(line) for line in lines.split("\r\n") if line)]
        by_name = dict(given)
        code = unquote(by_name[SUBSCRIPTION]) if SUBSCRIPTION in by_name else None
        if code is None:
            return latency_s, answer
        secrets = self._secrets.get(code, ())
        signatures = by_name.get(SIGNATURE, "").split()
        try:
            webhook = verify(given, body, secrets, now=self.wall())
        except WebhookError:
            nothing = Received(
                code, None, None, None, frozenset(), len(signatures), Verdict.UNORDERED, done=False, was_done=False
            )
            self.history.add(Kind.RECEIVED, by_name[MESSAGE_ID], SENDER.get(), nothing)
            return 0.01, respond(401)
        place = webhook.group, webhook.group_seq, webhook.group_prev
        signed_by = frozenset(
            one for one in secrets if signature(key_of(one), webhook.id, webhook.timestamp, body) in signatures
        )
        verdict, was_done, done = self._guard.check(webhook), webhook.id in self._done, self._handles(answer)
        if verdict is Verdict.REPEAT:
            latency_s, answer = 0.01, respond(200)
        elif done:
            self._guard.done(webhook)
            self._done.add(webhook.id)
        received = Received(code, *place, signed_by, len(signatures), verdict, done=done, was_done=was_done)
        self.history.add(Kind.RECEIVED, webhook.id, SENDER.get(), received)
        return latency_s, answer

    def _handles(self, answer: Response | DeliveryError) -> bool:
        """Whether it is handled before the answer; a connection that breaks may do so before or after that."""
        if isinstance(answer, DeliveryError):
            return isinstance(answer, ConnectionBrokenError) and self._dice.hit("handled, and the answer lost", 0.5)
        return answer.status < 300 and b"false" not in answer.body


def _pair(line: str) -> tuple[str, str]:
    name, _, value = line.partition(": ")
    return name, value
