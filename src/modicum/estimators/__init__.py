"""Estimates of a log-likelihood or its gradient from a few rows, and their control variates."""

from modicum.estimators.block_poisson import BlockPoisson, BlockPoissonTables
from modicum.estimators.bounds import BoundedRows, collapse, whitened_sums
from modicum.estimators.groups import GroupTaylor, group_proxy, variance_unit
from modicum.estimators.perturbed import EveryRow, Perturbed
from modicum.estimators.taylor import AutodiffTaylor, LinearTaylor, control_variate, proxy

__all__ = [
    "LIKELIHOODS",
    "AutodiffTaylor",
    "BlockPoisson",
    "BlockPoissonTables",
    "BoundedRows",
    "EveryRow",
    "GroupTaylor",
    "LinearTaylor",
    "Perturbed",
    "collapse",
    "control_variate",
    "group_proxy",
    "proxy",
    "variance_unit",
    "whitened_sums",
]

LIKELIHOODS: dict[str, type[EveryRow]] = {"perturbed": Perturbed}
"""Log-likelihood estimates by the name that `HMCECS(estimator=...)` takes."""
