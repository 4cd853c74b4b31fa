"""Priors of linear-predictor models: distributions, scaling by the data, log-densities."""

from modicum.models.priors import distributions
from modicum.models.priors.distributions import *  # noqa: F403 - the names in its `__all__`
from modicum.models.priors.distributions import is_positive
from modicum.models.priors.resolved import OWN, ModelPriors, PooledPrior, prior_warnings
from modicum.models.priors.units import Moments, moments

__all__ = [
    "OWN",
    "ModelPriors",
    "Moments",
    "PooledPrior",
    "is_positive",
    "moments",
    "prior_warnings",
]
__all__ += distributions.__all__
