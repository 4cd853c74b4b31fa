"""Sensitivity of the posterior to prior and likelihood, by power-scaling each of them.

With the prior raised to the power alpha, draws get weights p(theta)^(alpha - 1), without a new run
or any row. The sensitivity is how far distributions move as alpha goes from 0.99 to 1.01
(Kallioinen, Paananen, Bürkner and Vehtari 2024); the distances are ArviZ's. In a model with effects
of groups, the prior is that of common coefficients, standard deviations and correlations; the
distribution of the effects given these counts as part of the model.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import numpy as np

from modicum.errors import SettingError, too_few
from modicum.models import BaseModel
from modicum.models.prior_draws import log_priors
from modicum.posterior.draws import Draws, require_finite
from modicum.posterior.labels import axis_labels

if TYPE_CHECKING:
    import pandas as pd

FEWEST = 100  # draws needed to see the tail of their weights


def sensitivity(source: Draws, model: BaseModel, log_posterior: np.ndarray) -> pd.DataFrame:
    """Tabulate both sensitivities of every scalar; see `Posterior.sensitivity`.

    The draws must be equally weighted; `log_posterior` (chain, draw) is that of all rows, up to a
    constant.
    """
    from arviz_base import from_dict
    from arviz_stats import psense_summary

    require_finite(source.draws, "a sensitivity")
    if source.chains * source.num_draws < FEWEST:
        raise SettingError(
            f"{too_few(source.chains * source.num_draws, 'draw')} to be reweighted by prior or "
            f"likelihood, since the tail of the weights cannot be judged; sample at least {FEWEST}."
        )
    assert not source.weighted, "the caller resamples weighted draws"
    log_likelihood = log_posterior - log_priors(model, source.draws)
    prior = log_priors(model, source.draws, effects=False)
    dims: dict[str, list[str]] = {}
    coords: dict[str, list[str | int]] = {}
    for name, x in source.draws.items():
        shape = x.shape[2:]
        dims[name] = [f"{name}_dim_{i}" for i in range(len(shape))]
        coords.update(zip(dims[name], axis_labels(name, shape, source.labels), strict=True))
    groups = {
        "posterior": {name: x.astype(float) for name, x in source.draws.items()},
        "log_prior": {"all": prior - prior.mean()},
        "log_likelihood": {"all": log_likelihood - log_likelihood.mean()},
    }
    tree = from_dict(groups, dims=dims, coords=coords)
    log = logging.getLogger("arviz_stats.psense")
    before, log.disabled = log.disabled, True  # the table shows what would be logged
    try:
        with np.errstate(all="ignore"):  # an uninformative likelihood is constant
            return psense_summary(tree)
    finally:
        log.disabled = before
