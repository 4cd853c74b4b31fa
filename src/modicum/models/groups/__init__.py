"""Models whose coefficients vary by group: terms, effects held explicitly, effects integrated out.

Nothing is imported here: `models.linear` needs `terms`, and `integrated` needs `models.linear`.
"""
