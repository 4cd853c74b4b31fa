"""L-BFGS with a backtracking line search.

SciPy's version calls a threaded BLAS even for ten-by-ten matrices; on a busy machine, waiting for
the threads takes ten times as long as evaluating the rows.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import numpy as np

ITERATIONS = 100
SMALL_SLOPE = 1e-3  # in whitened coordinates: standard deviations from a mode
PAIRS = 10  # recent steps that approximate the Hessian

Objective = Callable[[np.ndarray], tuple[float, np.ndarray]]
Pairs = deque[tuple[np.ndarray, np.ndarray]]


def minimise(objective: Objective, z: np.ndarray) -> np.ndarray | None:
    """Minimise an objective, which also returns its gradient, starting from `z`.

    Return None if the objective is not finite there.
    """
    value, slope = objective(z)
    if not is_finite(value, slope):
        return None
    pairs: Pairs = deque(maxlen=PAIRS)
    for _ in range(ITERATIONS):
        if np.linalg.norm(slope) < SMALL_SLOPE:
            break
        direction = -_inverse_hessian_times(slope, pairs)
        if not pairs:
            direction /= max(1.0, float(np.linalg.norm(direction)))
        step = _line_search(objective, z, value, slope @ direction, direction)
        if step is None:
            break
        trial, lower, next_slope = step
        s, y = trial - z, next_slope - slope
        if s @ y > 1e-10 * np.linalg.norm(s) * np.linalg.norm(y):
            pairs.append((s, y))
        fell = value - lower
        z, value, slope = trial, lower, next_slope
        if fell < 1e-13 * abs(value):
            break
    return z


def _line_search(
    objective: Objective, z: np.ndarray, value: float, descent: float, direction: np.ndarray
) -> tuple[np.ndarray, float, np.ndarray] | None:
    """Halve the step until the objective falls enough; None if it never does."""
    length = 1.0
    for _ in range(30):
        trial = z + length * direction
        lower, slope = objective(trial)
        if is_finite(lower, slope) and lower <= value + 1e-4 * length * descent:
            return trial, lower, slope
        length /= 2
    return None


def _inverse_hessian_times(slope: np.ndarray, pairs: Pairs) -> np.ndarray:
    """Run the two-loop recursion (Nocedal and Wright, Numerical Optimization, algorithm 7.4)."""
    q, shares = slope.copy(), []
    for s, y in reversed(pairs):
        share = (s @ q) / (s @ y)
        q -= share * y
        shares.append(share)
    if pairs:
        s, y = pairs[-1]
        q *= (s @ y) / (y @ y)
    for (s, y), share in zip(pairs, reversed(shares), strict=True):
        q += s * (share - (y @ q) / (s @ y))
    return q


def is_finite(value: float, slope: np.ndarray) -> bool:
    """Whether an objective and its gradient are finite."""
    return bool(np.isfinite(value) and np.all(np.isfinite(slope)))
