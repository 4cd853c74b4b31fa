"""Targets with known answers, and what tests of several packages share."""
