import asyncpg
import pytest

from flowcatalyst.storage.postgres_errors import in_words


@pytest.mark.parametrize(
    "error",
    [
        asyncpg.InternalClientError("cannot switch to state 12; another operation (2) is in progress"),
        asyncpg.InterfaceError("cannot perform operation: another operation is in progress"),
    ],
)
def test_the_inner_state_of_the_client_is_not_told_when_a_connection_is_closed_under_a_call(error: Exception) -> None:
    assert in_words(error, "orders") == "cannot be reached: the connection was closed in the middle of a call"
