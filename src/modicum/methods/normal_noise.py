"""Normal noise: draws that no row needs to weigh, from one pass over the rows.

At a known scale of the noise the log-likelihood is a quadratic in the coefficients, whose sums one
pass forms. Given all scales, that of the noise among them, the coefficients are exactly normal, and
the density of the scales is known but for a constant (`given_scales`): draws of coefficients and
scales are weighted by that density over the one from which the scales were drawn.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from modicum.arrays import HALF_LOG_2PI, as_either
from modicum.errors import ModicumWarning
from modicum.linalg.arrow import ArrowMatrix
from modicum.methods.given_scales import Pooled, not_pooled, pools_all_scales
from modicum.methods.method import Task
from modicum.methods.nested_draws import STEP, ScaleDensity, find_mode
from modicum.methods.quadratics import ArrowQuadratic, NoiseQuadratic, in_layout
from modicum.models import Target
from modicum.models.model import DENSE_LIMIT
from modicum.models.priors.resolved import prior_warnings
from modicum.models.target import NormalPrior
from modicum.passes.anchor import prior_decides, with_causes
from modicum.passes.curvature import parameter_name
from modicum.passes.hyperparameters import group_notes
from modicum.passes.mode import require_noise
from modicum.random import Stream, generator

SHRUNK = 1e-6  # share of the squared residuals below which sums about the origin lose digits
LOOKED_AT = 256  # draws at the mode that tell how far the data determine effects


def normal_given_scales(task: Task) -> Pooled | None:
    """Sum the rows of a model that is normal given scales; None for any other model.

    Priors of coefficients that are not pooled must be normal too, and there must be noise.
    """
    target, known = task.target, task.target.at_known_scale
    if known is None or task.grouped or task.sums.rest is not None:
        return None
    if target.model.has_flat_prior:
        return None
    is_only_scale = known.likelihood.size == target.size - 1 <= DENSE_LIMIT
    if not (is_only_scale or pools_all_scales(target)):
        return None
    first = known.likelihood.size  # scales come after
    apart = not_pooled(target, first)
    is_normal = all(term.pooled or term.smooth for term in target.exact_terms)
    if not (is_normal and target.has_normal_prior[apart].all()):
        return None
    point = np.concatenate([task.start[:first], np.zeros(known.size - first)])
    return _summed(task, known, point, apart)


def _summed(
    task: Task, known: Target, point: np.ndarray, apart: np.ndarray, moves: int = 2
) -> Pooled | None:
    """Sum over the rows at `point`; move the origin to where common coefficients explain most.

    None if that leaves no noise after so many moves.
    """
    target, first = task.target, known.likelihood.size
    C, A, B = replace(task.sums, target=known).curvature(point, "mode")
    information = in_layout(-B, known.arrow_of_effects).leading(first)
    rows, is_known = _rows(task), first == target.likelihood.size
    squares = -2 * (C + rows * HALF_LOG_2PI)  # at a scale of 1
    at = np.searchsorted(information.border, apart)
    of_apart = np.asarray(information.corner)[np.ix_(at, at)]
    away, slope = _prior(target, point, apart)
    variance = 1.0 if is_known else squares / rows
    step = np.linalg.solve(
        of_apart + variance * slope.T @ slope, A[apart] - variance * slope.T @ away
    )
    moved, origin = np.zeros(first), point.copy()
    moved[apart], origin[apart] = step, point[apart] + step
    explained = 2 * A[apart] @ step - step @ of_apart @ step
    if not is_known and squares - explained < SHRUNK * squares:
        return _summed(task, known, origin, apart, moves - 1) if moves else None
    common = information.diagonal_like(np.zeros(first))
    np.asarray(common.corner)[np.ix_(at, at)] = slope.T @ slope
    common_pull = np.zeros(first)
    common_pull[apart] = -slope.T @ (away + slope @ step)
    pull = A[:first] - np.asarray(information @ moved)
    quadratic, start = ArrowQuadratic(information, pull), task.start[first:].copy()
    if not is_known:
        left = float(squares - explained)
        quadratic = NoiseQuadratic(information, pull, rows, left, _scale_prior(target, first))
        start[0] = np.log(left / rows) / 2
    constant = NormalPrior(away + slope @ step, slope).values(np.zeros((1, len(apart))))[0]
    constant -= HALF_LOG_2PI * (first - len(apart))  # of the densities of effects
    if known.model.of_logs:
        for chunk in task.rows.chunks(1 << 20):  # the outcomes' own scale
            logs = np.log(chunk["y"], dtype=np.float64)
            constant -= float(np.sum(chunk.get("weight", 1.0) * logs))
    pooled = Pooled(
        *(quadratic, common, common_pull, origin[:first], target.pooled_terms),
        *(start, np.full(len(start), STEP), float(constant)),
    )
    if not target.pooled_terms:
        return pooled.along_axes()
    mode, _, axes = find_mode(pooled.log_marginals_apart, start, pooled.spread)
    begun_there = replace(pooled, start=mode, spread=np.sqrt(np.sum(axes**2, axis=1)))
    # by the one that is likely kept, since what it eliminates takes long
    at_start, at_mode = begun_there.log_marginals(np.stack([start, mode]))
    # the start is better with correlated columns, each of which explains the same noise again
    return pooled if at_mode < at_start else begun_there


def _rows(task: Task) -> float:
    """Return the number of rows, or the sum of their weights."""
    if "weight" not in task.rows.fields:
        return float(len(task.rows))
    chunks = task.rows.chunks(1 << 20)
    return float(sum(np.sum(chunk["weight"], dtype=np.float64) for chunk in chunks))


def _prior(target: Target, point: np.ndarray, places: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Distances from the prior's centre in its sds, and their derivative, of normal priors."""
    full = np.zeros(target.size)
    full[places] = point[places]
    distances = target.prior_distances(full, places)
    assert distances is not None
    return distances


def _scale_prior(target: Target, place: int) -> Callable[[np.ndarray], np.ndarray]:
    """Return the log-prior of the logarithm of the scale, which is normal or has a smooth term."""
    smooth = [term for term in target.exact_terms if term.smooth]
    away, slope = _prior(target, np.zeros(target.size), np.array([place]))

    def log_prior(log_scale: np.ndarray) -> np.ndarray:
        t = np.zeros((len(log_scale), target.size))
        t[:, place] = log_scale
        logs = NormalPrior(away, slope).values(log_scale[:, None])
        for term in smooth:
            logs += np.asarray(term.log_density(as_either(t)))
        return logs

    return log_prior


def notes_at_mode(task: Task, pooled: Pooled, density: ScaleDensity) -> list[ModicumWarning]:
    """Warn if data and priors disagree, or if data say little, as at any other mode."""
    target, h, first = task.target, density.mode, len(pooled.origin)
    rng = generator(task.seed, Stream.MODE_DRAWS)
    drawn, _, _ = pooled.draw(h[None], rng.standard_normal((1, LOOKED_AT, first)))
    # the mean exactly, since the data may say so little that the noise of draws looks like a doubt
    point = np.concatenate([pooled.draw(h[None], np.zeros((1, 1, first)))[0][0, 0], h])
    require_noise(task.sums, point, converged=True)
    variance = np.concatenate([drawn[0].var(axis=0), np.ones(len(h))])
    covariance = ArrowMatrix.of_diagonal(variance, np.arange(target.size)[:, None], np.arange(0))
    notes = group_notes(target, point, covariance, task.names)
    apart = not_pooled(target, first)
    if not len(apart):
        return notes
    away, slope = _prior(target, point, apart)
    spread = pooled.covariance_of(h, apart)
    called = tuple(parameter_name(task.names, int(i)) for i in apart)
    length = np.sqrt(np.diag(slope @ spread @ slope.T))
    causes = prior_warnings(called, away, length, target.has_normal_prior[apart])
    prior = slope.T @ slope
    information = pooled.information_of(h, apart)
    return with_causes(causes, notes + prior_decides(information, prior, called))
