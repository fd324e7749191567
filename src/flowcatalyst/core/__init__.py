"""Words that everybody uses: messages, targets, errors, warnings, and the only clock, dice and task maker.

Knows nothing else of FlowCatalyst, no queue and no HTTP.
"""
