"""Weights for averaging models: stacking and pseudo-Bayesian model averaging.

Stacking (Yao, Vehtari, Simpson and Gelman 2018) takes the weights w >= 0 of sum one that maximise

    sum_i log sum_k w_k exp(elpd_ik),

the log score of a mixture of the models on rows that were left out. If rows were subsampled, the
sum over all rows is the difference estimator, as for elpd. Pseudo-BMA weights are proportional to
exp(elpd); with the Bayesian bootstrap, they are averaged over bootstrap replicates of elpd.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from scipy.special import softmax

from modicum.errors import SettingError
from modicum.posterior.checking.leave_one_out import LeaveOneOut
from modicum.random import Stream, generator

Weighting = Literal["stacking", "bb-pseudo-bma", "pseudo-bma"]
METHODS = ("stacking", "bb-pseudo-bma", "pseudo-bma")
BOOTSTRAPS = 1_000


def require_weighting(method: object) -> None:
    """Refuse an unknown method of weighting models."""
    if method not in METHODS:
        raise SettingError(
            f"method must be 'stacking', 'bb-pseudo-bma' or 'pseudo-bma', not {method!r}."
        )


def model_weights(models: Sequence[LeaveOneOut], method: Weighting, seed: int) -> np.ndarray:
    """Return weights, which sum to one, of models with the same rows left out."""
    if method == "stacking":
        return _stacking_weights(*_terms(models))
    totals = np.array([left_out.total().value for left_out in models])
    if method == "pseudo-bma":
        return np.asarray(softmax(totals))
    rng = generator(seed, Stream.MODEL_WEIGHTS)
    if models[0].sample.times is None:
        rows, mass = _terms(models)
        drawn = rng.standard_gamma(np.broadcast_to(mass, (BOOTSTRAPS, len(mass))))
        shares = drawn / drawn.sum(axis=1, keepdims=True)
        return np.asarray(softmax(mass.sum() * shares @ rows, axis=1).mean(axis=0))
    # with many rows the bootstrap sums are normal, and only their differences matter
    gaps = np.array([[models[0].total(1, other).value] for other in models[1:]]).reshape(-1)
    drawn = rng.multivariate_normal(-gaps, _covariance(models), size=BOOTSTRAPS)
    first = np.zeros((BOOTSTRAPS, 1))
    return np.asarray(softmax(np.concatenate([first, drawn], axis=1), axis=1).mean(axis=0))


def _covariance(models: Sequence[LeaveOneOut]) -> np.ndarray:
    """Return the covariance of elpd differences from the first model, from pairwise variances."""
    count = len(models)
    squares = np.zeros((count, count))
    for i in range(count):
        for j in range(i):
            squares[i, j] = squares[j, i] = models[i].error(models[j]) ** 2
    raw = (squares[:1, 1:] + squares[1:, :1] - squares[1:, 1:]) / 2
    values, vectors = np.linalg.eigh(raw)  # estimates may leave it slightly indefinite
    return np.asarray((vectors * np.maximum(values, 0.0)) @ vectors.T)


def _terms(models: Sequence[LeaveOneOut]) -> tuple[np.ndarray, np.ndarray]:
    """Return elpd (terms, models), and the weight of each term in a sum over all rows."""
    sample, weight = models[0].sample, models[0].weight
    left_out = np.stack([model.elpd for model in models], axis=1)
    if sample.times is None:
        return left_out, weight
    near = np.stack([model.approximate.elpd.astype(float) for model in models], axis=1)
    mass = weight[sample.row_ids] * sample.times / sample.probability / sample.times.sum()
    terms = np.concatenate([near, left_out, near[sample.row_ids]])
    return terms, np.concatenate([weight, mass, -mass])


def _stacking_weights(terms: np.ndarray, mass: np.ndarray) -> np.ndarray:
    from scipy.optimize import minimize

    count = terms.shape[1]
    density = np.exp(terms - terms.max(axis=1, keepdims=True))
    scale = mass.sum()

    def score(weights: np.ndarray) -> tuple[float, np.ndarray]:
        mixed = np.maximum(density @ weights, 1e-300)
        return -float(mass @ np.log(mixed)) / scale, -((mass / mixed) @ density) / scale

    best = minimize(
        score,
        np.full(count, 1 / count),
        jac=True,
        method="SLSQP",
        bounds=[(0.0, 1.0)] * count,
        constraints={"type": "eq", "fun": lambda w: w.sum() - 1, "jac": np.ones_like},
        options={"ftol": 1e-10, "maxiter": 500},
    )
    weights = np.clip(best.x, 0.0, 1.0)
    return np.asarray(weights / weights.sum())
