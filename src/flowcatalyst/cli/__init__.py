"""The commands of `flowcatalyst`, one module each.

They read options and print; the work is done below.
"""
