"""Residuals of rows with a linear predictor at many draws, computed by NumPy.

A pool of rows weighs draws, and a pilot study examines residuals: both evaluate a few thousand rows
at a few hundred draws, once, which is not worth compiling for. The formulas are those of
`estimators.remainder`, applied to NumPy arrays.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeGuard

import jax
import numpy as np

from modicum.arrays import as_either
from modicum.estimators.remainder import (
    direct,
    far_apart,
    less_polynomial,
    series,
    series_value,
)
from modicum.estimators.taylor import LinearRows, LinearTaylor
from modicum.kernels.base import ControlVariate, Proxy
from modicum.models import LinearPredictorModel
from modicum.models.base import Batch
from modicum.runtime import Pytree, one_blas_thread

__all__ = ["NumPyRows", "needs_no_compiler"]

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
            rows, eta, y, taylor, scale = map(np.asarray, block)
            with np.errstate(all="ignore"):
                e = rows @ z.astype(rows.dtype)
                slope = self._slope(e, eta, y, taylor.T)
                parts.append((scale * slope)[:, None] * rows)
        return np.concatenate(parts).astype(np.float64)

    def _evaluate_block(self, z: np.ndarray, block: LinearRows) -> np.ndarray:
        rows, eta, y, taylor, scale = map(np.asarray, block)
        with np.errstate(all="ignore"):  # callers check for non-finite values
            e = z.astype(rows.dtype) @ rows.T
            values = np.asarray(
                series_value(as_either(e), as_either(taylor.T[:, None, :]), self._order)
            )
            large = np.asarray(far_apart(self._model, as_either(e)))
            if large.any():
                at, far = np.nonzero(large)[1], as_either(e[large])
                f = self._model.value(as_either(eta[at]) + far, as_either(y[at]))
                taylor_there = as_either(taylor.T[:, at])
                rise = f - taylor_there[0]
                values[large] = less_polynomial(rise, far, taylor_there, self._order)
            return np.asarray(scale * values, np.float64)

    def _slope(
        self, e: np.ndarray, eta: np.ndarray, y: np.ndarray, taylor: np.ndarray
    ) -> np.ndarray:
        """Derivative in e of the remainder of each row."""
        slope = np.asarray(series(as_either(e), as_either(taylor), self._order)[1])
        large = np.asarray(far_apart(self._model, as_either(e)))
        if large.any():
            there = map(as_either, (e[large], eta[large], y[large], taylor[:, large]))
            slope[large] = direct(self._model, self._order, *there)[1]
        return slope
