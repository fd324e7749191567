"""`python -m bench.flood`: what strangers without credentials can do to a router that delivers meanwhile."""
