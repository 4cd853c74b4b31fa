"""A log-likelihood from a few rows: control variates and what is made of their residuals."""

from modicum.estimators.base import Estimate, Estimator
from modicum.estimators.block_poisson import BlockPoisson
from modicum.estimators.bounded import BoundedRows, bound_context, collapse
from modicum.estimators.perturbed import Perturbed
from modicum.estimators.taylor import (
    AutodiffTaylor,
    ControlVariate,
    LinearTaylor,
    control_variate,
    proxy,
)

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
