"""What steers a running router and tells how it is: settings, config sync, standby, health, metrics, records.

An engine lives for one primary session; what has to survive it is here. Does not know who asks: the API, commands and
the simulation are above it.
"""
