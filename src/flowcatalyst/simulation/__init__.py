"""The real engine on virtual time, for proof and for `flowcatalyst simulate`.

Nothing but its command and its tests knows it.
"""
