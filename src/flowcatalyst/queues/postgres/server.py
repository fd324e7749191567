"""Which PostgreSQL server an address means."""

import ssl
from pathlib import Path

from flowcatalyst.core.errors import ConfigurationError
from flowcatalyst.queues.address import PostgresAddress
from flowcatalyst.storage.postgres import DEFAULT_SCHEMA, PostgresServer


def server_at(address: PostgresAddress, user: str | None, password: str | None, ca_file: Path | None) -> PostgresServer:
    """The database that an address means. Raises `ConfigurationError` if its certificates cannot be read."""
    mode: str | ssl.SSLContext = address.sslmode or ("prefer" if ca_file is None else "verify-full")
    if ca_file is not None and mode != "disable":
        try:
            context = ssl.create_default_context(cafile=str(ca_file))
        except (OSError, ssl.SSLError) as error:
            raise ConfigurationError(f"postgres.ca_file {ca_file} cannot be used: {error}") from None
        context.check_hostname = mode == "verify-full"
        mode = context
    schema = address.schema or DEFAULT_SCHEMA
    return PostgresServer(address.hosts, address.database, user, password, mode, schema)
