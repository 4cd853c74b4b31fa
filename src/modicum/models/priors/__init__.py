"""Priors of linear-predictor models: distributions, scaling by the data, log-densities."""

from modicum.models.priors.distributions import (
    LKJ,
    Exponential,
    Flat,
    Gamma,
    HalfCauchy,
    HalfNormal,
    Horseshoe,
    Laplace,
    LogNormal,
    Normal,
    Prior,
    StudentT,
    is_positive,
)
from modicum.models.priors.resolved import OWN, GroupPrior, ModelPriors, prior_warnings
from modicum.models.priors.units import Moments, moments

__all__ = [
    "LKJ",
    "OWN",
    "Exponential",
    "Flat",
    "Gamma",
    "GroupPrior",
    "HalfCauchy",
    "HalfNormal",
    "Horseshoe",
    "Laplace",
    "LogNormal",
    "ModelPriors",
    "Moments",
    "Normal",
    "Prior",
    "StudentT",
    "is_positive",
    "moments",
    "prior_warnings",
]
