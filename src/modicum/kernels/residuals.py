"""Residuals of some rows, or groups, at many draws.

A pool of rows weighs draws, and a pilot study examines residuals: both evaluate a few thousand
rows, or some groups, at a few hundred draws. For families with explicit derivatives that is not
worth compiling for: the formulas of the control variates are applied to NumPy arrays.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import pairwise
from typing import Protocol, TypeGuard

import jax
import jax.numpy as jnp
import numpy as np

from modicum.arrays import as_either
from modicum.kernels.control_variates import cached_rows
from modicum.kernels.protocols import ControlVariate, Proxy
from modicum.models.model import Batch
from modicum.runtime import SCATTERS, Array, Pytree, in_double_precision, in_threads, jit

DRAWS = 256  # draws per block, which stays in cache over a dozen operations
ROWS = 1_024  # rows per compiled block, likewise
TOGETHER = 8  # draws at which compiled code evaluates rows by one product


class OnNumPy(ControlVariate[Pytree], Protocol):
    """A control variate whose formulas take NumPy arrays too, and several draws at once."""

    def blocks(self, batch: Batch, proxy: Proxy) -> Iterator[Pytree]:
        """Cache rows, or groups, a few at a time."""

    def places(self, z: jax.Array, proxy: Proxy) -> Pytree:
        """Return draws as these blocks take them."""

    def values_at(self, cached: Pytree, places: Pytree, proxy: Proxy) -> jax.Array:
        """Return `values` there."""

    def gradients(self, cached: Pytree, z: np.ndarray, proxy: Proxy) -> np.ndarray:
        """Gradient of D of each cached row at one draw (d,), (rows, d)."""


def needs_no_compiler(control_variate: ControlVariate[Pytree], proxy: Proxy) -> TypeGuard[OnNumPy]:
    """Whether NumPy can evaluate these residuals."""
    return control_variate.target.on_numpy and proxy.where.arrow is None


class RowResiduals(ABC):
    """Rows or flat groups, to be evaluated at draws z as control variates take them.

    Attributes
    ----------
    blocks
        The rows a few at a time, each block prepared for `evaluated`.
    ends
        Where each block begins among the rows, and where the last one ends.
    """

    blocks: Sequence[Pytree]
    ends: Sequence[int]

    @abstractmethod
    def places(self, z: np.ndarray) -> Pytree:
        """Return draws as blocks take them."""

    @abstractmethod
    def evaluated(self, places: Pytree, block: Pytree) -> np.ndarray:
        """D of each row of a block at each draw, (draws, rows)."""

    def values(self, z: np.ndarray) -> np.ndarray:
        """D of each row at each draw, (draws, rows)."""
        out = np.empty((len(z), self.ends[-1]))
        for draws, rows, values in self.in_blocks(z):
            out[draws, rows] = values
        return out

    def in_blocks(self, z: np.ndarray) -> Iterator[tuple[slice, slice, np.ndarray]]:
        """Yield `values` in blocks: slices of the draws and rows, and D of these."""
        own = [slice(*ends) for ends in pairwise(self.ends)]
        for first in range(0, len(z), DRAWS):
            draws = slice(first, first + DRAWS)
            evaluated = in_threads(partial(self.evaluated, self.places(z[draws])), self.blocks)
            for rows, values in zip(own, evaluated, strict=True):
                yield draws, rows, values[:, : rows.stop - rows.start]


class NumPyResiduals(RowResiduals):
    """Rows that NumPy evaluates.

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
            self.blocks = list(control_variate.blocks(batch, self._proxy))
        self.ends = np.cumsum([0, *(len(block.scale) for block in self.blocks)]).tolist()

    def places(self, z: np.ndarray) -> Pytree:
        """Return draws as blocks take them."""
        return self._form.places(as_either(z), self._proxy)

    @np.errstate(all="ignore")  # callers check for non-finite values
    def evaluated(self, places: Pytree, block: Pytree) -> np.ndarray:
        """D of each row of a block at each draw, (draws, rows)."""
        return np.asarray(self._form.values_at(block, places, self._proxy))

    def values_in_turn(self, z: np.ndarray) -> np.ndarray:
        """`values` on the calling thread alone, for callers that run many threads."""
        places = self.places(z)
        return np.concatenate([self.evaluated(places, block) for block in self.blocks], axis=1)

    def gradients(self, z: np.ndarray) -> np.ndarray:
        """Gradient of D of each row at one draw (d,), (rows, d)."""

        @np.errstate(all="ignore")
        def of_block(block: Pytree) -> np.ndarray:
            return self._form.gradients(block, z, self._proxy)

        return np.concatenate(list(in_threads(of_block, self.blocks)))


class CompiledResiduals(RowResiduals):
    """Rows that compiled code evaluates, in blocks of one shape; the last is padded."""

    def __init__(self, control_variate: ControlVariate[Pytree], batch: Batch, proxy: Proxy) -> None:
        self._form, self._proxy = control_variate, proxy
        count = len(batch["probability"])
        self._of_groups = "group_of_row" in batch
        if self._of_groups:  # they differ in their number of rows, so are one block
            self.blocks, self.ends = [batch], [0, count]
            return
        size = min(ROWS, count)
        firsts = range(0, count, size)
        self.blocks = [self._cached(batch, np.arange(first, first + size)) for first in firsts]
        self.ends = [*firsts, count]

    def _cached(self, batch: Batch, places: np.ndarray) -> Pytree:
        places = np.minimum(places, len(batch["probability"]) - 1)
        part = {name: np.asarray(values)[places] for name, values in batch.items()}
        return cached_rows(self._form, part, self._proxy)

    def places(self, z: np.ndarray) -> tuple[np.ndarray, int]:
        """Return draws in one of few numbers, for each of which code is compiled; and how many."""
        at_once = 1 << (len(z) - 1).bit_length()
        return np.concatenate([z, np.repeat(z[-1:], at_once - len(z), axis=0)]), len(z)

    @in_double_precision
    def evaluated(self, places: tuple[np.ndarray, int], block: Pytree) -> np.ndarray:
        """D of each row of a block, padding included, at each draw, (draws, rows)."""
        (filled, count), evaluate = places, _of_groups if self._of_groups else _of_rows
        return np.asarray(evaluate(self._form, block, self._proxy, filled))[:count]


@jit(static=0)
def _of_rows(cv: ControlVariate[Pytree], cached: Pytree, proxy: Proxy, z: Array) -> jax.Array:
    z = jnp.asarray(z)
    if cv.target.in_one_predictor and proxy.where.arrow is None:
        return cv.values(cached, z, proxy)
    return jax.lax.map(lambda at: cv.values(cached, at, proxy), z, batch_size=TOGETHER)


# Rows of groups are evaluated at many nodes, so that optimising the code pays.
@jit(static=0, options=SCATTERS)
def _of_groups(cv: ControlVariate[Pytree], batch: Batch, proxy: Proxy, z: Array) -> jax.Array:
    cached = cv.cache(batch, proxy)
    return jax.lax.map(lambda at: cv.values(cached, at, proxy), z, batch_size=TOGETHER)


def row_residuals(
    control_variate: ControlVariate[Pytree], batch: Batch, proxy: Proxy
) -> RowResiduals:
    """Prepare rows, or flat groups, with their `probability`."""
    if needs_no_compiler(control_variate, proxy):
        return NumPyResiduals(control_variate, batch, proxy)
    return CompiledResiduals(control_variate, batch, proxy)
