"""Running chains: many steps, in chunks, with rows read ahead, progress, checkpoints and limits.

There are no statistics here: what a step is, and what its draws are worth, is decided elsewhere.
"""
