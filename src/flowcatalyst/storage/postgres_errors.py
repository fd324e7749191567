"""What PostgreSQL says when something is wrong, as one sentence for people. Pure."""

from typing import Final

import asyncpg

# A deadlock, or a conflict of transactions: nothing happened, and the same again works.
REPEATABLE: Final = frozenset({"40P01", "40001"})
_NO_TABLES: Final = frozenset({"42P01", "42883", "3F000"})  # table, function, schema
_ADVICE: Final = {
    "28P01": "refuses our user or password: {who}",
    "28000": "does not let our user in: {who}, and check pg_hba.conf there",
    "3D000": "has no database {database}: create it first",
    "42501": "does not allow it: {said}; let our user own the schema, or create in the database",
    "53100": "cannot grow because its disk is full: free some space",
    "53300": "has no connection left for us: raise its max_connections, or let fewer routers use it",
    "55P03": "has what we need locked by somebody else: try again later",
    "57014": "took too long for a statement and gave it up: look for what else runs there",
    "57P03": "is starting or stopping",
    "25006": "is a standby that cannot be written: name the primary, or all hosts",
    "25P03": "ended our transaction, in which nothing happened for too long",
}
_LASTING: Final = ("22", "23", "28", "3D", "42", "0A")  # classes that another try does not mend


def in_words(error: BaseException, database: str, who: str = "") -> str:
    """What follows after the name of the server. `who` says whom we claim to be, and where to change that."""
    said = " ".join(str(error).split())
    match error:
        case asyncpg.InternalClientError() | asyncpg.InterfaceError() if "another operation" in said:
            return "cannot be reached: the connection was closed in the middle of a call"
        case asyncpg.PostgresError() if error.sqlstate in _ADVICE:
            return _ADVICE[error.sqlstate].format(database=database, said=said, who=who)
        case asyncpg.PostgresConnectionError() | asyncpg.InterfaceError():
            return f"cannot be reached: {said or 'the connection broke'}"
        case asyncpg.PostgresError() if error.sqlstate is not None and error.sqlstate.startswith("57P"):
            return "is stopping, or its operator ended our connection"
        case asyncpg.PostgresError():
            return f"refuses it: {said}"
        case ConnectionRefusedError():
            return "cannot be reached: connection refused"
        case TimeoutError():
            return "does not answer in time"
        case OSError():
            return f"cannot be reached: {error.strerror or said or 'the connection broke'}"
        case _:
            return f"could not be used: {said or type(error).__name__}"


def is_lasting(error: BaseException) -> bool:
    """Whether a person has to do something before it can work."""
    state = error.sqlstate if isinstance(error, asyncpg.PostgresError) else None
    return state is not None and state.startswith(_LASTING) and state not in _NO_TABLES


def lacks_tables(error: BaseException) -> bool:
    return isinstance(error, asyncpg.PostgresError) and error.sqlstate in _NO_TABLES
