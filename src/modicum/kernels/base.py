"""The kernel interface: one Markov step, and the rows it wants from its key alone.

From the coordinates a chain moves in to the parameters: t = t* + L z.

What an estimator of the log-likelihood is: residuals of a subsample in, an estimate out.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import jax

__all__ = [
    "Context",
    "Draw",
    "Estimate",
    "Estimator",
    "Kernel",
    "RowRequest",
    "scaled",
    "travelling",
    "unwhiten",
]

Context = Any  # a pytree of arrays: everything a step reads and never changes
Draw = dict[str, jax.Array]  # "position", and one number a statistic


class RowRequest(Protocol):
    """Rows to read, and arrays that travel with them under their own names: a named tuple.

    `modicum.designs.Drawn` is one: the probabilities of rows travel with them.
    """

    @property
    def row_ids(self) -> jax.Array:
        """The rows to read, by number."""
        ...

    def _asdict(self) -> dict[str, Any]: ...


def travelling(wanted: RowRequest) -> dict[str, Any]:
    """What travels with the rows."""
    return {name: values for name, values in wanted._asdict().items() if name != "row_ids"}


class Kernel(Protocol):
    """One Markov chain, as pure functions of arrays.

    Kernels are hashable by value (frozen dataclasses): they are static arguments of the compiled
    runner, while `context` travels as an argument. What a step wants to read of the data depends
    on its key only, so a runner can fetch it ahead of time.
    """

    def initial_row_request(self, key: jax.Array, context: Context) -> RowRequest | None:
        """Return which rows `init` reads, or None if it reads none."""
        ...

    def prepare(self, batch: Any, context: Context) -> Any:
        """Make of the rows that were read all that can be made without the state.

        The runner does this for many iterations at once.
        """
        ...

    def init(self, key: jax.Array, batch: Any, context: Context) -> Any:
        """Return the first state."""
        ...

    def row_request(self, key: jax.Array, context: Context) -> RowRequest | None:
        """Return which rows the step with this key reads, or None if it reads none."""
        ...

    def step(
        self, key: jax.Array, state: Any, flags: Any, batch: Any, context: Context
    ) -> tuple[Any, Draw]:
        """Return the next state and what to record of it."""
        ...


def scaled(factor: jax.Array, z: jax.Array) -> jax.Array:
    """L z; where L is diagonal it comes as a vector, and as a number where it is c times I."""
    return factor @ z if factor.ndim == 2 else factor * z


def unwhiten(z: jax.Array, context: Any) -> jax.Array:
    """T = t* + L z, with `point` t* and `factor` L from the context."""
    return context["point"] + scaled(context["factor"], z)


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
