"""Pilot studies of few rows, for tests that are not about what these studies find."""

from contextlib import contextmanager

import pytest

from modicum.methods.ecs import pilot

FEW = 1_024


@contextmanager
def small_pilots():
    """Let HMC-ECS study `FEW` rows, on which it also runs its pilot chains, instead of 8,192."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pilot, "PILOT_ROWS", FEW)
        yield
