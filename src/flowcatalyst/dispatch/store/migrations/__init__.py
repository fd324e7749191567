"""The versions of a file of jobs: the lanes of embedded queues first, then its own tables."""
