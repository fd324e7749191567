"""The name of a group is one segment of its path, whatever it holds."""

import pytest

from flowcatalyst.api.group_paths import with_one_segment


@pytest.mark.parametrize(
    ("path", "routed"),
    [
        (b"/api/message-groups/order:1", "/api/message-groups/order%3A1"),
        (b"/api/message-groups/order%3A1", "/api/message-groups/order%3A1"),
        (b"/api/message-groups/a/b", "/api/message-groups/a%2Fb"),
        (b"/api/message-groups/a%2Fhold", "/api/message-groups/a%2Fhold"),
        (b"/api/message-groups/a%3Fb?x=1", "/api/message-groups/a%3Fb"),
        (b"/api/message-groups/a/b/hold", "/api/message-groups/a%2Fb/hold"),
        (b"/api/message-groups/a%2Fhold/hold", "/api/message-groups/a%2Fhold/hold"),
        (b"/api/message-groups/%C3%A4/release", "/api/message-groups/%C3%A4/release"),
        (b"/api/message-groups/x", "/api/message-groups/x"),
        (b"/api/message-groups/hold", "/api/message-groups/hold"),
        (b"/api/message-groups/hold/hold", "/api/message-groups/hold/hold"),
        (b"/api/message-groups/..%2F..%2Fhealth/hold", "/api/message-groups/..%2F..%2Fhealth/hold"),
        (b"/api/message-groups/", None),
        (b"/api/message-groups?blocked=true", None),
        (b"/api/dispatch-jobs/a%2Fb", None),
        (b"", None),
    ],
)
def test_a_name_becomes_one_segment(path: bytes, routed: str | None) -> None:
    assert with_one_segment(path) == routed
