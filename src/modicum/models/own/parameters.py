"""Parameters of a model of one's own: checked, started from, or found by looking them up."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from modicum.errors import SettingError, fault_text
from modicum.models.base import Params
from modicum.models.constraints import Constraint, Shape, real
from modicum.models.layout import ParameterLayout
from modicum.random import IMPL
from modicum.runtime import FASTEST_COMPILE, in_double_precision, jit

__all__ = [
    "ProbedParameters",
    "checked_constraints",
    "checked_expand",
    "checked_shapes",
    "points_of",
]

DRAWN_STARTS = 4  # points to start from, where `init` is a function that draws them


def checked_constraints(constraints: object) -> dict[str, Constraint]:
    """Constraints by parameter; anything else is refused."""
    if constraints is None:
        return {}
    if not isinstance(constraints, Mapping):
        raise SettingError(
            "constraints must map names of parameters to constraints, such as "
            f'{{"sigma": mo.positive}}, not {type(constraints).__name__}.'
        )
    for name, constraint in constraints.items():
        if not isinstance(constraint, Constraint):
            raise SettingError(
                f"the constraint of {name!r} must be mo.positive, mo.interval(low, high), "
                f"mo.ordered, mo.simplex or mo.cholesky_corr, not {constraint!r}."
            )
    return dict(constraints)


def checked_shapes(shapes: object, init: Params | None) -> dict[str, Shape]:
    """Shapes by parameter, as tuples; anything else is refused."""
    if shapes is None:
        return {}
    if init is not None:
        raise SettingError("`init` says the shapes of all parameters: leave `shapes` out.")
    if not isinstance(shapes, Mapping):
        raise SettingError('shapes must map names of parameters to shapes, such as {"beta": 3}.')
    tidy = {}
    for name, shape in shapes.items():
        axes = shape if isinstance(shape, tuple | list) else (shape,)
        if not all(isinstance(n, int | np.integer) and n > 0 for n in axes):
            raise SettingError(f"the shape of {name!r} must hold whole numbers, not {shape!r}.")
        tidy[str(name)] = tuple(int(n) for n in axes)
    return tidy


def checked_expand(expand: object) -> dict[str, str]:
    """Coordinates by parameter; anything else is refused."""
    if expand is None:
        return {}
    if not isinstance(expand, Mapping) or not all(isinstance(w, str) for w in expand.values()):
        raise SettingError(
            'expand must map names of parameters to coordinates, such as {"sigma": "identity"}.'
        )
    return {str(name): str(coordinate) for name, coordinate in expand.items()}


def points_of(init: Params, log_prior: Callable[[Params], ArrayLike]) -> tuple[Params, ...]:
    """The points that `init` holds: several, where it is a list of what `log_prior` accepts.

    A list may as well be the parameters themselves (layers of a network), which `log_prior` then
    accepts as a whole.
    """
    if callable(init):
        keys = [jax.random.key(number, impl=IMPL) for number in range(DRAWN_STARTS)]
        try:
            init = [jax.tree.map(np.asarray, in_double_precision(init)(key)) for key in keys]
        except Exception as fault:
            raise SettingError(
                f"`init` is a function that fails on a JAX key ({fault_text(fault)}); it must "
                "return parameters to start from."
            ) from fault
        return tuple(init)
    if not jax.tree.leaves(init):
        raise SettingError("`init` holds no parameters; give the values to start from.")
    if not isinstance(init, list) or not init or not _alike(init) or _accepts(log_prior, init):
        return (init,)
    return tuple(init) if _accepts(log_prior, init[0]) else (init,)


def _alike(points: list[Params]) -> bool:
    """Whether all points have the names and shapes of the first, and are not bare numbers."""
    if any(jax.tree_util.all_leaves([point]) for point in points):
        return False
    layouts = [
        (jax.tree.structure(point), [np.shape(leaf) for leaf in jax.tree.leaves(point)])
        for point in points
    ]
    return all(layout == layouts[0] for layout in layouts)


def _accepts(function: Callable[[Params], ArrayLike], theta: Params) -> bool:
    try:
        jax.eval_shape(lambda t: jnp.asarray(function(t)), theta)
    except Exception:  # whatever a function raises for arguments it does not take
        return False
    return True


class ProbedParameters(dict[str, jax.Array]):
    """Parameters that come into being when a function looks them up."""

    def __init__(self, shapes: Mapping[str, Shape], constraints: Mapping[str, Constraint]) -> None:
        super().__init__()
        self.shapes: dict[str, Shape] = {}
        self._known, self._constraints = shapes, constraints
        self._middles: dict[str, np.ndarray] = {}
        for name in (*shapes, *constraints):
            self[name] = self.__missing__(name)

    def __missing__(self, name: str) -> jax.Array:
        self.shapes[name] = self._known.get(name, ())
        self[name] = jnp.asarray(self._middle(name))
        return self[name]

    @in_double_precision
    def _middle(self, name: str) -> np.ndarray:
        if name not in self._middles:
            constraint = self._constraints.get(name, real)
            point = {name: np.empty(self.shapes[name])}
            (shape,) = ParameterLayout.of(point, {name: constraint}).free_shapes()
            free = np.zeros(shape)
            # One program, ready before it is called: functions may be being traced meanwhile.
            constrain = jit(options=FASTEST_COMPILE)(constraint.constrain).lower(free).compile()
            self._middles[name] = np.asarray(constrain(free))
        return self._middles[name]

    def middle(self) -> dict[str, np.ndarray]:
        """The middle of what is allowed of each."""
        return {name: self._middle(name) for name in sorted(self.shapes)}
