"""What to know of groups at the anchor: too few of them, or a scale that may be zero."""

from __future__ import annotations

import numpy as np

from modicum.errors import ModicumWarning
from modicum.models import Target
from modicum.models.priors.grouped import Effects

__all__ = ["group_notes"]

FEW = 5  # levels below which their standard deviation is mostly its prior
UNTOLD = 1.0  # standard errors from 0 to an estimate of tau^2, below which tau may be 0


def group_notes(
    target: Target, point: np.ndarray, covariance: np.ndarray, names: tuple[str, ...]
) -> list[ModicumWarning]:
    """Doubts about the standard deviations of groups."""
    assert target.exact_prior is not None
    notes = []
    for term in target.exact_prior[0].terms:
        if not isinstance(term, Effects):
            continue
        informed = term.informed(point, covariance).sum(axis=1)
        for effect, place in enumerate(term.sds):
            called = names[place] if place < len(names) else f"parameter {place}"
            sd = float(np.exp(point[place]))
            notes += _doubts(called, term.levels, float(informed[effect]), sd)
    return notes


def _doubts(called: str, levels: int, informed: float, sd: float) -> list[ModicumWarning]:
    if levels < FEW:
        return [
            ModicumWarning(
                "groups-few",
                f"{levels} levels say little about how much effects vary, so that the prior of "
                f"{called} decides much of its posterior",
                "choose that prior with care, or enter the factor as a common one",
                levels=levels,
            )
        ]
    # tau^2 + s^2 is known to sqrt(2 / L) of itself, and tau^2 is the share `informed` / L of it.
    if informed / levels < UNTOLD * np.sqrt(2 / levels):
        return [
            ModicumWarning(
                "group-sd-near-zero",
                f"the data hardly tell {called} from 0 (its marginal mode is about {sd:.2g}, with "
                f"the information of {informed:.2g} effects), so that its posterior has no lower "
                "end but the prior's",
                "leave the group out if its effects are of no interest, or give its standard "
                "deviation a prior that keeps away from 0 (mo.priors.Gamma(2, rate))",
                informed=informed,
                sd=sd,
            )
        ]
    return []
