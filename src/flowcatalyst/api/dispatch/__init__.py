"""Resources of the dispatch platform, one module each."""
