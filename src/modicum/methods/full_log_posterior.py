"""The log-posterior of all rows as a function that kernels can be compiled with."""

from __future__ import annotations

from dataclasses import dataclass

import jax

from modicum.methods.base import Task
from modicum.models import Target
from modicum.passes.full_likelihood import Resident, Streamed, hold, log_likelihood
from modicum.runtime import Pytree, to_device


@dataclass(frozen=True)
class FullLogPosterior:
    """The log-posterior of all rows as a hashable function of t and the rows' chunks."""

    target: Target
    source: Resident | Streamed
    has_rest: bool = False  # whether a quadratic represents the rows that are absent
    times: float = 1.0  # weight of every row, if the rows are a subset that represents all

    @classmethod
    def of(
        cls, task: Task, limit: int | None, times: float = 1.0
    ) -> tuple[FullLogPosterior, Pytree]:
        """Return the function of a task and its data, in memory if within `limit` bytes."""
        source, chunks = hold(task.rows, limit)
        rest = task.sums.rest
        if rest is None:
            return cls(task.target, source, False, times), chunks
        numbers = to_device((rest.point, rest.C, rest.A, rest.B))
        return cls(task.target, source, True, times), (chunks, numbers)

    def __call__(self, t: jax.Array, data: Pytree) -> jax.Array:
        """Return the log-posterior at `t` of the rows in `data`."""
        chunks, rest = data if self.has_rest else (data, None)
        likelihood = log_likelihood(self.target, self.source, t, chunks)
        if self.times != 1:
            likelihood = self.times * likelihood
        log_posterior = likelihood + self.target.log_prior(t)
        if rest is None:
            return log_posterior
        point, C, A, B = rest
        dt = t[: point.shape[0]] - point
        return log_posterior + C + dt @ (A + B @ dt / 2)
