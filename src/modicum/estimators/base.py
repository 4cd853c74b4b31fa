"""What an estimator of the log-likelihood is: residuals of a subsample in, an estimate out."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import jax

__all__ = ["Estimate", "Estimator"]


class Estimate(NamedTuple):
    """An estimate of log-likelihood minus the sum of the control variates."""

    log: jax.Array  # what takes part in the target density: log |Lhat| - sum q
    difference: jax.Array  # dhat, an estimate of l - sum q (eq. 4.2)
    variance: jax.Array  # of `log`, estimated


class Estimator(Protocol):
    """What turns the residuals of a subsample into a likelihood. Hashable.

    The subsample lies in blocks of equal size, and each block in equal parts. Parts may be absent:
    a Poisson number of them takes part, in arrays whose shape is fixed. What the estimator knows of
    the data travels as `tables`.
    """

    @property
    def parts(self) -> int:
        """Parts a block."""
        ...

    def present(self, key: jax.Array, blocks: int) -> jax.Array:
        """Draw which parts of `blocks` fresh blocks take part: one truth value a part."""
        ...

    def pack(self, subsample: Any, present: jax.Array) -> tuple[Any, jax.Array]:
        """Return the parts that take part side by side, and which of those places are filled."""
        ...

    def unpack(self, values: jax.Array, present: jax.Array) -> jax.Array:
        """Put one value a packed row back to where the row lies in the subsample."""
        ...

    def combine(self, values: jax.Array, present: jax.Array, tables: Any) -> Estimate:
        """Estimate from the D of every row, packed or not."""
        ...

    def describe(self, values: jax.Array, present: jax.Array, tables: Any) -> dict[str, jax.Array]:
        """Return what to record of the estimate, one number a name."""
        ...
