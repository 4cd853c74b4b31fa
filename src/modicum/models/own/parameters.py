"""Parameters of a user-defined model: checks, starting points, and probing the functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache

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

DRAWN_STARTS = 4  # starting points, where `init` is a function that draws them


def checked_constraints(constraints: object) -> dict[str, Constraint]:
    """Return constraints by parameter; refuse anything else."""
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
    """Return shapes by parameter, as tuples; refuse anything else."""
    if shapes is None:
        return {}
    if init is not None:
        raise SettingError("`init` fixes the shapes of all parameters: leave `shapes` out.")
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
    """Return coordinates by parameter; refuse anything else."""
    if expand is None:
        return {}
    if not isinstance(expand, Mapping) or not all(isinstance(w, str) for w in expand.values()):
        raise SettingError(
            'expand must map names of parameters to coordinates, such as {"sigma": "identity"}.'
        )
    return {str(name): str(coordinate) for name, coordinate in expand.items()}


def points_of(init: Params, log_prior: Callable[[Params], ArrayLike]) -> tuple[Params, ...]:
    """Return the starting points in `init`: several, if it is a list of what `log_prior` accepts.

    A list may also be the parameters themselves (layers of a network); `log_prior` then accepts it
    as a whole.
    """
    if callable(init):
        keys = [jax.random.key(number, impl=IMPL) for number in range(DRAWN_STARTS)]
        try:
            init = [jax.tree.map(np.asarray, in_double_precision(init)(key)) for key in keys]
        except Exception as fault:
            raise SettingError(
                f"the function `init` fails on a JAX key ({fault_text(fault)}); it must return "
                "starting values of the parameters."
            ) from fault
        return tuple(init)
    if not jax.tree.leaves(init):
        raise SettingError("`init` holds no parameters; give their starting values.")
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
    except Exception:  # a user's function may raise anything
        return False
    return True


class ProbedParameters(dict[str, jax.Array]):
    """A dict that creates a parameter when a function looks it up."""

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
            self._middles[name] = _at_zero(constraint, shape)
        return self._middles[name]

    def middle(self) -> dict[str, np.ndarray]:
        """Return the middle of each parameter's allowed range."""
        return {name: self._middle(name) for name in sorted(self.shapes)}


@cache
def _at_zero(constraint: Constraint, shape: Shape) -> np.ndarray:
    """Return the values at which all free values are 0."""
    free = np.zeros(shape)
    # Compiled ahead of the call, because a trace of the user's functions may be under way.
    constrain = jit(options=FASTEST_COMPILE)(constraint.constrain).lower(free).compile()
    return np.asarray(constrain(free))
