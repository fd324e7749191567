"""One attempt: a POST to an endpoint, and what its answer means.

Knows nothing of queues, groups and pools, nor what follows from an outcome.
"""
