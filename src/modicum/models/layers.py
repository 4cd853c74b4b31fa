"""The layers networks are made of, for batches of rows, and how their weights start.

Convolutions are written as matrix products over patches rather than with XLA's convolution: with
a set of weights a chain, as when chains are a vmapped axis, XLA's becomes a grouped convolution,
which took twice as long on a CPU and on an H200 alike.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod, sqrt
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from modicum.errors import SettingError, suggestion

__all__ = ["ACTIVATIONS", "activation_named", "convolve", "dense", "max_pool", "start_layers"]

Layer = dict[str, Any]  # kernel and bias
Shapes = dict[str, tuple[int, ...]]  # name of a layer -> shape of its kernel

ACTIVATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "relu": jax.nn.relu,
    "tanh": jnp.tanh,
    "sigmoid": jax.nn.sigmoid,
    "gelu": jax.nn.gelu,
    "silu": jax.nn.silu,
    "softplus": jax.nn.softplus,
}

# Variance of a layer's output over that of its input is kept at one by weights of variance
# gain / fan-in: 2 where half of the units are cut off (He et al. 2015), else 1 (Glorot).
HALF_CUT = ("relu", "gelu", "silu")


def activation_named(name: Any) -> Callable[[jax.Array], jax.Array]:
    """Return the activation called `name`, or refuse it."""
    if name not in ACTIVATIONS:
        raise SettingError(
            f"activation must be one of {', '.join(ACTIVATIONS)}, not {name!r}"
            f"{suggestion(str(name), ACTIVATIONS)}."
        )
    return ACTIVATIONS[name]


def dense(layer: Layer, h: jax.Array) -> jax.Array:
    """Affine map of each row: (rows, in) to (rows, out)."""
    return h @ layer["kernel"] + layer["bias"]


def convolve(layer: Layer, h: jax.Array, padding: str = "VALID") -> jax.Array:
    """Convolve images (rows, height, width, in) with a kernel (k, k, in, out), stride one."""
    kernel = layer["kernel"]
    high, wide, _, channels = kernel.shape
    if padding == "SAME":
        h = jnp.pad(h, ((0, 0), _both_sides(high), _both_sides(wide), (0, 0)))
    height, width = h.shape[1] - high + 1, h.shape[2] - wide + 1
    patches = [h[:, i : i + height, j : j + width] for i in range(high) for j in range(wide)]
    return jnp.concatenate(patches, axis=-1) @ kernel.reshape(-1, channels) + layer["bias"]


def _both_sides(size: int) -> tuple[int, int]:
    return (size - 1) // 2, size // 2


def max_pool(h: jax.Array, size: int) -> jax.Array:
    """Largest of each `size` by `size` square of an image; what is left over at the edge falls.

    A maximum over reshaped axes, whose derivative costs less than that of `reduce_window`.
    """
    rows, height, width, channels = h.shape
    high, wide = height // size, width // size
    cut = h[:, : high * size, : wide * size]
    return cut.reshape(rows, high, size, wide, size, channels).max(axis=(2, 4))


def start_layers(normals: Any, shapes: Shapes, activation: str) -> dict[str, Layer]:
    """Weights of layers with kernels of these `shapes`, scaled to their inputs; no biases.

    Parameters
    ----------
    normals
        A standard normal number for each entry of the kernels, in one vector (NumPy's or JAX's).
    shapes
        From the name of a layer to the shape of its kernel.
    """
    gain = 2.0 if activation in HALF_CUT else 1.0
    layers, first = {}, 0
    for name, shape in shapes.items():
        last = first + prod(shape)
        kernel = sqrt(gain / prod(shape[:-1])) * normals[first:last].reshape(shape)
        layers[name] = {"kernel": kernel, "bias": np.zeros(shape[-1], normals.dtype)}
        first = last
    return layers
