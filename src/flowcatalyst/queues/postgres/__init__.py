"""PostgreSQL as a queue."""
