"""The linear-predictor families, one kind of outcome per file."""

from modicum.models.families.binary import Cloglog, Logistic, Probit
from modicum.models.families.counts import NegativeBinomial, Poisson, PoissonRates
from modicum.models.families.ordinal import Ordinal
from modicum.models.families.positive import Gamma, InverseGaussian
from modicum.models.families.proportions import Beta, Binomial
from modicum.models.families.quantiles import AsymmetricLaplace
from modicum.models.families.real import Gaussian, StudentT
from modicum.models.families.softmax import Softmax
from modicum.models.families.survival import Exponential, Weibull
from modicum.models.families.zeros import HurdlePoisson, ZeroInflatedPoisson

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
