"""What steers a running router and tells how it is: settings, config sync, standby, health, metrics, records.

Does not know who asks: the API, commands and the simulation are above it.
"""
