"""Prediction for rows, many or few: a chunk of rows at a time, a subset of the draws."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from modicum.errors import SettingError
from modicum.posterior.weighted import weighted_mean, weighted_quantile

if TYPE_CHECKING:
    from modicum.posterior.posterior import Posterior

__all__ = ["Prediction", "Predictor", "in_pieces", "predict", "thinned"]

Batch = Mapping[str, Any]
Predictor = Callable[[dict[str, np.ndarray], Batch], Any]
"""From draws ``name -> (S, *shape)`` and a batch of rows to expected outcomes (S, rows, ...)."""

CHUNK_BYTES = 32 * 2**20  # for the outcomes of a chunk; sorting them needs a few times as much
FIRST_ROWS = 1024  # until the first outcome has shown how wide they are


@dataclass(frozen=True, eq=False)
class Prediction:
    """The expected outcome of each row, and how uncertain the posterior leaves it.

    The interval is that of the expected outcome (a probability, a mean), not of a new
    observation.

    Parameters
    ----------
    mean, lower, upper
        Arrays with one entry (or one line of entries) a row.
    prob
        Posterior probability of the equal-tailed interval from `lower` to `upper`.
    draws
        Posterior draws used.
    """

    mean: np.ndarray
    lower: np.ndarray
    upper: np.ndarray
    prob: float
    draws: int

    def __len__(self) -> int:
        return len(self.mean)


def predict(posterior: Posterior, rows: Any, draws: int = 200, prob: float = 0.9) -> Prediction:
    """Predict each row's expected outcome from evenly spaced draws, chunk by chunk."""
    predictor = posterior.predictor
    if predictor is None:
        raise SettingError(
            "This posterior cannot predict because its model gave no predictor; "
            "compute from posterior.draws instead."
        )
    if draws < 1 or not 0 < prob < 1:
        raise SettingError(f"Ask for at least one draw and 0 < prob < 1, not {draws} and {prob}.")
    subset, weights = thinned(posterior, draws)
    used = weights.size
    ends = [(1 - prob) / 2, (1 + prob) / 2]

    def evaluate(piece: Batch) -> np.ndarray:
        outcome = np.asarray(predictor(subset, piece), dtype=float)
        if outcome.ndim < 2 or outcome.shape[:2] != (used, _length(piece)):
            raise SettingError(
                f"The predictor returned shape {outcome.shape} for {used} draws and "
                f"{_length(piece)} rows; it must return one value per draw and row."
            )
        return outcome

    parts = [
        _mean_and_ends(outcome, weights, ends) for _, outcome in in_pieces(rows, used, evaluate)
    ]
    mean, lower, upper = np.concatenate(parts, axis=1)
    return Prediction(mean, lower, upper, prob, used)


def in_pieces(
    rows: Any, draws: int, evaluate: Callable[[Batch], np.ndarray]
) -> Iterator[tuple[Batch, np.ndarray]]:
    """Visit all rows in order, in pieces whose outcomes (draws, rows, ...) fit in memory."""
    most = max(1, CHUNK_BYTES // (8 * draws))
    step, seen = min(most, FIRST_ROWS), False
    for batch in _chunks(rows, most):
        size, start = _length(batch), 0
        while start < size:
            piece = {k: v[start : start + step] for k, v in batch.items()}
            start += step
            outcome = evaluate(piece)
            # an outcome of several classes is wider than one number a row
            step = max(1, most // max(1, int(np.prod(outcome.shape[2:], dtype=int))))
            seen = True
            yield piece, outcome
    if not seen:
        raise SettingError("There are no rows to predict.")


def thinned(posterior: Posterior, draws: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """At most `draws` draws, evenly spaced over all chains, and their weights (1, draws).

    No chance is involved: the same posterior always predicts the same.
    """
    total = posterior.chains * posterior.num_draws
    used = min(draws, total)
    at = ((2 * np.arange(used) + 1) * total) // (2 * used)
    subset = {k: v.reshape(total, *v.shape[2:])[at] for k, v in posterior.draws.items()}
    weights = np.ones(total) if posterior.weights is None else posterior.weights.reshape(-1)
    return subset, weights[at][None]


def _mean_and_ends(outcome: np.ndarray, weights: np.ndarray, ends: list[float]) -> np.ndarray:
    if np.ptp(weights) == 0:
        low, high = np.quantile(outcome, ends, axis=0)
        return np.stack([outcome.mean(axis=0), low, high])
    low, high = weighted_quantile(outcome[None], weights, ends)
    return np.stack([weighted_mean(outcome[None], weights), low, high])


def _chunks(rows: Any, size: int) -> Iterator[Batch]:
    if hasattr(rows, "chunks"):
        yield from cast("Iterator[Batch]", rows.chunks(size))
    elif isinstance(rows, Mapping):
        yield {k: np.asarray(v) for k, v in rows.items()}
    else:
        raise SettingError(
            "Rows to predict must be modicum rows or a dict of arrays such as "
            f"{{'x': X}}, not {type(rows).__name__}."
        )


def _length(batch: Batch) -> int:
    return len(next(iter(batch.values())))
