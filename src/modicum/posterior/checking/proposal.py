"""Normalising constants by importance sampling from a normal fitted to the posterior."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from modicum.arrays import HALF_LOG_2PI
from modicum.diagnostics.pareto import rows_smoothed
from modicum.passes import Sums
from modicum.passes.prior import expanded_prior

NOISY = 0.5  # variance of log-weights, due to few draws, above which a covariance is not used


class Evidence(NamedTuple):
    """Log evidence and its Monte Carlo standard error.

    Attributes
    ----------
    value
        Log of the marginal likelihood of the rows.
    error
        Monte Carlo standard error of `value`.
    """

    value: float
    error: float


class NormalProposal(NamedTuple):
    """A normal distribution, given by its mean and the lower factor of its covariance."""

    mean: np.ndarray
    factor: np.ndarray

    @classmethod
    def fitted(
        cls, sums: Sums, draws: np.ndarray, weights: np.ndarray, purpose: str
    ) -> NormalProposal:
        """Fit a normal with the draws' mean, and their covariance or, if noisy, the curvature.

        The covariance of N draws of d parameters gives log-weights a variance of about d^2 / 2N.
        Signs are ignored, since a proposal need not be exact.
        """
        weights = np.abs(weights)
        mean = np.average(draws, axis=0, weights=weights)
        centred = draws - mean
        effective = weights.sum() ** 2 / (weights**2).sum()
        cov = (weights[:, None] * centred).T @ centred / weights.sum()
        if len(mean) ** 2 / (2 * effective) > NOISY:
            _, _, hessian = sums.hessian(mean, purpose)
            precision = -(hessian + expanded_prior(sums.target, mean)[2])
            try:
                return cls(mean, np.linalg.inv(np.linalg.cholesky(precision)).T)
            except np.linalg.LinAlgError:  # not concave at the mean: use the draws' covariance
                pass
        return cls(mean, np.linalg.cholesky(cov))

    def draw(self, rng: np.random.Generator, number: int) -> np.ndarray:
        """Draw antithetic pairs about the mean, which reduces the variance."""
        half = rng.normal(size=(-(-number // 2), len(self.mean)))
        return self.mean + np.concatenate([half, -half])[:number] @ self.factor.T

    def log_density(self, points: np.ndarray) -> np.ndarray:
        """Return the log-density of the proposal at each point."""
        z = np.linalg.solve(self.factor, (points - self.mean).T)
        scale = np.linalg.slogdet(self.factor)[1] + len(self.mean) * HALF_LOG_2PI
        return -0.5 * np.sum(z**2, axis=0) - scale


def log_joint(sums: Sums, points: np.ndarray, purpose: str) -> np.ndarray:
    """Return the log of likelihood times prior at each point, in one pass over the rows."""
    values = sums.values(points, purpose) + sums.target.log_priors(points)
    return np.where(np.isnan(values), -np.inf, values)  # NaN where the model overflows


def average(log_ratio: np.ndarray) -> tuple[Evidence, float]:
    """Return the log of the average of smoothed weights, with its error, and their Pareto k."""
    top = log_ratio.max()
    centred = np.maximum(log_ratio - top, -700.0)
    if np.ptp(centred) < 1e-10:
        return Evidence(float(top), 0.0), 0.0
    (smoothed,), (tail,) = rows_smoothed(centred[None])
    # these are normalised; the smallest weight, which is not smoothed, shows by how much
    lowest = int(np.argmin(centred))
    log_total = centred[lowest] - smoothed[lowest]
    share = np.exp(smoothed) * len(smoothed)
    error = float(np.std(share, ddof=1) / np.sqrt(len(share)))
    return Evidence(float(top + log_total - np.log(len(share))), error), float(tail)
