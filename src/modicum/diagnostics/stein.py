"""Kernel Stein discrepancy: how far draws are from a density known up to a constant.

It needs no reference draws, only the score (gradient of the log-density) at each draw, and it
detects bias as well as slow mixing. The kernel is the inverse multiquadric
``(c^2 + |x - y|^2)^beta``, with which the discrepancy tends to zero only if the draws converge to
the density.

References
----------
Gorham and Mackey (2017), "Measuring sample quality with kernels", ICML.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import ArrayLike, NDArray

from modicum.errors import SettingError

Floats = NDArray[np.float64]
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
