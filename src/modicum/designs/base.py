"""How rows are drawn and with what probability."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import jax

__all__ = ["Design", "Drawn"]


class Drawn(NamedTuple):
    """Rows that were drawn, and the probability each had."""

    rows: jax.Array
    probability: jax.Array


class Design(Protocol):
    """A distribution over rows. Hashable; its tables travel as `tables`."""

    def draw(self, key: jax.Array, count: int, tables: Any) -> Drawn:
        """Draw `count` rows independently, with replacement."""
        ...
