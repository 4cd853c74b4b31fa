"""Detection of improper posteriors, which flat priors may lead to.

If columns are collinear, or separate the outcomes, the likelihood is flat along a line, and with a
flat prior so is the posterior.
"""

from __future__ import annotations

import numpy as np

from modicum.errors import ConvergenceError
from modicum.models.arrow import ArrowCholesky, ArrowMatrix, diagonal
from modicum.passes.curvature import Curvature
from modicum.passes.sums import Sums

SINGULAR = 1e-10  # smallest acceptable eigenvalue of the precision, scaled to a unit diagonal
FAR_OUT = 20.0  # standard deviations, at which a log-likelihood with a maximum falls by ...
FALL = 3.0  # ... more than this
LOOKED_AT = 4  # coefficients to check: those that the data inform least


def require_proper(sums: Sums, at: Curvature, names: tuple[str, ...]) -> None:
    """Refuse a posterior that flat priors leave improper, judged at its mode."""
    flat = diagonal(at.prior_hessian) == 0
    if not sums.target.model.has_flat_prior or not flat.any():
        return
    precision, places = _information(at)
    scale = np.sqrt(np.maximum(np.diag(precision), np.finfo(float).tiny))
    values, vectors = np.linalg.eigh(precision / np.outer(scale, scale))
    if values[0] < SINGULAR:
        top = np.argsort(-np.abs(vectors[:, 0]))[:3]
        along = ", ".join(
            parameter_name(names, int(places[i])) for i in top if abs(vectors[i, 0]) > 0.1
        )
        raise ConvergenceError(
            f"the posterior is improper: the data say nothing about some combination of {along}, "
            "which are collinear, and their priors are flat; drop a column, or give them a prior "
            "such as mo.priors.Normal(0, 1)."
        )
    endless = None
    if not sums.target.model.has_groups and sums.rest is None:
        separated, passes = sums.target.model.separation(sums.rows, sums.target.unravel(at.point))
        sums.enter("separation", passes, "density", passes)
        endless = None if separated is None else "the outcome"
    if endless is None:
        endless = _endless(sums, at, flat, names)
    if endless is not None:
        raise ConvergenceError(
            f"the posterior is improper: the likelihood has no maximum, since columns predict "
            f"{endless} perfectly (a level with one outcome only, say), and their priors are flat; "
            "merge or drop them, or give them a prior such as mo.priors.Normal(0, 1)."
        )


def _endless(sums: Sums, at: Curvature, flat: np.ndarray, names: tuple[str, ...]) -> str | None:
    """Return a coefficient along which the likelihood does not fall, as text, if any."""
    precision, places = _information(at)
    covariance = np.linalg.inv(precision)
    sd = np.sqrt(np.diag(covariance))
    ends = np.flatnonzero(flat[places])
    ends = ends[np.argsort(-sd[ends] * _sizes(sums)[places][ends])][:LOOKED_AT]
    steps = FAR_OUT * _columns(at, covariance, places[ends]) / sd[ends][:, None]
    values = sums.values(np.concatenate([at.point + steps, at.point - steps]), "separation")
    least = at.C - values.reshape(2, -1).max(axis=0)
    worst = int(np.argmin(least))
    called = parameter_name(names, int(places[ends[worst]]))
    return f"the outcome along {called}" if least[worst] < FALL else None


def _information(at: Curvature) -> tuple[np.ndarray, np.ndarray]:
    """Return the precision and the indices of its entries; of the border alone for an arrow."""
    if isinstance(at.precision, ArrowMatrix):
        return at.precision.border_alone(), np.asarray(at.precision.border)
    return at.precision, np.arange(len(at.point))


def _columns(at: Curvature, covariance: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Return the columns `ends` of the covariance of all parameters, as rows."""
    if not isinstance(at.precision, ArrowMatrix):
        return np.asarray(covariance[:, ends].T)
    factored, hot = ArrowCholesky.mending(at.precision), np.zeros((len(ends), len(at.point)))
    hot[np.arange(len(ends)), ends] = 1
    return np.stack([factored.solve(line) for line in hot])


def _sizes(sums: Sums) -> np.ndarray:
    """Return the approximate size of each entry's column; 1 for entries without one."""
    sizes = np.ones(sums.target.size)
    x = sums.rows.slice(0, min(len(sums.rows), 4096)).get("x")
    if x is not None and x.ndim == 2 and x.shape[1] <= len(sizes):
        sizes[: x.shape[1]] = np.sqrt(np.mean(np.asarray(x, np.float64) ** 2, axis=0))
    return sizes


def parameter_name(names: tuple[str, ...], i: int) -> str:
    """Return the name of the i-th parameter, or its number if it has no name."""
    return names[i] if i < len(names) else f"parameter {i}"
