"""HMC on all rows for comparison, to see whether a few hundred rows per step were enough."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np

from modicum import Posterior, Rows, sample
from modicum.models import Logistic
from modicum_lab.demo.flights import Flights

FEW = 10  # flights a rare level should have, so that not only the prior counts


@dataclass(frozen=True)
class Comparison:
    """A short full-data run, and the rare level at which it is compared."""

    full: Posterior
    rare: str  # a destination's code
    flights: int

    @property
    def scalar(self) -> str:
        """Name of the rare level's coefficient in the summary."""
        return f"beta[dest[{self.rare}]]"

    def differences(self, post: Posterior) -> tuple[float, int]:
        """Return the largest difference of two posterior means, in posterior standard deviations.

        Also return how many coefficients differ by more than two Monte Carlo errors.
        """
        ours, theirs = post.summary("beta"), self.full.summary("beta")
        sd = ours["sd"]
        error = np.sqrt(ours["mcse_mean"] ** 2 + theirs["mcse_mean"] ** 2) / sd
        apart = np.abs(ours["mean"] - theirs["mean"]) / sd
        return float(apart.max()), int((apart > 2 * error).sum())


def compare(rows: Rows, post: Posterior, flights: Flights, draws: int, seed: int) -> Comparison:
    """Run HMC on all rows for a few draws.

    The step size is that of the subsampled run. The posterior, whitened at the mode, is nearly
    standard normal, so that a trajectory of pi / 2 ends at an almost independent point.
    """
    from modicum.errors import ModicumWarning
    from modicum.methods import HMC

    step: Any = post.tuning["step_size"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ModicumWarning)  # it is short on purpose
        full = sample(
            Logistic(prior_scale=2.5, intercept_scale=10.0),
            rows,
            method=HMC(trajectory=1.4, step_size=step["value"]),
            draws=draws,
            tune=5,
            chains=2,
            random_seed=seed,
            progressbar=False,
        )
    counts = flights.table["dest"].value_counts()
    coded = [code for code in counts.index if f"dest[{code}]" in rows.columns]
    rare = min((c for c in coded if counts[c] >= FEW), key=lambda c: counts[c], default=coded[-1])
    return Comparison(full, str(rare), int(counts[rare]))
