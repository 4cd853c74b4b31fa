"""Quality of draws: effective sample size, R-hat, inefficiency, cost, distance from the target.

It knows arrays, and nothing of models: what it measures could come from any sampler.
"""

from modicum.diagnostics.convergence import (
    batch_means_inefficiency,
    batch_means_variance,
    computational_time,
    ess,
    ess_tail,
    inefficiency,
    mcse,
    nested_r_hat,
    optimal_variance,
    r_hat,
    relative_computational_time,
)
from modicum.diagnostics.distances import (
    MeanSquaredError,
    kernel_stein_discrepancy,
    kl_nearest_neighbours,
    kl_to_gaussian,
    mse,
    squared_stein_discrepancy,
)

__all__ = [
    "MeanSquaredError",
    "batch_means_inefficiency",
    "batch_means_variance",
    "computational_time",
    "ess",
    "ess_tail",
    "inefficiency",
    "kernel_stein_discrepancy",
    "kl_nearest_neighbours",
    "kl_to_gaussian",
    "mcse",
    "mse",
    "nested_r_hat",
    "optimal_variance",
    "r_hat",
    "relative_computational_time",
    "squared_stein_discrepancy",
]
