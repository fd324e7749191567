"""The HTTP API: its server, who may use it, and how it says what is wrong. One module per resource in `router`.

Handlers get a view of the router and never build anything.
"""
