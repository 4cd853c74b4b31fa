"""Kullback-Leibler divergence of draws from a known distribution.

Draws must be independent, such as the last states of many short chains; the papers use this to show
that a sampler converges.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from modicum.diagnostics.inefficiency import PerScalar
from modicum.errors import SettingError

Floats = NDArray[np.float64]


def kl_to_gaussian(
    draws: ArrayLike, mean: ArrayLike, cov: ArrayLike, *, corrected: bool = False
) -> PerScalar:
    """KL(fitted || target) between the normal fitted to draws and the target N(mean, cov).

    ``(tr(P S) - d - log det(P S) + (m - mean)' P (m - mean)) / 2`` with P the inverse of `cov`,
    and m and S the mean and covariance (divisor n - 1) of the draws.

    Parameters
    ----------
    draws
        Independent realisations, (n, d), or (n, times, d) for one value per time.
    mean, cov
        Mean and covariance of the target.
    corrected
        Subtract the expected value for n exact draws, about ``d (d + 3) / (4 n)``, so that exact
        draws give about zero, of either sign.

    Examples
    --------
    >>> x = np.random.default_rng(1).normal(size=(10_000, 2))
    >>> round(kl_to_gaussian(x, [0, 0], np.eye(2)), 3)
    0.0
    >>> round(kl_to_gaussian(x + [1, 0], [0, 0], np.eye(2)), 1)  # half the squared shift
    0.5
    """
    x = np.asarray(draws, dtype=np.float64)
    centre, spread = np.asarray(mean, dtype=np.float64), np.asarray(cov, dtype=np.float64)
    d = x.shape[-1] if x.ndim else 0
    if x.ndim not in (2, 3) or centre.shape != (d,) or spread.shape != (d, d):
        raise SettingError(
            f"draws must be (n, d) or (n, times, d), the mean (d,) and the covariance (d, d), not "
            f"{x.shape}, {centre.shape} and {spread.shape}."
        )
    n = len(x)
    if n < d + 2:
        raise SettingError(f"{n} draws are too few in {d} dimensions: use at least {d + 2}.")
    try:
        factor = np.linalg.cholesky(spread)
    except np.linalg.LinAlgError:
        raise SettingError("cov must be positive definite.") from None
    z = np.linalg.solve(factor, np.moveaxis(x - centre, 0, -1))  # (..., d, n): N(0, I) if right
    m = z.mean(axis=-1)
    S = (z - m[..., None]) @ np.swapaxes(z - m[..., None], -1, -2) / (n - 1)
    log_det = np.linalg.slogdet(S)[1]
    kl = 0.5 * (np.trace(S, axis1=-2, axis2=-1) - d - log_det + np.sum(m * m, axis=-1))
    kl = kl - _kl_of_exact_draws(n, d) if corrected else kl
    return kl if np.ndim(kl) else float(kl)


def _kl_of_exact_draws(n: int, d: int) -> float:
    """Expected divergence of n exact draws, by their Wishart covariance (n - 1) S."""
    from scipy.special import digamma

    log_det = digamma((n - 1 - np.arange(d)) / 2).sum() + d * np.log(2 / (n - 1))
    return float(0.5 * (d / n - log_det))


def kl_nearest_neighbours(draws: ArrayLike, reference: ArrayLike, k: int = 5) -> float:
    """KL(draws || reference) of two samples, from distances to nearest neighbours.

    ``d mean(log(nu_k / rho_k)) + log(m / (n - 1))``, where rho_k and nu_k are the distances of a
    draw to its k-th neighbour among the other draws and in the reference (Wang, Kulkarni and Verdú
    2009, IEEE Transactions on Information Theory). It is sensitive to more than the first two
    moments, but noisy, and its bias grows with d; it is useful up to about ten dimensions.

    Parameters
    ----------
    draws, reference
        Independent draws, (n, d) and (m, d), without ties.
    k
        Which neighbour; a larger k is less noisy and more biased.

    Examples
    --------
    >>> rng = np.random.default_rng(1)
    >>> same = kl_nearest_neighbours(rng.normal(size=(4000, 2)), rng.normal(size=(4000, 2)))
    >>> bool(abs(same) < 0.1)
    True
    """
    from scipy.spatial import cKDTree

    x, y = (np.asarray(sample, dtype=np.float64) for sample in (draws, reference))
    if x.ndim != 2 or y.ndim != 2 or x.shape[1] != y.shape[1]:
        raise SettingError(
            f"draws and reference must be (n, d) and (m, d), not {x.shape} and {y.shape}."
        )
    if not 1 <= k <= min(len(x) - 1, len(y)):
        raise SettingError(f"k must lie between 1 and the number of draws, not {k}.")
    among_draws = cKDTree(x).query(x, [k + 1])[0][:, 0]  # the nearest of all is the draw itself
    in_reference = cKDTree(y).query(x, [k])[0][:, 0]
    if not (among_draws > 0).all() or not (in_reference > 0).all():
        raise SettingError("some draws coincide: remove repeated draws, or use a larger k.")
    ratio = np.log(in_reference) - np.log(among_draws)
    return float(x.shape[1] * ratio.mean() + np.log(len(y) / (len(x) - 1)))
