"""Residuals of groups at many draws, computed by NumPy.

A design and a pilot study evaluate some groups at some draws, once. The formulas are those of
`estimators.groups.taylor`, applied to NumPy arrays, for families with explicit derivatives.
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
from modicum.estimators.groups.taylor import FlatCache, GroupTaylor
from modicum.kernels.base import ControlVariate, Proxy
from modicum.kernels.coordinates import scaled
from modicum.models.base import Batch
from modicum.models.groups.batches import NumPyGroups
from modicum.runtime import Pytree, in_double_precision, jit, one_blas_thread

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
