"""What one client of a consumer knows about the messages that JetStream keeps for it. Pure."""

from collections.abc import Iterable
from typing import Final

ACKS_REMEMBERED: Final = 100_000


class Ledger:
    """By sequence in the stream."""

    def __init__(self, acks_remembered: int = ACKS_REMEMBERED) -> None:
        self.held: dict[int, str] = {}  # handed out and not settled, with the newest reply subject
        self.nacked: dict[int, str] = {}  # to be shown again at once; JetStream is told before the next pull
        self.newest = 0  # highest sequence that ever came
        self._delayed: dict[int, float] = {}  # nacked with a delay, and when it ends (monotonic)
        self._acked: dict[int, None] = {}  # the newest acks: a server that crashes forgets some
        self._acks_remembered = acks_remembered

    def __repr__(self) -> str:
        return (
            f"<Ledger held={sorted(self.held)} nacked={sorted(self.nacked)} "
            f"delayed={sorted(self._delayed)} acked={len(self._acked)}>"
        )

    def came(self, seq: int, reply: str) -> None:
        self.held[seq] = reply
        self.newest = max(self.newest, seq)
        self._delayed.pop(seq, None)
        self.nacked.pop(seq, None)

    def ack(self, seq: int) -> None:
        self.held.pop(seq, None)
        self._acked[seq] = None
        if len(self._acked) > self._acks_remembered:
            del self._acked[next(iter(self._acked))]

    def requeue(self, seq: int, reply: str) -> None:
        self.held.pop(seq, None)
        self.nacked[seq] = reply

    def delay(self, seq: int, until: float) -> None:
        self.held.pop(seq, None)
        self._delayed[seq] = until

    def delayed(self, now: float) -> int:
        """How many wait for their delay."""
        self._delayed = {seq: until for seq, until in self._delayed.items() if until > now}
        return len(self._delayed)

    def acks_among(self, sequences: Iterable[int]) -> list[int]:
        return [seq for seq in sequences if seq in self._acked]

    def foreign(self, sequences: Iterable[int], now: float) -> list[int]:
        """Those that we do not have and that wait for nothing: if JetStream hides them, it is from everybody."""
        self.delayed(now)
        known = (self.held, self._delayed, self._acked)
        return [seq for seq in sequences if not any(seq in those for those in known)]

    def let_go(self) -> None:
        """Nobody works on what was handed out any more."""
        self.held.clear()
        self.nacked.clear()

    def clear(self) -> None:
        """The stream is another one: its numbers mean other messages."""
        for those in (self.held, self.nacked, self._delayed, self._acked):
            those.clear()
        self.newest = 0
