"""The linear-predictor families, one kind of outcome per file."""

from modicum.models.families.classes import Ordinal, Softmax
from modicum.models.families.counts import (
    HurdlePoisson,
    NegativeBinomial,
    Poisson,
    PoissonRates,
    ZeroInflatedPoisson,
)
from modicum.models.families.positive import Exponential, Gamma, InverseGaussian, Weibull
from modicum.models.families.proportions import Beta, Binomial, Cloglog, Logistic, Probit
from modicum.models.families.real import AsymmetricLaplace, Gaussian, StudentT

__all__ = [
    "AsymmetricLaplace",
    "Beta",
    "Binomial",
    "Cloglog",
    "Exponential",
    "Gamma",
    "Gaussian",
    "HurdlePoisson",
    "InverseGaussian",
    "Logistic",
    "NegativeBinomial",
    "Ordinal",
    "Poisson",
    "PoissonRates",
    "Probit",
    "Softmax",
    "StudentT",
    "Weibull",
    "ZeroInflatedPoisson",
]
