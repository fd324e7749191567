"""Tools for who works on this repository."""
