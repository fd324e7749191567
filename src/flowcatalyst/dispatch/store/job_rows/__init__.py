"""What a SQLite job store does to its database: plain functions of a connection, each a part of one transaction.

Lanes, leases and order are those of embedded queues. What a job is beyond its place in a lane is here.
"""
