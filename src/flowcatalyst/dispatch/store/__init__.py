"""Where jobs are kept: one contract, a SQLite file or a PostgreSQL database behind it."""
