"""Choosing what the user need not: subsample size, blocks, refreshes, weights."""

from modicum.tuning.expected import expected_residuals
from modicum.tuning.pilot import Pilot, study
from modicum.tuning.subsample import Choice, choose, refresh_acceptance

__all__ = ["Choice", "Pilot", "choose", "expected_residuals", "refresh_acceptance", "study"]
