"""How simulated endpoints behave: every row of the response table, and every way not to answer."""

import random
from math import inf

from flowcatalyst.core.errors import ConnectError, ConnectionBrokenError, DeliveryError, TargetRefusedError
from flowcatalyst.http.contract import Response
from flowcatalyst.simulation.endpoint import Behaviour, respond
from tests.sim.plan import HANDLED_HOST, STEP_S, Plan

Answer = tuple[float, Response | DeliveryError]
OUTAGE = (20.0, 70.0)  # "down" is down between these
PROBED_HANGS_FROM, PROBED_ANSWERS_FROM = 20.0, 45.0  # before that "probed" refuses connections


def _in_step(behaviour: Behaviour) -> Behaviour:
    """Answers come at whole tenths of a second, many of them at the very same moment."""

    def answer(now: float, message_id: str) -> Answer:
        latency_s, response = behaviour(now, message_id)
        return max(STEP_S, round((now + latency_s) / STEP_S) * STEP_S - now), response

    return answer


class Endpoints:
    """The hosts of a plan. `heal` makes all of them answer 200, quickly."""

    def __init__(self, plan: Plan, rng: random.Random) -> None:
        self._troubles = plan.endpoint_troubles
        self._rng = rng
        self._timeout_s = plan.http_timeout_s
        self._in_step = plan.in_step
        self._healed = False
        self._stepped = any(act.what == "step" for act in plan.acts)
        self.seen: dict[str, int] = {}

    def behaviours(self) -> dict[str, Behaviour]:
        plain: dict[str, Behaviour] = {
            "healthy": self._good,
            HANDLED_HOST: self._good,
            "steady": self._steady,
            "flaky": self._flaky,
            "odd": self._odd,
            "down": self._down,
            "failing": self._failing,
            "refusing": self._refusing,
            "silent": self._silent,
            "probed": self._probed,
            "busy": self._busy,
        }
        return {host: _in_step(one) for host, one in plain.items()} if self._in_step else plain

    def heal(self) -> None:
        self._healed = True

    def _good(self, now: float, message_id: str) -> Answer:
        return self._rng.uniform(0.01, 0.2), respond(200)

    def _steady(self, now: float, message_id: str) -> Answer:
        return self._rng.uniform(0.3, 1.0), respond(200)

    def _flaky(self, now: float, message_id: str) -> Answer:
        return self._troubled(0.35)

    def _odd(self, now: float, message_id: str) -> Answer:
        return self._troubled(0.8)

    def _down(self, now: float, message_id: str) -> Answer:
        """Fails always while troubles last, in the way of the plan; without an outage in the plan it is flaky."""
        if self._healed:
            return self._good(now, message_id)
        if "outage" in self._troubles:
            if OUTAGE[0] <= now < OUTAGE[1]:
                return 0.01, ConnectError("connection refused")
            return self._troubled(0.2)
        return self._troubled(1.0)

    def _failing(self, now: float, message_id: str) -> Answer:
        return (0.05, respond(200)) if self._healed else (self._rng.uniform(0.01, 0.1), respond(500))

    def _refusing(self, now: float, message_id: str) -> Answer:
        return (0.05, respond(200)) if self._healed else (0.01, ConnectError("connection refused"))

    def _silent(self, now: float, message_id: str) -> Answer:
        if self._healed:
            return 0.05, respond(200)
        self._note("silence")
        return inf, respond(200)

    def _probed(self, now: float, message_id: str) -> Answer:
        if now < PROBED_HANGS_FROM:
            return 0.01, ConnectError("connection refused")
        if now < PROBED_ANSWERS_FROM:
            self._note("probe hung")
            return inf, respond(200)
        return self._good(now, message_id)

    def _busy(self, now: float, message_id: str) -> Answer:
        latency_s = self._rng.uniform(0.01, 0.3)
        if self._healed or self._rng.random() >= 0.4:
            return latency_s, respond(200)
        self._note("asked for patience")
        seconds = self._rng.choice((1, 1, 2, 5))
        if self._rng.random() < 0.5:
            return latency_s, respond(429, b"", retry_after=str(seconds))
        return latency_s, respond(200, b'{"ack":false,"delaySeconds":%d}' % seconds)

    def _note(self, kind: str) -> None:
        self.seen[kind] = self.seen.get(kind, 0) + 1

    def _troubled(self, share: float) -> Answer:
        rng = self._rng
        latency_s = rng.uniform(0.01, 0.5)
        if "slow" in self._troubles and rng.random() < 0.2:
            latency_s = rng.uniform(1.0, self._timeout_s)
        if self._healed or rng.random() >= share:
            return (0.05 if self._healed else latency_s), respond(200, rng.choice((b"", b'{"ack":true}', b"fine")))
        kinds = sorted(self._troubles - {"slow", "outage"})
        if not kinds:
            return latency_s, respond(200)
        kind = rng.choice(kinds)
        self._note(kind)
        return self._last_error(kind, latency_s)

    def _last_error(self, kind: str, latency_s: float) -> Answer:
        rng = self._rng
        match kind:
            case "server errors":
                return latency_s, respond(rng.choice((500, 502, 503)))
            case "client errors":
                refused = TargetRefusedError("target is denied")
                return latency_s, rng.choice((respond(400), respond(404), respond(501), refused))
            case "not acked":
                body = rng.choice((b'{"ack":false}', b'{"ack":false,"delaySeconds":7}'))
                return latency_s, respond(200, body)
            case "rate limited":
                date = {"retry_after": "Fri, 15 Jan 2027 08:01:00 GMT"}  # of no use where the clock is stepped
                headers: dict[str, str] = rng.choice(({}, {"retry_after": "4"}, {} if self._stepped else date))
                return latency_s, respond(429, b"", **headers)
            case "resets":
                return latency_s, rng.choice((ConnectError("refused"), ConnectionBrokenError("reset by peer")))
            case "unresolved":
                return rng.uniform(3.0, 10.0), ConnectError("name or service not known")
            case "timeouts":
                return self._timeout_s + 1.0, respond(200)  # a success that comes after we hung up
            case _:
                return latency_s, respond(rng.choice((204, 302, 101, 600)))
