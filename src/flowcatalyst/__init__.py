"""FlowCatalyst: an ordered message router. Queue in, HTTP out, strict order per message group."""

__version__ = "0.1.0"
