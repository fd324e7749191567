"""How the endpoints of simulated jobs behave."""

import random
from math import inf

from flowcatalyst.core.errors import ConnectError, ConnectionBrokenError, DeliveryError
from flowcatalyst.http.contract import Response
from flowcatalyst.simulation.endpoint import Behaviour, respond
from flowcatalyst.simulation.queue import Dice

Answer = tuple[float, Response | DeliveryError]
OUTAGE = (4.0, 14.0)  # "down" is down between these


class Endpoints:
    """The hosts of a plan. `heal` makes all of them answer 2xx, quickly."""

    def __init__(self, troubles: tuple[str, ...], rng: random.Random, dice: Dice) -> None:
        self._troubles, self._rng, self._dice = troubles, rng, dice
        self._healed = False

    def behaviours(self) -> dict[str, Behaviour]:
        return {
            "healthy": self._good,
            "slow": self._slow,
            "sluggish": self._sluggish,
            "flaky": self._flaky,
            "odd": self._odd,
            "down": self._down,
        }

    def heal(self) -> None:
        self._healed = True

    def _good(self, now: float, job_id: str) -> Answer:
        return self._rng.uniform(0.01, 0.2), respond(self._rng.choice((200, 202, 204)))

    def _slow(self, now: float, job_id: str) -> Answer:
        return self._rng.uniform(0.05, 0.2 if self._healed else 2.5), respond(200)

    def _sluggish(self, now: float, job_id: str) -> Answer:
        """Many of its attempts outlive the session of a process that is cut off, or the division that they began in."""
        return self._rng.uniform(0.05, 0.2 if self._healed else 14.0), respond(200)

    def _flaky(self, now: float, job_id: str) -> Answer:
        return self._troubled(0.35, now, job_id)

    def _odd(self, now: float, job_id: str) -> Answer:
        return self._troubled(0.75, now, job_id)

    def _down(self, now: float, job_id: str) -> Answer:
        if not self._healed and OUTAGE[0] <= now < OUTAGE[1]:
            return 0.01, ConnectError("connection refused")
        return self._good(now, job_id)

    def _troubled(self, share: float, now: float, job_id: str) -> Answer:
        rng = self._rng
        if self._healed or not self._troubles or rng.random() >= share:
            return self._good(now, job_id)
        kind = rng.choice(self._troubles)
        self._dice.note(f"endpoint: {kind}")
        latency_s = rng.uniform(0.01, 0.8)
        match kind:
            case "server error":
                return latency_s, respond(500)
            case "gateway":
                return latency_s, respond(503)
            case "refused":
                return 0.01, ConnectError("connection refused")
            case "reset":
                return latency_s, ConnectionBrokenError("reset by peer")
            case "hang":
                return inf, respond(200)
            case "bad request":
                return latency_s, respond(rng.choice((400, 404)))
            case "429":
                return latency_s, respond(429, b"", retry_after=rng.choice(("1", "3")))
            case "429 bare":
                return latency_s, respond(429)
            case _:
                return latency_s, respond(200, rng.choice((b'{"ack":false}', b'{"ack":false,"delaySeconds":2}')))
