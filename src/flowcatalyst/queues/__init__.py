"""Where messages come from: the contract of a queue, and what each broker makes of it.

Adapters know their broker and the contract, neither each other nor who polls them.
"""
