"""One formula for two kinds of arrays: JAX's, which are traced and compiled, and NumPy's.

What is run once over the rows, and by matrix products and elementwise functions, takes NumPy less
time than JAX takes to compile it. So that no formula is written twice, a function asks what kind of
array it was handed, and takes its operations from there:

    xp = namespace(eta)
    return xp.exp(eta) - 1
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import jax
import jax.numpy as jnp
import numpy as np
from scipy import special

__all__ = [
    "as_either",
    "differentiable",
    "erfc",
    "is_numpy",
    "log_gamma_of",
    "log_sum_exp",
    "namespace",
    "power",
    "sigmoid",
]


def is_numpy(x: object) -> bool:
    """Whether nothing is traced here: an array of NumPy, or a plain number."""
    return isinstance(x, np.ndarray | np.generic | float | int)


def namespace(x: object) -> ModuleType:
    """`numpy` for its arrays and for plain numbers, and `jax.numpy` for all others."""
    return np if is_numpy(x) else jnp


def as_either(x: np.ndarray | jax.Array) -> jax.Array:
    """An array for a formula of either kind, which is typed as one of JAX's."""
    return x  # type: ignore[return-value]


def differentiable(
    slope: Callable[[jax.Array], jax.Array],
) -> Callable[[Callable[[jax.Array], jax.Array]], Callable[[jax.Array], jax.Array]]:
    """Give an elementwise function of one argument a derivative of its own, for JAX.

    NumPy arrays are handed to the function itself.
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
    """x to a whole power from 0: NumPy calls a function for these, and a slow one from 3 on."""
    if not is_numpy(x) or exponent < 3:
        return x**exponent
    product = x * x
    for _ in range(exponent - 2):
        product = product * x
    return product


def sigmoid(x: jax.Array) -> jax.Array:
    """1 / (1 + e^-x)."""
    return special.expit(x) if is_numpy(x) else jax.nn.sigmoid(x)


def erfc(x: jax.Array) -> jax.Array:
    """The complementary error function."""
    return special.erfc(x) if is_numpy(x) else jax.scipy.special.erfc(x)


def log_sum_exp(x: jax.Array) -> jax.Array:
    """log sum e^x over the last axis."""
    if not is_numpy(x):
        return jax.nn.logsumexp(x, axis=-1)
    highest = np.max(x, axis=-1, keepdims=True)
    return (highest + np.log(np.sum(np.exp(x - highest), axis=-1, keepdims=True)))[..., 0]


def log_gamma_of(x: jax.Array) -> jax.Array:
    """Log-gamma; its derivatives are costly (see `models.families.special`)."""
    return special.gammaln(x) if is_numpy(x) else jax.scipy.special.gammaln(x)
