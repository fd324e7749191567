"""Storage that lasts: SQLite files with one writing thread and one that reads, PostgreSQL, and the migrations of both.

Does not know what is kept in them.
"""
