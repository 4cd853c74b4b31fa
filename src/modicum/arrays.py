"""Formulas that work on both JAX arrays, which are traced and compiled, and NumPy arrays.

A computation that runs once over the rows, with matrix products and elementwise functions, takes
NumPy less time than JAX needs to compile it. So that no formula is written twice, a function looks
up the namespace of its argument:

    xp = namespace(eta)
    return xp.exp(eta) - 1

What only compiled code does, slicing arrays at positions that it computes, is cheap to compile too.
"""

from __future__ import annotations

from collections.abc import Callable
from math import log, pi
from types import ModuleType
from typing import TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from scipy import special

from modicum.runtime import Array, Pytree

HALF_LOG_2PI = 0.5 * log(2 * pi)


def is_numpy(x: object) -> bool:
    """Whether `x` is a NumPy array or a plain number, so that nothing is traced."""
    return isinstance(x, np.ndarray | np.generic | float | int)


def namespace(x: object) -> ModuleType:
    """Return `numpy` for NumPy arrays and plain numbers, and `jax.numpy` otherwise."""
    return np if is_numpy(x) else jnp


def as_either(x: np.ndarray | jax.Array) -> jax.Array:
    """Cast to `jax.Array` for the type checker: formulas for both kinds of arrays are so typed."""
    return x  # type: ignore[return-value]


def expansion(
    function: Callable[..., jax.Array],
) -> Callable[..., tuple[jax.Array, jax.Array, jax.Array]]:
    """Return a function that gives the value, gradient and Hessian in the first argument.

    The function is traced once; `jax.value_and_grad` and `jax.hessian` would trace it twice.

    >>> value, gradient, hessian = expansion(lambda x, k: k * x[0] ** 2 * x[1])(np.ones(2), 3.0)
    >>> hessian.tolist()
    [[6.0, 6.0], [6.0, 0.0]]
    """

    def slope(x: jax.Array, *others: object) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
        value, gradient = jax.value_and_grad(function)(x, *others)
        return gradient, (value, gradient)

    def expanded(x: jax.Array, *others: object) -> tuple[jax.Array, jax.Array, jax.Array]:
        hessian, (value, gradient) = jax.jacfwd(slope, has_aux=True)(x, *others)
        return value, gradient, hessian

    return expanded


def along(path: Callable[[jax.Array], jax.Array]) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return the value and the first two derivatives at 0 of a function of one number.

    >>> [float(each) for each in along(lambda s: 3 + 2 * s + s**2)]
    [3.0, 2.0, 2.0]
    """
    zero, one = jnp.zeros(()), jnp.ones(())
    (value, slope), (_, curve) = jax.jvp(lambda s: jax.jvp(path, (s,), (one,)), (zero,), (one,))
    return value, slope, curve


def differentiable(
    slope: Callable[[jax.Array], jax.Array],
) -> Callable[[Callable[[jax.Array], jax.Array]], Callable[[jax.Array], jax.Array]]:
    """Decorate an elementwise function of one argument with a custom derivative for JAX.

    NumPy arrays go to the function itself.
    """

    def decorate(function: Callable[[jax.Array], jax.Array]) -> Callable[[jax.Array], jax.Array]:
        traced = jax.custom_jvp(function)
        traced.defjvps(lambda tangent, value, x: tangent * slope(x))

        def either(x: jax.Array) -> jax.Array:
            return function(x) if is_numpy(x) else traced(x)

        either.__doc__, either.__name__ = function.__doc__, function.__name__
        return either

    return decorate


def power(x: jax.Array, exponent: int) -> jax.Array:
    """x to a power 0, 1, 2, ..., by products for NumPy arrays, whose `**` is slow from 3 on."""
    if not is_numpy(x) or exponent < 3:
        return x**exponent
    product = x * x
    for _ in range(exponent - 2):
        product = product * x
    return product


def sigmoid(x: jax.Array) -> jax.Array:
    """1 / (1 + e^-x)."""
    return special.expit(x) if is_numpy(x) else jax.nn.sigmoid(x)


def log_sigmoid(x: jax.Array) -> jax.Array:
    """log(1 / (1 + e^-x))."""
    return special.log_expit(x) if is_numpy(x) else jax.nn.log_sigmoid(x)


def erfc(x: jax.Array) -> jax.Array:
    """The complementary error function."""
    return special.erfc(x) if is_numpy(x) else jax.scipy.special.erfc(x)


def log_sum_exp(x: jax.Array) -> jax.Array:
    """log sum e^x over the last axis."""
    if not is_numpy(x):
        return jax.nn.logsumexp(x, axis=-1)
    highest = np.max(x, axis=-1, keepdims=True)
    return (highest + np.log(np.sum(np.exp(x - highest), axis=-1, keepdims=True)))[..., 0]


def log1m_exp(x: jax.Array) -> jax.Array:
    """log(1 - e^-x) for x > 0 (Maechler 2012)."""
    xp = namespace(x)
    near, far = xp.minimum(x, 1.0), xp.maximum(x, 0.5)  # so that no branch overflows
    return xp.where(x < log(2), xp.log(-xp.expm1(-near)), xp.log1p(-xp.exp(-far)))


def log_gamma_of(x: jax.Array | float) -> jax.Array:
    """Log-gamma; its derivatives are costly (see `models.families.links`)."""
    return special.gammaln(x) if is_numpy(x) else jax.scipy.special.gammaln(x)


# Slices and blocks at positions that compiled code computes ---------------------------------
# JAX's own indexing allows for negative positions, with some operations per array that are traced,
# lowered and compiled: a fifth of all operations in the loop of HMC-ECS. Positions here are
# unsigned, which spares them. They must not be negative, nor slices reach beyond the end.

Position: TypeAlias = Array | int
UNSIGNED = jnp.uint32


def entry(tree: Pytree, position: Position) -> Pytree:
    """Entry `position` of each array in `tree`, along its leading axis.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> entry({"x": jnp.arange(6).reshape(3, 2)}, 1)["x"]
    Array([2, 3], dtype=int32)
    """
    place = _unsigned(position)
    return jax.tree.map(lambda array: jax.lax.squeeze(take(array, place, 1), (0,)), tree)


def set_entry(tree: Pytree, position: Position, new: Pytree) -> Pytree:
    """Replace entry `position` of each array in `tree` by its counterpart in `new`."""
    place = _unsigned(position)
    return jax.tree.map(lambda array, part: put(array, part[None], place), tree, new)


def take(array: jax.Array, position: Position, count: int) -> jax.Array:
    """Return `count` entries from `position` on."""
    return jax.lax.dynamic_slice_in_dim(array, _unsigned(position), count)


def put(array: jax.Array, part: jax.Array, position: Position) -> jax.Array:
    """Replace the entries from `position` on by those of `part`."""
    return jax.lax.dynamic_update_slice_in_dim(array, part, _unsigned(position), 0)


def put_each(array: jax.Array, parts: jax.Array, positions: jax.Array) -> jax.Array:
    """Replace the entries from each of the `positions` on; parts that would not fit are left out.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> put_each(jnp.zeros(5), jnp.array([[1.0, 2.0], [3.0, 4.0]]), jnp.array([3, 9]))
    Array([0., 0., 0., 1., 2.], dtype=float32)
    """
    numbers = jax.lax.ScatterDimensionNumbers(
        update_window_dims=tuple(range(1, parts.ndim)),
        inserted_window_dims=(),
        scatter_dims_to_operand_dims=(0,),
    )
    return jax.lax.scatter(
        array,
        _unsigned(positions)[:, None],
        parts,
        numbers,
        unique_indices=True,
        mode=jax.lax.GatherScatterMode.FILL_OR_DROP,
    )


def starts(counts: jax.Array) -> jax.Array:
    """Return the position at which each block begins; blocks have these `counts` of entries."""
    return jnp.cumsum(counts) - counts


def locate(positions: jax.Array, counts: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Find the block in which each position falls; blocks have these `counts` of entries.

    Returns
    -------
    block
        Index of the block; the last one for positions beyond its end.
    within
        Position relative to the beginning of the block.
    inside
        False for positions beyond the end of the last block.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> block, within, inside = locate(jnp.arange(5), jnp.array([1, 0, 3]))
    >>> block.tolist(), within.tolist()
    ([0, 2, 2, 2, 2], [0, 0, 1, 2, 3])
    >>> inside.tolist()
    [True, True, True, True, False]
    """
    end = jnp.cumsum(counts)
    block = jnp.minimum(jnp.sum(positions[:, None] >= end, axis=1), counts.shape[0] - 1)
    return block, positions - (end - counts)[block], positions < end[-1]


def _unsigned(position: Position) -> jax.Array:
    return jnp.asarray(position).astype(UNSIGNED)
