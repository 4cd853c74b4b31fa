"""Models whose coefficients vary by group: terms, effects held explicitly, effects integrated out.

Nothing is imported here: linear predictors read `terms`, and what integrates reads both.
"""
