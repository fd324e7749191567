"""The name of a group is one segment of its path, whatever it holds."""

import pytest

from flowcatalyst.api.group_paths import with_one_segment


@pytest.mark.parametrize(
    ("method", "path", "routed"),
    [
        ("GET", b"/api/message-groups/order:1", "/api/message-groups/order%3A1"),
        ("GET", b"/api/message-groups/order%3A1", "/api/message-groups/order%3A1"),
        ("GET", b"/api/message-groups/a/b", "/api/message-groups/a%2Fb"),
        ("GET", b"/api/message-groups/a%2Fhold", "/api/message-groups/a%2Fhold"),
        ("GET", b"/api/message-groups/a%3Fb?x=1", "/api/message-groups/a%3Fb"),
        ("POST", b"/api/message-groups/a/b/hold", "/api/message-groups/a%2Fb/hold"),
        ("POST", b"/api/message-groups/a%2Fhold/hold", "/api/message-groups/a%2Fhold/hold"),
        ("POST", b"/api/message-groups/%C3%A4/release", "/api/message-groups/%C3%A4/release"),
        ("POST", b"/api/message-groups/x", "/api/message-groups/x"),
        ("POST", b"/api/message-groups/..%2F..%2Fhealth/hold", "/api/message-groups/..%2F..%2Fhealth/hold"),
        ("GET", b"/api/message-groups/", None),
        ("GET", b"/api/message-groups?blocked=true", None),
        ("GET", b"/api/dispatch-jobs/a%2Fb", None),
        ("GET", b"", None),
    ],
)
def test_a_name_becomes_one_segment(method: str, path: bytes, routed: str | None) -> None:
    assert with_one_segment(method, path) == routed
