"""Draw outcomes from the posterior predictive distribution, a chunk of rows at a time."""

from __future__ import annotations

import os
from collections.abc import Iterator
from math import prod

import numpy as np

from modicum.errors import DataError, SettingError, whole_number
from modicum.files import within_disk
from modicum.models import BaseModel, IntegratedEffects, LinearPredictorModel
from modicum.models.prediction import ModelPredictor
from modicum.models.prior_draws import prior_draws
from modicum.posterior.alignment import AlignedRows, Batch, Groups
from modicum.posterior.draws import Draws, require_finite, thinned
from modicum.posterior.fitted import FittedDraws
from modicum.posterior.prediction import in_pieces
from modicum.posterior.resampling import equal_places, require_positive_sum
from modicum.posterior.row_effects import (
    OutcomeDraws,
    all_new,
    known_effects,
    new_effects,
    with_groups,
)
from modicum.random import Stream, generator

MOST_BYTES = 4 * 2**30  # of drawn outcomes held in memory


def outcome_draws(
    source: FittedDraws,
    rows: AlignedRows,
    draws: int,
    seed: int,
    groups: Groups | None,
    prior: bool,
    averaged: bool = False,
) -> tuple[OutcomeDraws, AlignedRows]:
    """Return what to draw outcomes from, and the rows, marked where their groups are new.

    The draws are equally weighted, except that signs are kept if outcomes will be `averaged`.
    """
    whole_number("draws", draws)
    fit = source.fit()
    predictor = ModelPredictor(fit.model)
    rows = with_groups(rows, fit.model, groups)
    if prior:
        shapes = {name: x.shape[2:] for name, x in source.draws.items()}
        parameters = prior_draws(fit.model, shapes, draws, generator(seed, Stream.PRIOR_DRAWS))
        return prior_outcome_draws(predictor, parameters, rows, seed)
    signs = None
    if averaged and source.weights is not None and (source.weights < 0).any():
        require_finite(source.draws, "a check")
        subset, (signs,) = thinned(source, draws)
        require_positive_sum(signs, "a check")
    else:
        subset = equal_draws(source, draws, seed, "drawing outcomes")
    known = known_effects(source, subset, rows)
    new = new_effects(predictor, subset, rows, seed)
    return OutcomeDraws(subset, predictor, (*known, *new), signs), rows


def prior_outcome_draws(
    predictor: ModelPredictor, draws: dict[str, np.ndarray], rows: AlignedRows, seed: int
) -> tuple[OutcomeDraws, AlignedRows]:
    """Return what to draw outcomes from with draws of the prior, and the rows.

    Before the data every group is like a new one; explicit effects are among the draws.
    """
    if isinstance(predictor.model, IntegratedEffects):
        rows = all_new(rows, (predictor.model.group,))
    effects = new_effects(predictor, draws, rows, seed)
    return OutcomeDraws(draws, predictor, effects), rows


def equal_draws(source: Draws, number: int, seed: int, purpose: str) -> dict[str, np.ndarray]:
    """Return equally weighted draws: evenly spaced, or resampled if their weights differ."""
    require_finite(source.draws, purpose)
    total = source.chains * source.num_draws
    weights = source.weights.reshape(-1) if source.weights is not None else None
    at = equal_places(weights, total, number, seed, purpose)
    return {name: x.reshape(total, *x.shape[2:])[at] for name, x in source.draws.items()}


def outcomes(
    source: OutcomeDraws, rows: AlignedRows, seed: int
) -> Iterator[tuple[Batch, np.ndarray]]:
    """Yield batches of rows in order, each with an outcome per draw and row (draws, rows)."""
    model = source.predictor.model
    family = model.family if isinstance(model, IntegratedEffects) else model
    rng = generator(seed, Stream.OUTCOMES)
    if not isinstance(family, LinearPredictorModel):
        has_classes = type(model).decide is not BaseModel.decide
        if model.simulates or not has_classes:
            return _simulated(source, rows, rng)
        return in_pieces(rows, source.number, lambda batch: _draw_classes(rng, source, batch))
    _require_fields(family, rows)

    def draw(batch: Batch) -> np.ndarray:
        eta, sd = source.predictors(batch)
        if sd.any():  # of groups that the rows do not name: every row is in another one
            eta[..., 0] += sd * rng.standard_normal(sd.shape)
        return family.draw_outcomes(rng, eta, batch)

    return in_pieces(rows, source.number * (1 + len(family.extras)), draw)


def _simulated(
    source: OutcomeDraws, rows: AlignedRows, rng: np.random.Generator
) -> Iterator[tuple[Batch, np.ndarray]]:
    """Yield outcomes of a custom model: each draw has a random key, split into one per row."""
    words = rng.integers(0, 2**32, size=(source.number, 2), dtype=np.uint32)
    first = 0

    def draw(batch: Batch) -> np.ndarray:
        nonlocal first
        drawn = source.predictor.simulated(source.draws, batch, words, first)
        first += drawn.shape[1]
        return drawn

    return in_pieces(rows, source.number, draw)


def _require_fields(family: LinearPredictorModel, rows: AlignedRows) -> None:
    """Refuse rows that lack a field outcomes depend on, such as the trials of a binomial."""
    for name in family.outcome_fields:
        if name not in ("y", "event") and name not in rows.fields:
            raise DataError(
                f"outcomes of {type(family).__name__} depend on the field {name!r}, which these "
                "rows lack; add it."
            )


def _draw_classes(rng: np.random.Generator, source: OutcomeDraws, batch: Batch) -> np.ndarray:
    """Draw classes according to their probabilities."""
    expected = source.predictor(source.draws, batch)
    uniform = rng.random(expected.shape[:2])
    if expected.ndim == 2:
        return 1.0 * (uniform < expected)
    return 1.0 * (uniform[..., None] > np.cumsum(expected, axis=-1)[..., :-1]).sum(axis=-1)


def outcome_array(
    source: OutcomeDraws, rows: AlignedRows, seed: int, out: str | os.PathLike[str] | None
) -> np.ndarray:
    """Return all outcomes (draws, rows, ...), in memory or mapped to a .npy file."""
    filled, first = None, 0
    _refuse_many((source.number, len(rows)), out)
    for _, drawn in outcomes(source, rows, seed):
        if filled is None:
            filled = _array((source.number, len(rows), *drawn.shape[2:]), out)
        filled[:, first : first + drawn.shape[1]] = drawn
        first += drawn.shape[1]
    assert filled is not None, "there is at least one row"
    return filled


def _array(shape: tuple[int, ...], out: str | os.PathLike[str] | None) -> np.ndarray:
    if out is None:
        _refuse_many(shape, out)
        return np.empty(shape)
    with within_disk(out):
        mapped: np.ndarray = np.lib.format.open_memmap(out, "w+", np.float64, shape)
        if hasattr(os, "posix_fallocate"):  # a map that finds the disk full ends the process
            with open(out, "r+b") as file:
                os.posix_fallocate(file.fileno(), 0, os.path.getsize(out))
    return mapped


def _refuse_many(shape: tuple[int, ...], out: str | os.PathLike[str] | None) -> None:
    """Refuse arrays that are too large for memory."""
    number = prod(shape)
    if out is None and 8 * number > MOST_BYTES:
        raise SettingError(
            f"{shape[0]:,} outcomes of {shape[1]:,} rows would take {8 * number / 2**30:,.0f} GB; "
            "draw fewer, or write them to a file with out='outcomes.npy'."
        )


def density_array(
    predictor: ModelPredictor, draws: dict[str, np.ndarray], rows: AlignedRows
) -> np.ndarray:
    """Return the log-densities of observed outcomes, (draws, rows)."""
    number = len(next(iter(draws.values())))
    parts = in_pieces(rows, number, lambda batch: predictor.outcome(draws, batch)[1])
    return np.concatenate([part for _, part in parts], axis=1)
