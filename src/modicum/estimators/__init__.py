"""A log-likelihood from a few rows: control variates and what is made of their residuals."""

from modicum.estimators.perturbed import Estimate, Perturbed
from modicum.estimators.taylor import (
    AutodiffTaylor,
    ControlVariate,
    LinearTaylor,
    control_variate,
    proxy,
)

__all__ = [
    "AutodiffTaylor",
    "ControlVariate",
    "Estimate",
    "LinearTaylor",
    "Perturbed",
    "control_variate",
    "proxy",
]
