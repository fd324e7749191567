"""A message that its queue shows again: whether it is the one we have, and what is newer about it. Pure."""

from flowcatalyst.core.message import Delivery, encode_pointer


def adopt_receipt(owned: Delivery, again: Delivery) -> None:
    """The queue showed a message again that we have: only its newest receipt is good."""
    owned.receipt = again.receipt
    owned.lease_until = again.lease_until
    owned.receive_count = again.receive_count
    owned.recalled = False  # that was said of the lease before
    if again.terms is not None:  # its queue keeps its attempts, and others may have made some
        owned.failures, owned.earlier = again.failures, again.earlier
    if owned.tries == 0:  # what a request said of its place stays as it was said
        owned.position, owned.stamp = again.position, again.stamp


def was_changed(owned: Delivery, again: Delivery) -> bool:
    """Whether a message that its queue shows again is another one than we have: somebody edited it there."""
    return content_mark(owned) != content_mark(again)


def content_mark(delivery: Delivery) -> int:
    """Tells what a message says from what it said before an edit; 0 where nobody can edit it."""
    if delivery.terms is None:  # only a queue in which messages can be edited brings them
        return 0
    return hash((delivery.body, encode_pointer(delivery.pointer), delivery.terms))
