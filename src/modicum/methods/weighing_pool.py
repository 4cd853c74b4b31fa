"""A pool of rows that weights draws of the normal approximation at the mode.

The log-weight of a draw z is that of posterior over normal approximation,

    r(z) = sum_k q_k(z) + sum_(i in pool) d_i(z) / c_i + log prior(z) + |z - centre|^2 / 2,

where the sum of the control variates q is known exactly and the sum of the residuals d is estimated
from the pool, the same for all draws. Rows that would be drawn more than once are included with
certainty (c_i = 1); the others are drawn in proportion to their expected residual, and c_i is the
expected number of times that row i is drawn.

The error of r(z) shifts the posterior mean of z_j by the posterior covariance of error and z_j. The
error is a sum over the rows that were drawn, so that with

    s_ij = E (z_j - E z_j) d_i(z) / c_i

the shift of the mean of z_j has variance R Var_i(s_ij) over pools of R drawn rows. R is in the
thousands, so that this variance is known to a percent or two.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from modicum.estimators import LinearTaylor
from modicum.estimators.by_numpy import NumPyRows, needs_no_compiler
from modicum.estimators.remainder import remainder
from modicum.kernels.base import ControlVariate, Proxy
from modicum.methods.ecs.pilot import Study
from modicum.methods.ecs.sampled_rows import SampledRows
from modicum.methods.weights import cached_rows
from modicum.models import LinearPredictorModel
from modicum.models.base import Batch
from modicum.random import Stream, generator
from modicum.runtime import Array, Pytree, in_double_precision, jit

BLOCK = 1_024  # rows and draws evaluated at once, so that a block of each stays in the caches


class PoolWeights(NamedTuple):
    """Log-weights of some draws, and the noise in them due to the pool."""

    log_ratio: np.ndarray  # posterior over normal approximation, up to a constant; (S,)
    noise: float  # largest sd of the shift of a posterior mean due to the pool, in posterior sds


class WeighingPool:
    """Rows with the expected number of times each was drawn, ready to be evaluated.

    Parameters
    ----------
    study
        The pilot study, with control variates at the mode and weights of rows.
    size
        Rows in the pool, at most all rows.
    """

    def __init__(self, study: Study, size: int) -> None:
        self.study = study
        task = study.task
        rng = generator(task.seed, Stream.LAPLACE_ROWS)
        sampled = SampledRows.of(rng, task.rows, size, study.weight_tables, study.method.floor)
        self.rows, self.certain, batch = sampled.number, sampled.certain, sampled.batch
        self._plain: NumPyRows | None = None
        self._parts: list[Pytree] = []
        if needs_no_compiler(study.control_variate):
            self._plain = NumPyRows(study.control_variate, batch, study.proxy)
            return
        self._block = min(BLOCK, self.rows)
        self._parts = [self._cached(batch, first) for first in range(0, self.rows, self._block)]

    def _cached(self, batch: Batch, first: int) -> Pytree:
        """Prepare one block of rows; the last is padded with rows that are not counted."""
        places = np.minimum(np.arange(first, first + self._block), self.rows - 1)
        part = {name: values[places] for name, values in batch.items()}
        return cached_rows(self.study.control_variate, part, self.study.proxy)

    @in_double_precision
    @np.errstate(invalid="ignore")  # far from the mode, rows may have density 0
    def weigh(self, z: np.ndarray, middle: np.ndarray | None = None) -> PoolWeights:
        """Weight draws (S, d) in whitened coordinates with mean `middle`, by default the centre."""
        study = self.study
        middle = study.centre if middle is None else middle
        study.task.ledger.add("weights", self.rows * len(z), "density")
        total = np.zeros(len(z))
        slopes = np.zeros((self.rows, z.shape[1]))
        in_blocks = self._compiled_blocks if self._plain is None else self._plain.in_blocks
        for block, rows, values in in_blocks(z):
            total[block] += values.sum(axis=1)
            if self.certain < self.rows:
                slopes[rows] += values.T @ (z[block] - middle)
        away = 0.5 * np.sum((z - study.centre) ** 2, axis=1)
        return PoolWeights(total + study.log_proxy(z) + away, self._noise(slopes / len(z)))

    @property
    def whitened(self) -> np.ndarray | None:
        """The rows in whitened coordinates, (rows, d); None without a linear predictor."""
        if self._plain is not None:
            return self._plain.whitened
        if not isinstance(self.study.control_variate, LinearTaylor):
            return None
        return np.concatenate([np.asarray(part.rows) for part in self._parts])[: self.rows]

    def log_posterior(self, z: np.ndarray) -> np.ndarray:
        """Estimate the log-posterior at whitened points (S, d), up to a constant."""
        away = 0.5 * np.sum((z - self.study.centre) ** 2, axis=1)
        return np.asarray(self.weigh(z).log_ratio - away)

    def _compiled_blocks(self, z: np.ndarray) -> Iterator[tuple[slice, slice, np.ndarray]]:
        """Yield slices of draws and of rows, and d_i / c_i for these, (draws, rows)."""
        evaluate = partial(_block_values, self.study.control_variate)
        with ThreadPoolExecutor(os.cpu_count()) as threads:
            for first in range(0, len(z), BLOCK):
                block = slice(first, first + BLOCK)
                draws = len(z[block])
                padding = np.repeat(z[-1:], BLOCK - draws, axis=0)
                filled = np.concatenate([z[block], padding])

                @in_double_precision
                def evaluate_part(cached: Pytree, filled: np.ndarray = filled) -> np.ndarray:
                    return np.asarray(evaluate(cached, filled, self.study.proxy))

                for k, values in enumerate(threads.map(evaluate_part, self._parts)):
                    rows = slice(k * self._block, min((k + 1) * self._block, self.rows))
                    yield block, rows, values[:draws, : rows.stop - rows.start]

    def _noise(self, slopes: np.ndarray) -> float:
        """Return the largest sd over pools of the shift of a parameter's mean, in posterior sd."""
        drawn = slopes[self.certain :]
        if len(drawn) < 2:
            return 0.0
        L = self.study.anchor.dense_factor
        unit = L / np.maximum(np.sqrt(np.sum(L**2, axis=1, keepdims=True)), 1e-300)
        return float(np.sqrt(len(drawn) * np.max(np.var(drawn @ unit.T, axis=0, ddof=1))))


@jit(static=0)
def _block_values(
    control_variate: ControlVariate[Pytree], cached: Pytree, z: Array, proxy: Proxy
) -> jax.Array:
    """Return d_i / c_i of each row at each draw, (draws, rows)."""
    z = jnp.asarray(z)
    if not isinstance(control_variate, LinearTaylor):
        return jax.lax.map(lambda point: control_variate.values(cached, point, proxy), z)
    e = z @ cached.rows.T
    model = control_variate.target.model
    assert isinstance(model, LinearPredictorModel)
    taylor = cached.taylor.T[:, None, :]
    return cached.scale * remainder(model, control_variate.order, e, cached.eta, cached.y, taylor)
