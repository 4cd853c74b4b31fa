"""Second-order expansion of a log-likelihood, which can be re-expanded about another point."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Quadratic:
    """C + A'(t - point) + (t - point)' B (t - point) / 2.

    Quadratics of several data sets can be added although their points differ: moving one to another
    point changes its coefficients, but not the function.

    Examples
    --------
    >>> import numpy as np
    >>> about_0 = Quadratic(np.zeros(1), 1.0, np.array([2.0]), np.array([[-4.0]]))
    >>> about_1 = about_0.moved(np.ones(1))
    >>> about_1.C, about_1.A, (about_0 - about_1).C
    (1.0, array([-2.]), 0.0)
    """

    point: np.ndarray
    C: float
    A: np.ndarray
    B: np.ndarray

    def moved(self, point: np.ndarray) -> Quadratic:
        """Return the same function, expanded about another point."""
        dt = point - self.point
        if not dt.any():
            return self
        bent = self.B @ dt
        return Quadratic(point, float(self.C + dt @ (self.A + bent / 2)), self.A + bent, self.B)

    def values(self, t: np.ndarray) -> np.ndarray:
        """Return the values at points t of shape (..., d)."""
        dt = t - self.point
        return np.asarray(self.C + np.sum(dt * (self.A + dt @ self.B / 2), axis=-1))

    def slopes(self, t: np.ndarray) -> np.ndarray:
        """Return the gradients at points t of shape (..., d)."""
        return np.asarray(self.A + (t - self.point) @ self.B)

    def __add__(self, other: Quadratic) -> Quadratic:
        """Return the sum, expanded about the point of the first."""
        moved = other.moved(self.point)
        return Quadratic(self.point, self.C + moved.C, self.A + moved.A, self.B + moved.B)

    def __neg__(self) -> Quadratic:
        return Quadratic(self.point, -self.C, -self.A, -self.B)

    def __sub__(self, other: Quadratic) -> Quadratic:
        return self + -other
