import asyncpg
import pytest

from flowcatalyst.storage.postgres import PostgresServer
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


@pytest.mark.parametrize(
    ("user", "setting", "variable", "said"),
    [
        ("ann", "postgres.user", "bob", "the user is ann, from postgres.user; set postgres.user and postgres.password"),
        (
            "ann",
            "platform.database_url",
            "bob",
            "the user is ann, from platform.database_url; set platform.database_url",
        ),
        (
            None,
            "postgres.user",
            "bob",
            "the user is bob, from the variable PGUSER; set postgres.user and postgres.pass",
        ),
        (
            None,
            "postgres.user",
            "",
            "no user was given, so it is that of this process; set postgres.user and postgres.",
        ),
    ],
)
def test_a_user_that_is_refused_is_named_with_where_he_came_from(
    user: str | None, setting: str, variable: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGUSER", variable)
    server = PostgresServer((("h", 5432),), "orders", user, user_setting=setting)
    words = in_words(asyncpg.InvalidPasswordError("no"), "orders", server.who)
    assert words.startswith(f"refuses our user or password: {said}")
