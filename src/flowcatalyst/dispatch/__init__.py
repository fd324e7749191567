"""Dispatch jobs: webhook calls that must happen, each with a payload, an ordering mode and a retry schedule of its own.

Knows the router as a queue does: a job store is a queue of jobs. Knows nothing of the API, settings and processes.
"""
