"""The support of a NumPyro distribution as a constraint on a parameter."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from modicum.errors import SettingError
from modicum.models.constraints import (
    Constraint,
    Interval,
    Shape,
    cholesky_corr,
    ordered,
    positive,
    real,
    simplex,
)


def as_constraint(support: Any) -> Constraint:  # NumPyro has no types
    """Convert a NumPyro constraint; wrap NumPyro's bijection where Modicum has no equivalent."""
    from numpyro.distributions import constraints as supports

    base = support
    while isinstance(base, supports.independent):
        base = base.base_constraint
    if base is supports.real:
        return real
    for theirs, ours in (
        (supports.simplex, simplex),
        (supports.ordered_vector, ordered),
        (supports.corr_cholesky, cholesky_corr),
    ):
        if base is theirs:
            return ours
    if isinstance(base, supports.greater_than | supports.less_than | supports.interval):
        ends = getattr(base, "lower_bound", -np.inf), getattr(base, "upper_bound", np.inf)
        if base is not supports.circular and all(np.ndim(end) == 0 for end in ends):
            low, high = (float(end) for end in ends)
            return positive if (low, high) == (0, np.inf) else Interval(low, high)
    return _Bijected.of(support)


@dataclass(frozen=True)
class _Bijected(Constraint):
    """A NumPyro support with NumPyro's bijection to it."""

    transform: Any  # a NumPyro transform, which is a pytree
    within: Any
    support: str

    @classmethod
    def of(cls, support: Any) -> _Bijected:
        from numpyro.distributions import biject_to

        try:
            return cls(biject_to(support), support, f"values in NumPyro's {support}")
        except NotImplementedError:
            raise SettingError(f"NumPyro has no bijection to {support}.") from None

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Bijected):
            return False
        structure, other_structure = (str(jax.tree.structure(b.transform)) for b in (self, other))
        leaves, other_leaves = (jax.tree.leaves(b.transform) for b in (self, other))
        return structure == other_structure and all(map(np.array_equal, leaves, other_leaves))

    def __hash__(self) -> int:
        return hash(type(self.transform))

    def free_shape(self, shape: Shape) -> Shape:
        return tuple(self.transform.inverse_shape(shape))

    def constrain(self, free: jax.Array) -> jax.Array:
        return jnp.asarray(self.transform(free))

    def log_jacobian(self, free: jax.Array) -> jax.Array:
        return jnp.sum(self.transform.log_abs_det_jacobian(free, self.transform(free)))

    def free(self, value: jax.Array) -> jax.Array:
        return jnp.asarray(self.transform.inv(value))

    def allows(self, value: np.ndarray) -> bool:
        return bool(np.all(self.within(value)))
