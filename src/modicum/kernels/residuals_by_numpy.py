"""Residuals of rows and groups at many draws, computed by NumPy.

A pool of rows weighs draws, and a pilot study examines residuals: both evaluate a few thousand
rows, or some groups, at a few hundred draws, once, which is not worth compiling for. The formulas
are those of `remainder` and `group_residuals`, applied to NumPy arrays, for families with explicit
derivatives.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeGuard

import jax
import jax.numpy as jnp
import numpy as np

from modicum.arrays import as_either
from modicum.kernels.control_variates import LinearRows, LinearTaylor, along_levels
from modicum.kernels.group_residuals import FlatCache, GroupTaylor
from modicum.kernels.protocols import ControlVariate, LevelCurves, Proxy
from modicum.kernels.remainder import (
    About,
    far_apart,
    less_polynomial,
    remainder_by_numpy,
    series_value,
)
from modicum.kernels.whitening import scaled
from modicum.models import LinearPredictorModel
from modicum.models.integrals import NumPyGroups
from modicum.models.model import Batch
from modicum.runtime import Pytree, in_double_precision, jit, one_blas_thread

BLOCK = 256  # rows and draws per block, which stays in cache over a dozen operations


def needs_no_compiler(control_variate: ControlVariate[Pytree]) -> TypeGuard[LinearTaylor]:
    """Whether NumPy can evaluate residuals of this kind."""
    return isinstance(control_variate, LinearTaylor) and control_variate.target.on_numpy


class NumPyRows:
    """Cached rows, to be evaluated at draws z of whitened coordinates.

    Parameters
    ----------
    control_variate, proxy
        The control variate and its proxy; see `needs_no_compiler`.
    batch
        The rows, with their `probability`.
    """

    def __init__(self, control_variate: LinearTaylor, batch: Batch, proxy: Proxy) -> None:
        model = control_variate.target.model
        assert isinstance(model, LinearPredictorModel)
        self._model, self._order = model, control_variate.order
        self._levels: LevelCurves | None = jax.tree.map(np.asarray, proxy.levels)
        self.count = len(batch["probability"])
        on_host = jax.tree.map(np.asarray, proxy)
        fields = {name: np.asarray(values) for name, values in batch.items()}
        with np.errstate(all="ignore"):
            self._blocks = [
                control_variate.cache(
                    {name: values[first : first + BLOCK] for name, values in fields.items()},
                    on_host,
                )
                for first in range(0, self.count, BLOCK)
            ]

    @property
    def whitened(self) -> np.ndarray:
        """The rows in whitened coordinates, (rows, d)."""
        return np.concatenate([np.asarray(block.rows) for block in self._blocks])

    def values(self, z: np.ndarray) -> np.ndarray:
        """D of each row at each draw, (draws, rows)."""
        out = np.empty((len(z), self.count))
        for draws, rows, values in self.in_blocks(z):
            out[draws, rows] = values
        return out

    def in_blocks(self, z: np.ndarray) -> Iterator[tuple[slice, slice, np.ndarray]]:
        """Yield `values` in blocks: slices of the draws and rows, and D of these."""
        with one_blas_thread(), ThreadPoolExecutor(os.cpu_count()) as threads:
            for first in range(0, len(z), BLOCK):
                draws = slice(first, first + BLOCK)
                evaluate = partial(self._evaluate_block, z[draws])
                for k, values in enumerate(threads.map(evaluate, self._blocks)):
                    yield draws, slice(k * BLOCK, k * BLOCK + values.shape[1]), values

    def gradients(self, z: np.ndarray) -> np.ndarray:
        """Gradient of D of each row at one draw (d,), (rows, d)."""
        parts = []
        for block in self._blocks:
            rows, scale = np.asarray(block.rows), np.asarray(block.scale)
            with np.errstate(all="ignore"):
                slope = self._slope(rows @ z.astype(rows.dtype), block)
                gradients = slope[:, None] * rows
                if self._levels is not None:
                    gradients -= self._gradients_along_levels(z, block)
                parts.append(scale[:, None] * gradients)
        return np.concatenate(parts).astype(np.float64)

    def _gradients_along_levels(self, z: np.ndarray, block: LinearRows) -> np.ndarray:
        """Gradient of the remainder along the direction of each row's level."""
        assert self._levels is not None
        e = self._along_levels(z[None], block)[0]
        direction = np.asarray(self._levels.direction)
        low, high = np.asarray(self._levels.ends)
        within = (low < direction @ z) & (direction @ z < high)
        slope = self._slope(e, block) * np.asarray(block.along) * within[block.curve]
        return np.asarray(slope[:, None] * direction[block.curve])

    def _along_levels(self, z: np.ndarray, block: LinearRows) -> np.ndarray:
        """Return how far the predictors of rows are from eta* along their level's direction."""
        assert self._levels is not None
        away = np.asarray(along_levels(as_either(z), self._levels))
        return np.asarray(away[:, block.curve] * np.asarray(block.along))

    def _evaluate_block(self, z: np.ndarray, block: LinearRows) -> np.ndarray:
        rows = np.asarray(block.rows)
        with np.errstate(all="ignore"):  # callers check for non-finite values
            values = self._remainders(z.astype(rows.dtype) @ rows.T, block)
            if self._levels is not None:
                values -= self._remainders(self._along_levels(z, block), block)
            return np.asarray(np.asarray(block.scale) * values, np.float64)

    def _remainders(self, e: np.ndarray, block: LinearRows) -> np.ndarray:
        """Remainder of each row at these distances of its predictor, (draws, rows)."""
        taylor = block.taylor.T
        values = np.asarray(series_value(as_either(e), taylor[:, None, :], self._order))
        large = np.asarray(far_apart(self._model, as_either(e)))
        if large.any():
            at, far = np.nonzero(large)[1], as_either(e[large])
            rise = self._model.value(block.eta[at] + far, block.y[at]) - taylor[0][at]
            values[large] = less_polynomial(rise, far, taylor[:, at], self._order)
        return values

    def _slope(self, e: np.ndarray, block: LinearRows) -> np.ndarray:
        """Derivative in e of the remainder of each row."""
        about = About(block.eta, block.y, block.taylor.T)
        return remainder_by_numpy(self._model, self._order, as_either(e), about)[1]


DRAWS_PER_CALL = 32  # draws whose paths are found by one compiled call
STEP = 1e-3  # step of numerical derivatives, in posterior standard deviations


def groups_need_no_compiler(control_variate: ControlVariate[Pytree]) -> TypeGuard[GroupTaylor]:
    """Whether NumPy can evaluate residuals of this kind."""
    return isinstance(control_variate, GroupTaylor) and control_variate.target.on_numpy


class NumPyGroupValues:
    """Cached groups, to be evaluated at draws z of whitened coordinates.

    Parameters
    ----------
    control_variate, proxy
        The control variate and its proxy; see `groups_need_no_compiler`.
    batch
        The groups, flat, with their `probability`.
    """

    def __init__(self, control_variate: GroupTaylor, batch: Batch, proxy: Proxy) -> None:
        self._form = control_variate
        self._proxy: Proxy = jax.tree.map(np.asarray, proxy)
        centre, scale = np.asarray(batch["group_centre"]), 1 / np.asarray(batch["probability"])
        with np.errstate(all="ignore"):
            self._blocks = [
                control_variate.flat_cache(
                    block, as_either(centre[own]), as_either(scale[own]), self._proxy
                )
                for own, block in NumPyGroups.of(batch).in_blocks()
            ]

    def values(self, z: np.ndarray) -> np.ndarray:
        """D of each group at each draw, (draws, groups), on all cores."""
        with one_blas_thread(), ThreadPoolExecutor(os.cpu_count()) as threads:
            parts = list(threads.map(partial(self._evaluate_block, self._moves(z)), self._blocks))
        return np.concatenate(parts, axis=1)

    def values_in_turn(self, z: np.ndarray) -> np.ndarray:
        """`values` on the calling thread alone, for callers that run many threads."""
        moves = self._moves(z)
        return np.concatenate(
            [self._evaluate_block(moves, block) for block in self._blocks], axis=1
        )

    def gradients(self, z: np.ndarray) -> np.ndarray:
        """Gradient of D of each group at each draw, (draws, groups, d), by central differences.

        They are accurate enough: D has about a dozen correct digits.
        """
        size = z.shape[1]
        steps = STEP * np.eye(size)
        points = z[:, None, None] + np.stack([steps, -steps])[None]
        both = self.values(points.reshape(-1, size)).reshape(len(z), 2, size, -1)
        return np.moveaxis(both[:, 0] - both[:, 1], 1, 2) / (2 * STEP)

    def _moves(self, z: np.ndarray) -> list[tuple[np.ndarray, tuple[np.ndarray, ...]]]:
        """t - t* of each draw, and the path of the effects' covariance factor to it."""
        away = np.stack([np.asarray(scaled(self._proxy.factor, as_either(draw))) for draw in z])
        return list(zip(away, self._paths(away), strict=True))

    def _paths(self, away: np.ndarray) -> Iterator[tuple[np.ndarray, ...]]:
        covariance = self._form.model.covariance
        if not covariance.pairs:
            yield from (self._form.path_of_variances(self._proxy, t) for t in away)
            return
        for first in range(0, len(away), DRAWS_PER_CALL):
            part = away[first : first + DRAWS_PER_CALL]
            padded = np.concatenate([part, np.zeros((DRAWS_PER_CALL - len(part), away.shape[1]))])
            paths = _compiled_paths(self._form, self._proxy, padded)
            yield from zip(*[np.asarray(T)[: len(part)] for T in paths], strict=True)

    def _evaluate_block(
        self, moves: list[tuple[np.ndarray, tuple[np.ndarray, ...]]], block: FlatCache
    ) -> np.ndarray:
        with np.errstate(all="ignore"):  # callers check for non-finite values
            values = [
                self._form.along(block, as_either(away), self._proxy, tuple(map(as_either, path)))
                for away, path in moves
            ]
        return np.stack([np.asarray(value) for value in values])


@in_double_precision
def _compiled_paths(
    control_variate: GroupTaylor, proxy: Proxy, away: np.ndarray
) -> tuple[jax.Array, ...]:
    return _paths(control_variate, proxy, as_either(away))


@jit(static=0)
def _paths(control_variate: GroupTaylor, proxy: Proxy, away: jax.Array) -> tuple[jax.Array, ...]:
    path = partial(control_variate.factor_path, proxy)
    return jax.vmap(lambda t: path(jnp.asarray(proxy.point) + t))(away)
