"""Priors of linear-predictor models: distributions, scaling by the data, log-densities."""

from modicum.models.priors.distributions import (
    LKJ,
    R2D2,
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
)

__all__ = [
    "LKJ",
    "R2D2",
    "Exponential",
    "Flat",
    "Gamma",
    "HalfCauchy",
    "HalfNormal",
    "Horseshoe",
    "Laplace",
    "LogNormal",
    "Normal",
    "Prior",
    "StudentT",
]
