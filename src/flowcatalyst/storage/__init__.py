"""Files that last: one SQLite file with one writing thread and one that reads, and the migrations of its tables.

Does not know what is kept in them.
"""
