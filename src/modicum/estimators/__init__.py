"""A log-likelihood from a few rows: control variates and what is made of their residuals."""

from modicum.estimators.bounded import BoundedRows, bound_context, collapse
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
    "BoundedRows",
    "ControlVariate",
    "Estimate",
    "LinearTaylor",
    "Perturbed",
    "bound_context",
    "collapse",
    "control_variate",
    "proxy",
]
