"""The router itself: order, pools, limits, retries, settling. A pure core decides; a shell polls, posts and settles.

Knows queues by their contract and of HTTP what an answer means, and nothing of settings, files or operators.
"""
