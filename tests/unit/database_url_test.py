"""platform.database_url: what it means, and that nothing of it is ever repeated."""

import pytest

from flowcatalyst.core.errors import ConfigurationError
from flowcatalyst.queues.address import DatabaseUrl, PostgresAddress, parse_database_url

SECRET = "s3cret"


def test_a_whole_url() -> None:
    found = parse_database_url("postgresql://jobs:p%40ss@a.example:5433,b.example/main?schema=own&sslmode=verify-full")
    address = PostgresAddress((("a.example", 5433), ("b.example", 5432)), "main", "", "own", "verify-full")
    assert found == DatabaseUrl(address, "jobs", "p@ss")


def test_who_we_are_may_be_said_elsewhere() -> None:
    found = parse_database_url("postgres://localhost/main")
    assert (found.user, found.password) == (None, None)
    assert parse_database_url("postgres://jobs@localhost/main").password is None


def test_a_password_is_not_in_the_repr() -> None:
    assert SECRET not in repr(parse_database_url(f"postgresql://jobs:{SECRET}@localhost/main"))


@pytest.mark.parametrize(
    ("url", "what"),
    [
        (f"mysql://jobs:{SECRET}@localhost/main", "has no known scheme"),
        (f"postgresql:jobs:{SECRET}@localhost/main", "has no known scheme"),
        (f"postgresql://:{SECRET}@localhost/main", "has a password without a user"),
        (f"postgresql://jobs:{SECRET}@/main", "has no host"),
        (f"postgresql://jobs:{SECRET}@localhost", "has no database name"),
        (f"postgresql://jobs:{SECRET}@localhost:x/main", "has an invalid port"),
        (f"postgresql://jobs:{SECRET}@localhost/main?queue=x", "has an option other than schema and sslmode"),
        (f"postgresql://jobs:1?{SECRET}=1@localhost/main", "has an @"),
        (f"postgresql://jobs:{SECRET}@localhost/main?schema=A", "has the option schema with a value"),
        (f"postgresql://jobs:{SECRET}@localhost/main#x", "has a fragment"),
    ],
)
def test_what_is_wrong_is_said_without_the_url(url: str, what: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        parse_database_url(url)
    assert what in str(caught.value)
    assert SECRET not in str(caught.value)
