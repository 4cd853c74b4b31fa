"""Residuals of rows and groups at many draws, computed by NumPy.

A pool of rows weighs draws, and a pilot study examines residuals: both evaluate a few thousand
rows, or some groups, at a few hundred draws, once, which is not worth compiling for. The formulas
are those of the control variates, applied to NumPy arrays, for families with explicit derivatives.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Protocol, TypeGuard

import jax
import numpy as np

from modicum.arrays import as_either
from modicum.kernels.protocols import ControlVariate, Proxy
from modicum.models.model import Batch
from modicum.runtime import Pytree, in_threads

DRAWS = 256  # draws per block, which stays in cache over a dozen operations


class OnNumPy(ControlVariate[Pytree], Protocol):
    """A control variate whose formulas take NumPy arrays too, and several draws at once."""

    def blocks(self, batch: Batch, proxy: Proxy) -> Iterator[Pytree]:
        """Cache rows, or groups, a few at a time."""

    def gradients(self, cached: Pytree, z: np.ndarray, proxy: Proxy) -> np.ndarray:
        """Gradient of D of each cached row at one draw (d,), (rows, d)."""


def needs_no_compiler(control_variate: ControlVariate[Pytree], proxy: Proxy) -> TypeGuard[OnNumPy]:
    """Whether NumPy can evaluate these residuals."""
    return control_variate.target.on_numpy and proxy.where.arrow is None


class NumPyResiduals:
    """Cached rows or groups, to be evaluated at draws z of whitened coordinates.

    Parameters
    ----------
    control_variate, proxy
        The control variate and its proxy; see `needs_no_compiler`.
    batch
        The rows, or flat groups, with their `probability`.
    """

    def __init__(self, control_variate: OnNumPy, batch: Batch, proxy: Proxy) -> None:
        self._form = control_variate
        self._proxy: Proxy = jax.tree.map(np.asarray, proxy)
        with np.errstate(all="ignore"):
            self._blocks = list(control_variate.blocks(batch, self._proxy))
        self._ends = np.cumsum([len(block.scale) for block in self._blocks]).tolist()

    @property
    def whitened(self) -> np.ndarray:
        """The rows in whitened coordinates, (rows, d)."""
        return np.concatenate([np.asarray(block.rows) for block in self._blocks])

    def values(self, z: np.ndarray) -> np.ndarray:
        """D of each row at each draw, (draws, rows)."""
        out = np.empty((len(z), self._ends[-1]))
        for draws, rows, values in self.in_blocks(z):
            out[draws, rows] = values
        return out

    def values_in_turn(self, z: np.ndarray) -> np.ndarray:
        """`values` on the calling thread alone, for callers that run many threads."""
        return np.concatenate([self._evaluated(z, block) for block in self._blocks], axis=1)

    def in_blocks(self, z: np.ndarray) -> Iterator[tuple[slice, slice, np.ndarray]]:
        """Yield `values` in blocks: slices of the draws and rows, and D of these."""
        own = [slice(*ends) for ends in zip([0, *self._ends[:-1]], self._ends, strict=True)]
        for first in range(0, len(z), DRAWS):
            draws = slice(first, first + DRAWS)
            evaluated = in_threads(partial(self._evaluated, z[draws]), self._blocks)
            yield from ((draws, *each) for each in zip(own, evaluated, strict=True))

    def gradients(self, z: np.ndarray) -> np.ndarray:
        """Gradient of D of each row at one draw (d,), (rows, d)."""

        @np.errstate(all="ignore")  # callers check for non-finite values
        def of_block(block: Pytree) -> np.ndarray:
            return self._form.gradients(block, z, self._proxy)

        return np.concatenate(list(in_threads(of_block, self._blocks)))

    @np.errstate(all="ignore")
    def _evaluated(self, z: np.ndarray, block: Pytree) -> np.ndarray:
        return np.asarray(self._form.values(block, as_either(z), self._proxy))
