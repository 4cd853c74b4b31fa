"""Small problems of every family, and their expansion about a point."""

from functools import cache, partial

import jax
import numpy as np

import modicum as mo
from helpers.targets import all_of, class_rows, gaussian_rows, logistic_rows, poisson_rows, sums_of
from modicum.kernels.control_variates import AutodiffTaylor, LinearTaylor, proxy
from modicum.passes import anchor_at
from modicum.passes.curvature import prior_slope

M = mo.models

LINEAR = {
    "logistic": (M.Logistic(), logistic_rows),
    "poisson": (M.Poisson(), poisson_rows),
    "gaussian": (M.Gaussian(scale=0.7), gaussian_rows),
    "student": (M.StudentT(scale=0.7), gaussian_rows),
}
OTHERS = {
    "softmax": (M.Softmax(classes=3), class_rows),
    "gaussian, scale estimated": (M.Gaussian(), gaussian_rows),
    "student, scale estimated": (M.StudentT(), gaussian_rows),
}


class Expansion:
    """A model expanded about a point (by default some point near zero), with all of its rows."""

    def __init__(self, model, rows, order, point=None, form=None):
        self.sums, start = sums_of(model, rows)
        self.target, self.rows, self.n = self.sums.target, rows, len(rows)
        point = 0.1 * np.cos(np.arange(len(start))) if point is None else point
        self.anchor = anchor_at(self.sums, point)
        self.prior_at_anchor, _ = prior_slope(self.target, point)
        self.proxy = proxy(self.anchor, self.target, order)
        self.cv = (form or AutodiffTaylor)(self.target, order)
        self.cached = self.cache(np.ones(self.n))

    def cache(self, probability, picked=None):
        """Cache all rows, or the given ones, as a kernel does."""
        batch = all_of(self.rows) if picked is None else self.rows.take(picked)
        return _cache(self.cv, batch | {"probability": np.asarray(probability)}, self.proxy)

    def residuals(self, z):
        """Return d_k of every row at whitened coordinates z."""
        return self.values(self.cached, z)

    def values(self, cached, z):
        return np.asarray(_values(self.cv, cached, np.asarray(z), self.proxy))

    def point(self, z):
        return self.anchor.point + self.anchor.factor @ z


@partial(jax.jit, static_argnums=0)
def _cache(cv, batch, proxy):
    return cv.cache(batch, proxy)


@partial(jax.jit, static_argnums=0)
def _values(cv, cached, z, proxy):
    return cv.values(cached, z, proxy)


@cache
def expanded(family, order, form=None, n=60):
    """Return the expansion of a family, cached because compiling is the main cost."""
    model, make = (LINEAR | OTHERS)[family]
    return Expansion(model, make(n), order, form=form or form_for(family))


def form_for(family):
    """Return the control variate for the family."""
    return LinearTaylor if family in LINEAR else AutodiffTaylor
