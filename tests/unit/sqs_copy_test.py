"""A copy that waits outside its group on SQS: what it carries of the message it stands for."""

from flowcatalyst.queues.sqs.messages import read, retry_entry


def received(message_id: str, attributes: dict[str, object] | None = None) -> dict[str, object]:
    return {
        "MessageId": message_id,
        "ReceiptHandle": "handle",
        "Body": "<order/>",
        "Attributes": {"MessageGroupId": "g", "ApproximateReceiveCount": "1"},
        "MessageAttributes": attributes or {},
    }


def test_a_copy_of_a_copy_has_the_id_of_the_first_message() -> None:
    delivery, _ = read(received("first"), 0.0, 60.0)
    assert delivery.message_id == ""
    for copy_id in ("second", "third"):
        entry = retry_entry(delivery, 10.0, 10.0, 100_000)
        assert entry is not None
        delivery, note = read(received(copy_id, entry["MessageAttributes"]), 0.0, 60.0)
        assert note is not None
        assert (delivery.broker_id, delivery.message_id) == (copy_id, "first")
