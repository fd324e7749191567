"""Resources of the router, one module each."""
