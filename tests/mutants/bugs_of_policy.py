"""Bugs in permits, breakers and the failure policy."""

from typing import Final

from tests.mutants.mutant import Hunter, Mutant

POLICY_BUGS: Final = (
    Mutant(
        "a permit is taken twice",
        "routing/rate.py",
        (
            (
                """\
            self._starts.append(now)
""",
                """\
            self._starts += (now, now)
""",
            ),
        ),
        hunter=Hunter.MACHINES,
    ),
    Mutant(
        "a lowered rate limit waits for the oldest start only",
        "routing/rate.py",
        (
            (
                """\
        return self._starts[len(self._starts) - self.per_minute] + WINDOW_S
""",
                """\
        return self._starts[0] + WINDOW_S
""",
            ),
        ),
        hunter=Hunter.MACHINES,
    ),
    Mutant(
        "the window of the rate jumps instead of sliding",
        "routing/rate.py",
        (
            (
                """\
        while starts and starts[0] + WINDOW_S <= now:
            starts.popleft()
""",
                """\
        if starts and starts[0] + WINDOW_S <= now:
            starts.clear()
""",
            ),
        ),
    ),
    Mutant(
        "a reload forgets the permits that were taken",
        "routing/rate.py",
        (
            (
                """\
        self.per_minute = per_minute
""",
                """\
        self.per_minute = per_minute
        self._starts.clear()
""",
            ),
        ),
    ),
    Mutant(
        "all endpoints share one breaker",
        "delivery/mediator.py",
        (
            (
                """\
        endpoint = _endpoint(url)
""",
                """\
        endpoint = _endpoint(url).partition(":")[0]
""",
            ),
        ),
    ),
    Mutant(
        "a breaker never closes again",
        "routing/breaker.py",
        (
            (
                """\
                if self._successes >= SUCCESSES_TO_CLOSE:
                    self.reset()
""",
                "",
            ),
        ),
    ),
    Mutant(
        "a call that an open breaker refuses keeps it open longer",
        "routing/breaker.py",
        (
            (
                """\
                self.rejected += 1
                return self.opened_at + OPEN_S
""",
                """\
                self.rejected += 1
                self.opened_at = now
                return now + OPEN_S
""",
            ),
        ),
    ),
    Mutant(
        "an open breaker gives messages back to a queue that does not keep order",
        "routing/policy.py",
        (
            (
                """\
    if queue.ordered_redelivery and delivery.held_s + wait_s > MAX_HOLD_S:
""",
                """\
    if delivery.held_s + wait_s > MAX_HOLD_S:
""",
            ),
        ),
    ),
    Mutant(
        "a failed message goes back to a queue that does not keep order",
        "routing/policy.py",
        (
            (
                """\
    if queue.ordered_redelivery or not delivery.blocks_group:
        return Nack(delay_s)
""",
                """\
    if True:
        return Nack(delay_s)
""",
            ),
        ),
    ),
)
