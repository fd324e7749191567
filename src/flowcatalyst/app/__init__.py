"""Composition roots: build everything from the settings, open and close it in order.

The only package that knows all others but the commands.
"""
