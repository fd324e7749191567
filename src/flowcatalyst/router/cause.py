"""Cause: why a message is not moving, in one word for programs; `explain` has the sentence."""

from enum import StrEnum


class Cause(StrEnum):
    ANSWER = "ANSWER"  # its attempt is under way
    SLOW_HEAD = "SLOW_HEAD"  # behind one whose attempt is under way
    BEHIND_HEAD = "BEHIND_HEAD"  # behind one that waits itself
    AWAY_HEAD = "AWAY_HEAD"  # behind one that its queue has to show again
    RETRY = "RETRY"  # its next attempt is not due
    BREAKER = "BREAKER"
    ENDPOINT_SHARE = "ENDPOINT_SHARE"
    RATE_LIMIT = "RATE_LIMIT"
    SLOTS = "SLOTS"
    DIVISION = "DIVISION"  # other processes have what it needs
    POOL_PAUSED = "POOL_PAUSED"
    ENDPOINT_PAUSED = "ENDPOINT_PAUSED"
    GROUP_HELD = "GROUP_HELD"
    FENCE = "FENCE"  # this router may start nothing now
    CONFIRMATION = "CONFIRMATION"  # done with, but for the word of its queue
    CAPACITY = "CAPACITY"
