"""How good the draws are: effective sample size, R-hat, inefficiency and cost."""

from modicum.diagnostics.autoregressive import inefficiency
from modicum.diagnostics.batch_means import batch_means_inefficiency, batch_means_variance
from modicum.diagnostics.convergence import ess, ess_tail, mcse, r_hat
from modicum.diagnostics.cost import computational_time, relative_computational_time

__all__ = [
    "batch_means_inefficiency",
    "batch_means_variance",
    "computational_time",
    "ess",
    "ess_tail",
    "inefficiency",
    "mcse",
    "r_hat",
    "relative_computational_time",
]
