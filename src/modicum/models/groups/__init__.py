"""Models whose coefficients vary by group: terms, explicit effects, effects integrated out.

Nothing is imported here, to avoid a cycle: `models.linear` imports `terms`, and `integrated`
imports `models.linear`.
"""
