"""A model seen as a log-density over one flat vector, which is what passes and kernels need."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from modicum.errors import DataError
from modicum.ledger import Ledger
from modicum.models.base import BaseModel, Batch, Params
from modicum.rows import Rows
from modicum.runtime import in_double_precision, jit

__all__ = ["Target"]


@dataclass(frozen=True)
class Target:
    """A model together with the layout of its parameters in a flat vector t.

    Hashable by value: two runs with equal models and layouts share their compiled functions.
    """

    model: BaseModel
    structure: Any  # the parameters' tree structure
    shapes: tuple[tuple[int, ...], ...]

    @classmethod
    def of(
        cls, model: BaseModel, rows: Rows, ledger: Ledger | None = None
    ) -> tuple[Target, np.ndarray]:
        """Check that `model` fits `rows`; return the target and the flat starting point.

        Default priors become numbers here, by a pass that `ledger` counts.
        """
        if rows.dtype.kind == "u" and not model.reads_bytes:
            raise DataError(
                f"the rows are held as bytes (uint8), which only networks read; make them with "
                f"dtype='float32' for {type(model).__name__}."
            )
        model.check(rows)
        if "weight" in rows.fields and rows.fields["weight"] != ():
            raise DataError("the field 'weight' must hold one number a row: a frequency weight.")
        given, model = model, model.resolved(rows)
        if model is not given and ledger is not None:
            ledger.add("priors", len(rows), "density", passes=1)
        leaves, structure = jax.tree.flatten(model.start(rows))
        start = np.concatenate([np.ravel(leaf) for leaf in leaves]).astype(np.float64)
        return cls(model, structure, tuple(np.shape(leaf) for leaf in leaves)), start

    @cached_property
    def likelihood(self) -> Target:
        """The same layout without the priors' numbers: data sets share what is compiled for it."""
        return replace(self, model=self.model.without_priors())

    @property
    def size(self) -> int:
        """The number of unconstrained parameters, d."""
        return sum(prod(shape) for shape in self.shapes)

    def unravel(self, t: jax.Array) -> Params:
        """Return the parameters laid out in `t`."""
        leaves, start = [], 0
        for shape in self.shapes:
            stop = start + prod(shape)
            leaves.append(t[start:stop].reshape(shape))
            start = stop
        return jax.tree.unflatten(self.structure, leaves)

    def log_prior(self, t: jax.Array) -> jax.Array:
        """Log-prior density at `t`."""
        return jnp.asarray(self.model.log_prior(self.unravel(t)))

    def log_likelihood(self, t: jax.Array, batch: Batch) -> jax.Array:
        """Log-likelihood of each row of `batch`, times its frequency weight."""
        values = self.model.log_likelihood(self.unravel(t), batch)
        return values * batch["weight"] if "weight" in batch else values

    @in_double_precision
    def ravel_reported(self, named: dict[str, np.ndarray]) -> np.ndarray:
        """Flat vectors of reported parameters with a leading axis: undo `report`."""
        theta = jax.vmap(self.model.restore)(named)
        leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(theta)]
        return np.concatenate([leaf.reshape(len(leaf), -1) for leaf in leaves], axis=1)

    @in_double_precision
    def log_priors(self, points: np.ndarray) -> np.ndarray:
        """Log-prior density at each of the flat vectors in `points`."""
        return np.asarray(_log_priors(self, points))

    @in_double_precision
    def prior_distances(self, point: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
        """Distances of `point` from the prior's centre, in prior sds, and their slope in t."""
        t = jnp.asarray(point, jnp.float64)
        if self.model.prior_distances(self.unravel(t)) is None:
            return None

        def distances(t: jax.Array) -> jax.Array:
            leaves = jax.tree.leaves(self.model.prior_distances(self.unravel(t)))
            return jnp.concatenate([jnp.ravel(leaf) for leaf in leaves])

        return np.asarray(distances(t)), np.asarray(jax.jacobian(distances)(t))

    def report(self, t: jax.Array) -> dict[str, jax.Array]:
        """Name the parameters laid out in `t` the way draws show them."""
        return self.model.report(self.unravel(t))


@jit(static=0)
def _log_priors(target: Target, points: Any) -> jax.Array:
    return jax.vmap(target.log_prior)(points)
