"""Names, shapes and constraints of parameters, and the map to the free values that are sampled."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import PyTreeDef

from modicum.errors import SettingError, suggestion
from modicum.models.base import Params, named_leaves
from modicum.models.constraints import Constraint, Shape, real
from modicum.runtime import in_double_precision


@dataclass(frozen=True)
class ParameterLayout:
    """Names, shapes and constraints of the parameters, which lie in a pytree of `structure`."""

    structure: PyTreeDef
    names: tuple[str, ...]
    shapes: tuple[Shape, ...]
    constraints: tuple[Constraint, ...]

    @classmethod
    def of(cls, init: Params, constraints: Mapping[str, Constraint]) -> ParameterLayout:
        """Return the layout of the starting point `init`; refuse constraints that do not fit it."""
        named = {name: np.asarray(leaf) for name, leaf in named_leaves(init).items()}
        for name in constraints:
            if name not in named:
                raise SettingError(
                    f"there is a constraint for {name!r}, which is not a parameter"
                    f"{suggestion(name, named)}; the parameters are {', '.join(named)}."
                )
        in_order = tuple(constraints.get(name, real) for name in named)
        shapes = tuple(leaf.shape for leaf in named.values())
        layout = cls(jax.tree.structure(init), tuple(named), shapes, in_order)
        layout.free_shapes()  # refuses shapes that a constraint cannot have
        return layout

    @property
    def bounded(self) -> bool:
        """Whether any parameter has a constraint."""
        return any(constraint is not real for constraint in self.constraints)

    def free_shapes(self) -> tuple[Shape, ...]:
        """Shapes of the free values."""
        shapes = []
        for name, shape, constraint in zip(self.names, self.shapes, self.constraints, strict=True):
            try:
                shapes.append(constraint.free_shape(shape))
            except ValueError as needed:
                raise SettingError(
                    f"{name!r} has the constraint {constraint!r}, which needs {needed}, but its "
                    f"shape is {shape}; change its value in `init`, or its shape in `shapes`."
                ) from None
        return tuple(shapes)

    def constrain(self, free: Params) -> Params:
        """Map free values to parameters within their bounds."""
        if not self.bounded:
            return free
        leaves = jax.tree.leaves(free)
        values = [c.constrain(leaf) for c, leaf in zip(self.constraints, leaves, strict=True)]
        return jax.tree.unflatten(self.structure, values)

    def log_jacobian(self, free: Params) -> jax.Array:
        """Log-determinant of the Jacobian of `constrain`."""
        pairs = zip(self.constraints, jax.tree.leaves(free), strict=True)
        return jnp.sum(jnp.stack([c.log_jacobian(leaf) for c, leaf in pairs if c is not real]))

    def free(self, values: Params) -> Params:
        """Undo `constrain`."""
        leaves = jax.tree.leaves(values)
        free = [
            leaf if c is real else c.free(jnp.asarray(leaf, float))
            for c, leaf in zip(self.constraints, leaves, strict=True)
        ]
        return jax.tree.unflatten(self.structure, free)

    @in_double_precision
    def free_point(self, point: Params, called: str) -> Params:
        """Map a point given by the user to free values in float64; refuse one that does not fit.

        `called` names the point in error messages.
        """
        named = named_leaves(point)
        shapes = {name: np.shape(leaf) for name, leaf in named.items()}
        alike = jax.tree.structure(point) == self.structure
        if not alike or tuple(shapes.values()) != self.shapes:
            ours = ", ".join(f"{n}: {s}" for n, s in zip(self.names, self.shapes, strict=True))
            theirs = ", ".join(f"{n}: {s}" for n, s in shapes.items())
            raise SettingError(
                f"{called} must have the names and shapes of the model's parameters ({ours}), but "
                f"one has {theirs}."
            )
        for (name, leaf), constraint in zip(named.items(), self.constraints, strict=True):
            value = np.asarray(leaf)
            if value.dtype.kind not in "fiub" or not np.all(np.isfinite(value)):
                raise SettingError(
                    f"{called} must hold finite real numbers, but '{name}' does not; give each "
                    "parameter a value to start from."
                )
            if not constraint.allows(value):
                text = np.array2string(value, precision=3, threshold=4, edgeitems=2)
                raise SettingError(
                    f"{called} has {name} = {text}, but its constraint allows {constraint.support}."
                )
        free = self.free(point)
        return jax.tree.map(lambda leaf: np.asarray(leaf, dtype=np.float64), free)

    def flat_names(self) -> tuple[str, ...]:
        """Name each free value, in the order of the flat vector."""
        names: list[str] = []
        parameters = zip(self.names, self.shapes, self.free_shapes(), self.constraints, strict=True)
        for name, shape, free_shape, constraint in parameters:
            places = [", ".join(map(str, place)) for place in np.ndindex(*free_shape)]
            scalars = [f"{name}[{place}]" if place else name for place in places]
            alike = free_shape == shape
            names += [constraint.free_name(s) if alike else f"free {s}" for s in scalars]
        return tuple(names)
