"""The table of a posterior: one line a scalar, with its error and its diagnostics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from modicum.diagnostics import ess, ess_tail, mcse, r_hat
from modicum.errors import SettingError
from modicum.posterior.labels import scalar_names
from modicum.posterior.weighted import (
    influence,
    weighted_ess,
    weighted_ess_tail,
    weighted_mcse,
)

if TYPE_CHECKING:
    import pandas as pd

    from modicum.posterior.posterior import Posterior

__all__ = ["diagnose", "percent", "summarise"]


def summarise(
    posterior: Posterior, names: Sequence[str] | str | None = None, prob: float = 0.9
) -> pd.DataFrame:
    """Tabulate mean, sd, an equal-tailed interval, Monte Carlo error, ESS and R-hat."""
    import pandas as pd

    if not 0 < prob < 1:
        raise SettingError(f"prob is the probability of an interval, between 0 and 1, not {prob}.")
    wanted = (
        [names] if isinstance(names, str) else list(posterior.draws if names is None else names)
    )
    ends = ((1 - prob) / 2, (1 + prob) / 2)
    parts = []
    for name in wanted:
        x = posterior[name]
        low, high = posterior.quantile(name, ends)
        columns = {
            "mean": posterior.mean(name),
            "sd": posterior.sd(name),
            percent(ends[0]): low,
            percent(ends[1]): high,
            **diagnose(x, posterior.weights if posterior.weighted else None),
        }
        index = scalar_names(name, x.shape[2:], posterior.labels)
        parts.append(pd.DataFrame({k: np.ravel(v) for k, v in columns.items()}, index=index))
    table = pd.concat(parts) if parts else pd.DataFrame()
    if posterior.weighted and posterior.weights is not None:
        table.attrs["mean_weight"] = float(posterior.weights.mean())
        table.attrs["r_hat_weight"] = r_hat(posterior.weights)
    return table


def diagnose(x: np.ndarray, weights: np.ndarray | None) -> dict[str, np.ndarray]:
    """Measure each scalar of x: its Monte Carlo error, effective sample sizes and R-hat.

    With signs or weights these are of the ratio estimate: by the delta method, not by ArviZ.
    """
    if weights is None:
        return {
            "mcse_mean": np.asarray(mcse(x)),
            "ess_bulk": np.asarray(ess(x)),
            "ess_tail": np.asarray(ess_tail(x)),
            "r_hat": np.asarray(r_hat(x)),
        }
    values = np.asarray(x, dtype=float)
    return {
        "mcse_mean": weighted_mcse(values, weights),
        "ess_bulk": weighted_ess(values, weights),
        "ess_tail": weighted_ess_tail(values, weights),
        "r_hat": np.asarray(r_hat(influence(values, weights))),
    }


def percent(level: float) -> str:
    """Write a probability as a column's name.

    Examples
    --------
    >>> percent(0.05), percent(0.975)
    ('5%', '97.5%')
    """
    return f"{round(100 * level, 6):g}%"
