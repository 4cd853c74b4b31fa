"""Pilot studies of few rows, for tests that are not about what these studies find."""

from contextlib import contextmanager

import numpy as np
import pytest

from modicum.methods.pilot import study as pilot
from modicum.methods.pilot.pilot_residuals import Pilot

FEW = 1_024


@contextmanager
def small_pilots():
    """Let HMC-ECS study `FEW` rows, on which it also runs its pilot chains, instead of 8,192."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pilot, "PILOT_ROWS", FEW)
        yield


def moments(variance=1.0, third=0.0, fourth=0.0, slope=0.01, draws=32, **more):
    """Return a pilot study with these moments (numbers, or one per draw), and `more` fields."""
    by_draw = {"variance": variance, "third": third, "fourth": fourth, "mean": more.pop("mean", 0)}
    return Pilot(
        **{name: np.broadcast_to(np.asarray(a, float), draws) for name, a in by_draw.items()},
        **{"slope": np.full(8, float(slope)), "top_share": 0.1, "tail": 0.1}
        | {"values": np.zeros((draws, 1)), "weight": np.ones(1)}
        | {"share": np.full(draws, 1 / draws), "distance": np.full(draws, np.inf)}
        | more,
    )
