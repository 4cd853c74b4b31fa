"""How far draws are from the answer: from a known distribution, a density, or true averages.

The Kullback-Leibler divergence needs independent draws, such as the last states of many short
chains; the papers use it to show that a sampler converges.

The kernel Stein discrepancy needs no reference draws, only the score (gradient of the log-density)
at each draw, and it detects bias as well as slow mixing. The kernel is the inverse multiquadric
``(c^2 + |x - y|^2)^beta``, with which the discrepancy tends to zero only if the draws converge to
the density (Gorham and Mackey 2017, "Measuring sample quality with kernels", ICML).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from modicum.diagnostics.convergence import PerScalar, as_chains
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


Score = Callable[[Floats], ArrayLike] | ArrayLike
BLOCK = 512  # draws per side of a block of pairs, so that a block fits the caches


def kernel_stein_discrepancy(
    draws: ArrayLike,
    score: Score,
    *,
    scale: ArrayLike = 1.0,
    c: float = 1.0,
    beta: float = -0.5,
    weights: ArrayLike | None = None,
) -> float:
    """Kernel Stein discrepancy of draws (V-statistic): zero only for a perfect sample.

    For n independent exact draws it falls like ``1 / sqrt(n)``; for draws from another density it
    levels off. Memory stays small however many draws there are; time grows with their square.

    Parameters
    ----------
    draws
        Array (..., d): the last axis is the coordinates. A plain vector is draws of one number.
    score
        Gradient of the log-density at each draw, of the shape of `draws`, or a function from
        (n, d) to (n, d) that returns it.
    scale
        The unit of length: a number, one number per coordinate, or a matrix L with draws = L z.
        Posterior standard deviations (or a Cholesky factor) make the value independent of units.
    c, beta
        Parameters of the kernel; beta lies between -1 and 0.
    weights
        Sign or importance weight of each draw.

    Examples
    --------
    >>> x = np.random.default_rng(1).normal(size=(1000, 2))
    >>> exact = kernel_stein_discrepancy(x, lambda t: -t)
    >>> shifted = kernel_stein_discrepancy(x + 0.5, lambda t: -t)
    >>> bool(exact < 0.1 < 0.3 < shifted)
    True
    """
    z, s, w = _prepare(draws, score, scale, weights, c, beta)
    total, _ = _sums(z, s, w, c, beta)
    return float(np.sqrt(max(total, 0.0)) / w.sum())


def squared_stein_discrepancy(
    draws: ArrayLike,
    score: Score,
    *,
    scale: ArrayLike = 1.0,
    c: float = 1.0,
    beta: float = -0.5,
    weights: ArrayLike | None = None,
) -> float:
    """Unbiased squared discrepancy (U-statistic): about zero, of either sign, for exact draws.

    Pairs of a draw with itself are left out. The other terms are linear in the score of either
    draw, so scores may be unbiased *estimates*, provided that estimates at different draws are
    independent: a few rows per draw are enough (`Posterior.stein_discrepancy`). Parameters are
    those of `kernel_stein_discrepancy`.

    Examples
    --------
    >>> rng = np.random.default_rng(1)
    >>> x = rng.normal(size=(1000, 2))
    >>> noisy = -x + rng.normal(size=x.shape)
    >>> bool(abs(squared_stein_discrepancy(x, noisy)) < 0.02)
    True
    >>> bool(kernel_stein_discrepancy(x, noisy) ** 2 > 0.003)  # biased by the noise
    True
    """
    z, s, w = _prepare(draws, score, scale, weights, c, beta)
    if len(z) < 2:
        raise SettingError("the squared discrepancy compares draws: it needs at least two.")
    total, diagonal = _sums(z, s, w, c, beta)
    pairs = w.sum() ** 2 - (w**2).sum()
    return float((total - diagonal) / pairs)


def _prepare(
    draws: ArrayLike,
    score: Score,
    scale: ArrayLike,
    weights: ArrayLike | None,
    c: float,
    beta: float,
) -> tuple[Floats, Floats, Floats]:
    """Coordinates, scores and weights, in units of `scale`."""
    if not c > 0 or not -1 < beta < 0:
        raise SettingError(f"the kernel needs c > 0 and -1 < beta < 0, not {c} and {beta}.")
    x = np.asarray(draws, dtype=np.float64)
    x = x[:, None] if x.ndim == 1 else x.reshape(-1, x.shape[-1])
    s = np.asarray(score(x) if callable(score) else score, dtype=np.float64)
    if s.size != x.size or (s.ndim > 1 and s.shape[-1] != x.shape[-1]):
        raise SettingError(
            f"the scores have shape {s.shape} where draws have {x.shape}; "
            "give one gradient per draw."
        )
    s = s.reshape(x.shape)
    if not (np.isfinite(x).all() and np.isfinite(s).all()):
        raise SettingError("draws and scores must be finite; leave out the draws that are not.")
    w = np.ones(len(x)) if weights is None else np.asarray(weights, dtype=np.float64).reshape(-1)
    if len(w) != len(x) or not w.sum() > 0:
        raise SettingError(
            "weights must hold one number per draw, and add up to a positive number."
        )
    unit = np.asarray(scale, dtype=np.float64)
    if unit.ndim < 2:
        return x / unit, s * unit, w
    z = np.asarray(np.linalg.solve(unit, x.T).T, dtype=np.float64)
    return z, s @ unit, w  # z = L^-1 x has the score L' s


def _sums(z: Floats, s: Floats, w: Floats, c: float, beta: float) -> tuple[float, float]:
    """Weighted sums of the Stein kernel: over all pairs, and over pairs of a draw with itself."""
    total = 0.0
    for rows, columns in _blocks(len(z)):
        part = w[rows] @ _stein_kernel(z[rows], s[rows], z[columns], s[columns], c, beta)
        twice = 1.0 if rows == columns else 2.0
        total += twice * float(part @ w[columns])
    # at r = 0 the kernel is c^(2 beta) |s|^2 - 2 beta d c^(2 beta - 2)
    d = z.shape[1]
    diagonal = c ** (2 * beta) * np.sum(s * s, axis=1) - 2 * beta * d * c ** (2 * beta - 2)
    return total, float(np.sum(w * w * diagonal))


def _blocks(n: int) -> Iterator[tuple[slice, slice]]:
    """Slices of the blocks on and above the diagonal."""
    cuts = [slice(start, min(start + BLOCK, n)) for start in range(0, n, BLOCK)]
    return ((rows, columns) for i, rows in enumerate(cuts) for columns in cuts[i:])


def _stein_kernel(x: Floats, s: Floats, y: Floats, t: Floats, c: float, beta: float) -> Floats:
    """k0(x, y), with scores s of x and t of y (Gorham and Mackey, eq. 3 for the IMQ kernel).

    With r = x - y and q = c^2 + |r|^2,

        k0 = q^b s't - 2 b q^(b-1) (s - t)'r - 2 b d q^(b-1) - 4 b (b-1) |r|^2 q^(b-2).
    """
    one_x, one_y = np.ones((len(x), 1)), np.ones((len(y), 1))
    # write each expression as one matrix product: fewer sweeps over the block
    squared = np.c_[np.sum(x * x, 1), one_x, -2 * x] @ np.c_[one_y, np.sum(y * y, 1), y].T
    np.maximum(squared, 0.0, out=squared)
    along = np.c_[np.sum(s * x, 1) + x.shape[1], one_x, -s, -x]  # (s - t)'r + d
    bracket = along @ np.c_[one_y, np.sum(t * y, 1), y, t].T
    q = squared + c * c
    squared /= q
    squared *= 2 * (beta - 1)
    bracket += squared
    bracket /= q
    bracket *= -2 * beta
    bracket += s @ t.T
    bracket *= 1 / np.sqrt(q) if beta == -0.5 else q**beta
    return bracket


@dataclass(frozen=True)
class MeanSquaredError:
    """Mean squared error, its decomposition, and its Monte Carlo error.

    Attributes
    ----------
    value
        Mean over realisations of (average - truth)^2, which is ``bias**2`` plus `variance`.
    bias
        Mean over realisations of average - truth.
    variance
        Variance of the averages over realisations.
    error
        Monte Carlo standard error of `value`.
    """

    value: float | np.ndarray
    bias: float | np.ndarray
    variance: float | np.ndarray
    error: float | np.ndarray


def mse(
    draws: ArrayLike,
    truth: ArrayLike,
    function: Callable[[np.ndarray], ArrayLike] | None = None,
    *,
    at: int | ArrayLike | None = None,
    weights: ArrayLike | None = None,
) -> MeanSquaredError:
    """Mean squared error of each realisation's average about a known value.

    Parameters
    ----------
    draws
        Array (realisation, draw, ...): each realisation gives one average over its draws.
    truth
        The true expectation of `function`.
    function
        Test function, applied to `draws` as a whole; by default the draws themselves.
    at
        Average over the first `at` draws; by default all. A sequence of numbers gives a leading
        axis: the error as a function of the number of draws.
    weights
        Sign or importance weight of each draw, (realisation, draw).

    Examples
    --------
    >>> x = np.random.default_rng(1).normal(size=(2000, 100))
    >>> error = mse(x, 1.0, np.square)  # the average of 100 squares has variance 2 / 100
    >>> bool(abs(error.value - 0.02) < 4 * error.error)
    True
    >>> mse(x, 1.0, np.square, at=[1, 10, 100]).value.shape
    (3,)
    """
    x = np.asarray(draws) if function is None else np.asarray(function(np.asarray(draws)))
    x = as_chains(x)
    if len(x) < 2:
        raise SettingError("the mean squared error needs at least two realisations.")
    w = np.ones(x.shape[:2]) if weights is None else np.asarray(weights, dtype=float)
    if w.shape != x.shape[:2]:
        raise SettingError(f"weights have shape {w.shape}; they need that of draws, {x.shape[:2]}.")
    counts = np.atleast_1d(np.asarray(x.shape[1] if at is None else at))
    if counts.min(initial=1) < 1 or counts.max(initial=1) > x.shape[1]:
        raise SettingError(f"`at` must hold numbers of draws from 1 to {x.shape[1]}.")
    shaped = w.reshape(*w.shape, *[1] * (x.ndim - 2))
    totals, masses = np.cumsum(shaped * x, axis=1), np.cumsum(shaped, axis=1)
    averages = totals[:, counts - 1] / masses[:, counts - 1]  # (realisation, count, ...)
    gap = averages - np.asarray(truth, dtype=float)
    parts = (
        np.mean(gap**2, axis=0),
        gap.mean(axis=0),
        gap.var(axis=0),
        np.std(gap**2, axis=0, ddof=1) / np.sqrt(len(gap)),
    )
    is_array = at is not None and np.ndim(at) > 0
    return MeanSquaredError(*(_plain(part if is_array else part[0]) for part in parts))


def _plain(value: np.ndarray) -> float | np.ndarray:
    return value if np.ndim(value) else float(value)
