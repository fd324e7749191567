"""Dispatch jobs in simulation: the real store and the real engines of several processes, on virtual time."""
