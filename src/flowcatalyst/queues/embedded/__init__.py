"""The embedded queue: a SQLite file that behaves like SQS FIFO."""
