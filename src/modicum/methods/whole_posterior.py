"""The log-posterior of all rows as a function that kernels can be compiled with."""

from __future__ import annotations

from dataclasses import dataclass

import jax

from modicum.methods.base import Task
from modicum.models import Target
from modicum.passes.full_likelihood import Resident, Streamed, hold, log_likelihood
from modicum.runtime import Pytree, to_device

__all__ = ["WholeLogPosterior"]


@dataclass(frozen=True)
class WholeLogPosterior:
    """The log-posterior of all rows as a hashable function of t and the rows' chunks."""

    target: Target
    source: Resident | Streamed
    has_rest: bool = False  # whether a quadratic stands for rows that are not here
    times: float = 1.0  # that every row which is here counts, where rows stand for others

    @classmethod
    def of(
        cls, task: Task, limit: int | None, times: float = 1.0
    ) -> tuple[WholeLogPosterior, Pytree]:
        """The function of a task, and the data it reads: in memory within `limit` bytes."""
        source, chunks = hold(task.rows, limit)
        rest = task.sums.rest
        if rest is None:
            return cls(task.target, source, False, times), chunks
        numbers = to_device((rest.point, rest.C, rest.A, rest.B))
        return cls(task.target, source, True, times), (chunks, numbers)

    def __call__(self, t: jax.Array, data: Pytree) -> jax.Array:
        """At `t`, of the rows in `data`."""
        chunks, rest = data if self.has_rest else (data, None)
        likelihood = log_likelihood(self.target, self.source, t, chunks)
        if self.times != 1:
            likelihood = self.times * likelihood
        whole = likelihood + self.target.log_prior(t)
        if rest is None:
            return whole
        point, C, A, B = rest
        dt = t[: point.shape[0]] - point
        return whole + C + dt @ (A + B @ dt / 2)
