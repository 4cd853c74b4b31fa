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
)

__all__ = [
    "LKJ",
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
