"""What somebody tries the router out with: receivers that judge order, seeded messages, the demo.

Not part of a router in production.
"""
