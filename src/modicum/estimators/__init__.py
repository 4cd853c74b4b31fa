"""A log-likelihood from a few rows: control variates and what is made of their residuals."""

from modicum.estimators.block_poisson import BlockPoisson
from modicum.estimators.bounds import BoundedRows, bound_context, collapse
from modicum.estimators.perturbed import Perturbed
from modicum.estimators.taylor import (
    AutodiffTaylor,
    ControlVariate,
    LinearTaylor,
    control_variate,
    proxy,
)
from modicum.kernels.base import Estimate, Estimator

__all__ = [
    "AutodiffTaylor",
    "BlockPoisson",
    "BoundedRows",
    "ControlVariate",
    "Estimate",
    "Estimator",
    "LinearTaylor",
    "Perturbed",
    "bound_context",
    "collapse",
    "control_variate",
    "proxy",
]
