"""Diagnose a log-posterior that is not finite: which part, at which row, and what to do."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from modicum.models import Target
from modicum.models.base import Batch
from modicum.passes.sums import Sums
from modicum.rows import Rows, first_not_finite
from modicum.runtime import jit

__all__ = ["describe_row", "first_bad_row", "point_text"]


def describe_row(rows: Rows, row: int) -> str:
    """A row by its number and the values it holds, such as "of row 7 (x = [1, 2], y = 3)"."""
    values = {name: np.asarray(values)[0] for name, values in rows.slice(row, row + 1).items()}
    shown = ", ".join(
        f"{name} = {np.array2string(value, precision=3, threshold=4, edgeitems=2)}"
        for name, value in values.items()
    )
    return f"of row {row} ({shown})"


def first_bad_row(sums: Sums, t: np.ndarray, of_gradient: bool = False) -> str:
    """The first row whose log-likelihood, or gradient of it, is not finite; all are looked at.

    Raises
    ------
    DataError
        If the rows themselves are not finite: the store was damaged after it was written.
    """
    damage = first_not_finite(sums.rows)
    if damage is not None:
        raise damage.error()
    chunk_faults = _gradient_faults if of_gradient else _value_faults
    faults = sums.engine.map_rows(partial(chunk_faults, sums.target), t, sums.rows, "fault")
    sums.ledger.add("fault", len(sums.rows), "gradient")
    bad = np.flatnonzero(faults)
    return describe_row(sums.rows, int(bad[0])) if len(bad) else "of all rows together"


@jit(static=0)
def _value_faults(target: Target, t: jax.Array, batch: Batch, present: jax.Array) -> jax.Array:
    return (present & ~jnp.isfinite(target.log_likelihood(t, batch))).astype(float)


@jit(static=0)
def _gradient_faults(target: Target, t: jax.Array, batch: Batch, present: jax.Array) -> jax.Array:
    def of_row(row: Batch) -> jax.Array:
        alone = jax.tree.map(lambda field: field[None], row)
        gradient = jax.grad(lambda t: target.log_likelihood(t, alone)[0])(t)
        return jnp.all(jnp.isfinite(gradient))

    return (present & ~jax.lax.map(of_row, jax.tree.map(jnp.asarray, batch))).astype(float)


def point_text(target: Target, t: np.ndarray) -> str:
    """The first parameters of a point, by name."""
    leaves = target.report(jnp.asarray(t))
    shown = [
        f"{name} = {np.array2string(np.asarray(leaf), precision=3, threshold=4, edgeitems=2)}"
        for name, leaf in leaves.items()
    ]
    return ", ".join(shown[:4]) + (", ..." if len(shown) > 4 else "")
