"""What a stream lost while nobody looked: it was made anew, so was its consumer, or messages vanished from it. Pure."""

from contextlib import suppress
from typing import Any, Final

from flowcatalyst.queues.contract import Loss

Json = dict[str, Any]
SAME_CONSUMER_S: Final = 0.1
_GUESS: Final = "purged, deleted or dropped by its limits"


class LossWatch:
    """Compares each look at the stream and the consumer with the one before."""

    def __init__(self, stream: str, consumer: str) -> None:
        self.found: list[Loss] = []
        self._stream = stream
        self._consumer = consumer
        self._created = ""  # the consumer; empty before the first look
        self._place = (0, 0)  # of the consumer: in the stream, and how many deliveries it made
        self._pending = 0  # how many messages waited behind ...
        self._pending_at = 0  # ... this delivery

    def came(self, delivery: int, pending: int) -> None:
        """A message, and how many waited behind it when it was delivered."""
        if delivery > self._pending_at:
            self._pending, self._pending_at = pending, delivery

    def stream_was_made_anew(self, in_hand: int) -> None:
        held = self._pending + in_hand
        text = f"stream {self._stream} was deleted and created again: it held {held} messages when last seen"
        self.found.append(Loss(text, held or None))  # what was published since the newest delivery nobody knows
        self._created, self._pending, self._pending_at = "", 0, 0

    def look(self, state: Json, *, keeps_acknowledged: bool) -> None:
        """At what the server says of the consumer."""
        seq, delivery = state["delivered"]["stream_seq"], state["delivered"]["consumer_seq"]
        missing = self._pending - state["num_pending"] - (delivery - self._pending_at)
        passed_over = (seq - self._place[0]) - (delivery - self._place[1])
        created, self._created = self._created, state["created"]
        self._place, self._pending, self._pending_at = (seq, delivery), state["num_pending"], delivery
        if created and _are_two(created, self._created):
            what = "everything that the stream still has" if keeps_acknowledged else "what was not acknowledged"
            text = f"consumer {self._consumer} of stream {self._stream} was deleted and created again: "
            text += f"{what} will be delivered again"
            self.found.append(Loss(text, 0))
            return
        # Two lower bounds. What waited either still waits or was delivered, and deliveries are counted. And a consumer
        # passes nothing over in its stream, but with a filter what is not for it.
        is_filtered = state["config"].get("filter_subject") or state["config"].get("filter_subjects")
        vanished = missing if is_filtered else max(missing, passed_over)
        if created and vanished > 0:
            text = f"at least {vanished} messages vanished from stream {self._stream} before they were delivered"
            self.found.append(Loss(f"{text}: they were {_GUESS}", vanished))


def _are_two(created: str, again: str) -> bool:
    """Whether these are times of two consumers: a server that restarts tells of the same one a little differently."""
    if created[:16] == again[:16]:  # the same minute
        with suppress(ValueError):
            return abs(float(created[17:].rstrip("Z")) - float(again[17:].rstrip("Z"))) > SAME_CONSUMER_S
    return created != again
