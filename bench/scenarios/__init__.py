"""Starvation, measured from outside: the real product as a process, real receivers on loopback, one figure each.

Nothing here imports the product, so the same script measures any checkout: `python -m bench.scenarios --code PATH`.
"""
