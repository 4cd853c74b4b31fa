"""A coreset: a few rows whose weighted residuals follow the difference d = l - sum q of all rows.

The lower bound a = c - lambda of the block-Poisson estimator must stay below d. If it is constant,
d falls below it on the steep side of a skewed direction (a rare level whose outcomes are all
alike): all factors are negative there, |Lhat| grows with the distance however small the likelihood
is, and a chain that starts or jumps there stays. On Covertype the chains' density E |Lhat| p was
e^6000 times that of the posterior ten standard deviations away. The bound may be any function of
the parameters. Here c is a coreset: a sum of weighted residuals of a few rows, fitted by
non-negative least squares at pilot draws and at points far out along the axes of the whitened
coordinates. The same points then tell whether lambda is large enough there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from modicum.methods.pilot.pilot_residuals import Residuals, representatives, reweighted
from modicum.random import Stream, generator

DISTANCES = (3.0, 5.0, 8.0, 10.0)  # posterior sds from the mean, along each axis
MOST_ROWS = 32
CLOSE = 0.05  # relative error of the fit below which no more rows are added
CANDIDATES = 2_048  # pilot rows among which the coreset is chosen
FITTED_DRAWS = 128
RELATIVE = 0.2  # far out, a relative error of this size counts like an error of one near the mean
FAR_BATCHES = 1_000  # mini-batches per point
# Log-density relative to the mean that counts as negligible, and by how much the chains'
# log-density may exceed the posterior's where it is not.
NEGLIGIBLE, EXCESS = -12.0, 1.0


class FarOut(NamedTuple):
    """Residuals, at points far out, of the rows that the design draws."""

    values: np.ndarray  # D of each pilot row, (points, rows)
    weight: np.ndarray  # share of the design's draws that each row represents
    log_posterior: np.ndarray  # relative to the value at the posterior's mean

    def mini_batches(self, batch: int) -> np.ndarray:
        """Return estimates dhat from mini-batches, (points, mini-batches)."""
        rng = generator(batch, Stream.SIGN_BATCHES)
        places = rng.choice(len(self.weight), (FAR_BATCHES, batch), p=self.weight)
        return np.stack([values[places].mean(axis=1) for values in self.values])

    def is_negligible(self, dhat: np.ndarray, products: int, centre: np.ndarray) -> bool:
        """Whether chains have negligible mass where the posterior has none.

        Their density is E |Lhat| p = L p exp(2 lambda E f^-), with f^- the negative part of a
        factor f = 1 + (dhat - c) / lambda.
        """
        below = np.maximum(centre[:, None] - products - dhat, 0).mean(axis=1)
        chains = self.log_posterior + 2 * below
        return bool(np.all(chains <= np.maximum(self.log_posterior + EXCESS, NEGLIGIBLE)))


@dataclass(frozen=True)
class Coreset:
    """A few rows whose weighted residuals sum to nearly those of all rows that are drawn.

    Attributes
    ----------
    row_ids
        Indices among the pilot rows.
    weights
        Weights of their residuals.
    at_draws, at_points
        The weighted sum at each pilot draw, and at each point far out.
    far
        The residuals at the points far out.
    """

    row_ids: np.ndarray
    weights: np.ndarray
    at_draws: np.ndarray
    at_points: np.ndarray
    far: FarOut

    def __len__(self) -> int:
        return len(self.row_ids)


def fit_coreset(
    residuals: Residuals, far: Residuals, log_posterior: np.ndarray, probability: np.ndarray
) -> Coreset:
    """Choose rows and weights for a design that gives the pilot rows this `probability`.

    Parameters
    ----------
    residuals
        Residuals of the pilot rows at the pilot draws.
    far, log_posterior
        Residuals of the same rows at points far out, and the log-posterior there relative to the
        posterior's mean.
    probability
        Probability of each pilot row; zero for rows that are never drawn.
    """
    factor, weight = reweighted(residuals.probability, probability)
    drawn = np.flatnonzero(weight > 0)
    factor, weight = factor[drawn], weight[drawn]
    near, away = (part.values[:, drawn] * factor for part in (residuals, far))
    at_some_draws = near[representatives(residuals.share, FITTED_DRAWS)]
    places, shares = _follow(np.concatenate([at_some_draws, away]) * weight)
    weights = shares * weight[places] / probability[drawn[places]]  # of d = probability times D
    at_draws, at_points = ((part * weight)[:, places] @ shares for part in (near, away))
    # At the other points chains have no mass even with one row per mini-batch and lambda = 0, so
    # that they need not be checked.
    most = log_posterior + 2 * np.maximum(at_points[:, None] - away, 0) @ weight
    matters = most > NEGLIGIBLE
    checked = FarOut(away[matters], weight, log_posterior[matters])
    return Coreset(drawn[places], weights, at_draws, at_points[matters], checked)


def _follow(parts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Choose columns and weights whose weighted sum is nearly the sum of all columns.

    This is orthogonal matching pursuit: the column most similar to the residual is added, and all
    are refitted by non-negative least squares. Negative weights would fit as well at these points,
    but extrapolate badly.
    """
    from scipy.optimize import nnls  # few runs need it, and it is slow to import

    total = parts.sum(axis=1)
    importance = 1 / (1 + RELATIVE * np.abs(total))
    A, y = parts * importance[:, None], total * importance
    length = np.linalg.norm(A, axis=0)
    # Sample columns of all lengths, since the longest ones belong to a few levels only.
    candidates = np.unique(representatives(length, CANDIDATES))
    candidates = candidates[length[candidates] > 0]
    A, length = A[:, candidates], length[candidates]
    places: list[int] = []
    shares, residual = np.zeros(0), y
    for _ in range(min(MOST_ROWS, A.shape[1])):
        likeness = residual @ A / length
        likeness[places] = 0.0
        best = int(np.argmax(likeness))
        if likeness[best] <= 0 or np.linalg.norm(residual) <= CLOSE * np.linalg.norm(y):
            break
        fitted, _ = nnls(A[:, [*places, best]], y)
        places = [place for place, share in zip([*places, best], fitted, strict=True) if share > 0]
        shares = fitted[fitted > 0]
        residual = y - A[:, places] @ shares
    return candidates[places], shares
