"""The dashboard: a page of plain modules, styles and vendored libraries, which the API serves as they are.

It knows the API from the outside, as any client does; nothing of the router is imported here.
"""
