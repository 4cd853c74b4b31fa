"""The kernel interface: one Markov step, and the rows it wants from its key alone."""

from __future__ import annotations

from typing import Any, Protocol

import jax

__all__ = ["Context", "Draw", "Kernel", "Wanted", "travelling"]

Context = Any  # a pytree of arrays: everything a step reads and never changes
Draw = dict[str, jax.Array]  # "position", and one number a statistic


class Wanted(Protocol):
    """Rows to read, and arrays that travel with them under their own names: a named tuple.

    `modicum.designs.Drawn` is one: the probabilities of rows travel with them.
    """

    @property
    def rows(self) -> jax.Array:
        """The rows to read, by number."""
        ...

    def _asdict(self) -> dict[str, Any]: ...


def travelling(wanted: Wanted) -> dict[str, Any]:
    """What travels with the rows."""
    return {name: values for name, values in wanted._asdict().items() if name != "rows"}


class Kernel(Protocol):
    """One Markov chain, as pure functions of arrays.

    Kernels are hashable by value (frozen dataclasses): they are static arguments of the compiled
    runner, while `context` travels as an argument. What a step wants to read of the data depends
    on its key only, so a runner can fetch it ahead of time.
    """

    def wants_at_start(self, key: jax.Array, context: Context) -> Wanted | None:
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

    def wants(self, key: jax.Array, context: Context) -> Wanted | None:
        """Return which rows the step with this key reads, or None if it reads none."""
        ...

    def step(
        self, key: jax.Array, state: Any, signal: Any, batch: Any, context: Context
    ) -> tuple[Any, Draw]:
        """Return the next state and what to record of it."""
        ...
