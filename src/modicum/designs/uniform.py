"""Every row alike: the design of the papers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from modicum.designs.base import Drawn

__all__ = ["Uniform"]


@dataclass(frozen=True)
class Uniform:
    """Rows drawn with probability 1/n each; `tables` holds n as `rows`.

    Examples
    --------
    >>> import jax
    >>> from modicum.designs import Uniform
    >>> drawn = Uniform().draw(jax.random.key(1), 3, {"rows": 10})
    >>> drawn.rows.shape, float(drawn.probability[0]).__round__(3)
    ((3,), 0.1)
    """

    def draw(self, key: jax.Array, count: int, tables: Any) -> Drawn:
        """Draw `count` rows, with replacement."""
        n = jnp.asarray(tables["rows"])
        rows = jax.random.randint(key, (count,), 0, n)
        return Drawn(rows, jnp.broadcast_to(1.0 / n, (count,)))
