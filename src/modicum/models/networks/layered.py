"""Bayesian neural networks: a multilayer perceptron and a convolutional network.

Convolutions are matrix products over patches rather than XLA convolutions: where chains are a
vmapped axis, each with its own weights, XLA's becomes a grouped convolution, which took twice as
long on a CPU and on an H200 alike.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from math import isqrt, prod, sqrt

import jax
import jax.numpy as jnp
import numpy as np

from modicum.errors import DataError, SettingError, suggestion, whole_number
from modicum.models.base import Params
from modicum.models.networks.base import NeuralModel, whole_numbers
from modicum.random import IMPL
from modicum.rows import Rows
from modicum.runtime import Array

# Layers, for batches of rows, and how their weights start ----------------------------------

Layer = dict[str, Array]  # kernel and bias
Shapes = dict[str, tuple[int, ...]]  # name of a layer -> shape of its kernel

ACTIVATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "relu": jax.nn.relu,
    "tanh": jnp.tanh,
    "sigmoid": jax.nn.sigmoid,
    "gelu": jax.nn.gelu,
    "silu": jax.nn.silu,
    "softplus": jax.nn.softplus,
}

# Weights of variance gain / fan-in keep the variance from layer to layer, with gain 2 where half of
# the units are cut off (He et al. 2015), and 1 otherwise (Glorot).
HALF_CUT = ("relu", "gelu", "silu")


def activation_named(name: object) -> Callable[[jax.Array], jax.Array]:
    """Return the activation called `name`, or refuse it."""
    if not isinstance(name, str) or name not in ACTIVATIONS:
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
    """Maximum of each `size` by `size` square of an image; incomplete squares are dropped.

    The maximum over reshaped axes has a cheaper derivative than `reduce_window`.
    """
    rows, height, width, channels = h.shape
    high, wide = height // size, width // size
    cut = h[:, : high * size, : wide * size]
    return cut.reshape(rows, high, size, wide, size, channels).max(axis=(2, 4))


def start_layers(normals: Array, shapes: Shapes, activation: str) -> dict[str, Layer]:
    """Return starting weights of layers, scaled by their number of inputs; biases are 0.

    Parameters
    ----------
    normals
        Standard normal numbers for all entries of the kernels, in one NumPy or JAX vector.
    shapes
        Shape of each layer's kernel, by name.
    """
    gain = 2.0 if activation in HALF_CUT else 1.0
    layers, first = {}, 0
    for name, shape in shapes.items():
        last = first + prod(shape)
        kernel = sqrt(gain / prod(shape[:-1])) * normals[first:last].reshape(shape)
        layers[name] = {"kernel": kernel, "bias": np.zeros(shape[-1], normals.dtype)}
        first = last
    return layers


# Networks made of them ---------------------------------------------------------------------


@dataclass(frozen=True)
class _Layered(NeuralModel):
    """A network of named layers, each with a kernel and a bias.

    Parameters
    ----------
    hidden
        Units of each hidden dense layer.
    activation
        "relu", "tanh", "sigmoid", "gelu", "silu" or "softplus", after every layer but the last.
    likelihood, noise_scale, prior_scale, scale
        See `modicum.models.networks.NeuralModel`.
    classes
        Number of classes; by default one more than the largest outcome.
    start_seed
        Seed of the random weights a run starts from.
    """

    hidden: tuple[int, ...] = (100,)
    activation: str = "relu"
    likelihood: str = "categorical"
    classes: int | None = None
    noise_scale: float = 1.0
    prior_scale: float = 1.0
    scale: float | None = None
    start_seed: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "hidden", whole_numbers("hidden", self.hidden))
        activation_named(self.activation)
        self.check_settings()
        if self.classes is not None:
            whole_number("classes", self.classes, 2)

    @abstractmethod
    def layers(self, rows: Rows) -> Shapes:
        """Shapes of the kernels, by layer."""

    def known_classes(self) -> int | None:
        """Number of classes, where it is set."""
        return self.classes

    def dense_layers(self, width: int, rows: Rows) -> Shapes:
        """Shapes of the dense layers on top of `width` inputs."""
        sizes = (width, *self.hidden, self.output_size(rows))
        return {f"dense_{i}": pair for i, pair in enumerate(pairwise(sizes))}

    def through_dense(self, theta: Params, h: jax.Array) -> jax.Array:
        """Apply the dense layers, the last without an activation."""
        rectify = activation_named(self.activation)
        for i in range(len(self.hidden)):
            h = rectify(dense(theta[f"dense_{i}"], h))
        return dense(theta[f"dense_{len(self.hidden)}"], h)

    def start(self, rows: Rows) -> Params:
        """Draw weights by He's rule with the key of `start_seed`."""
        normals = _normals(jax.random.key(self.start_seed, impl=IMPL), shapes := self.layers(rows))
        return start_layers(np.asarray(normals, np.float64), shapes, self.activation)

    def random_start(self, rows: Rows, key: jax.Array) -> Params:
        """Draw weights by He's rule with `key`."""
        shapes = self.layers(rows)
        return start_layers(_normals(key, shapes), shapes, self.activation)

    def restore(self, named: Mapping[str, Array]) -> Params:
        """Undo `report`: nest "dense_0.kernel" into layers of kernel and bias."""
        theta: dict[str, Layer] = {}
        for name, value in named.items():
            layer, part = name.split(".")
            theta.setdefault(layer, {})[part] = value
        return theta


def _normals(key: jax.Array, shapes: Shapes) -> jax.Array:
    # always in float32, so that a key gives the same start in either precision
    return jax.random.normal(key, (sum(prod(shape) for shape in shapes.values()),), np.float32)


@dataclass(frozen=True)
class MLP(_Layered):
    """Multilayer perceptron: dense layers, and classes by softmax or a Gaussian outcome.

    The defaults are those of the EWSG paper (section 5.3): one hidden layer of 100 units and a
    standard normal prior on all weights and biases. Draws are called ``dense_0.kernel``,
    ``dense_0.bias``, ``dense_1.kernel`` and so on; a kernel is (inputs, outputs). A field `x` with
    more than one axis, such as images, is flattened.

    Parameters
    ----------
    hidden
        Units of each hidden layer.
    activation
        "relu", "tanh", "sigmoid", "gelu", "silu" or "softplus".
    likelihood
        "categorical" for classes 0, 1, ..., K - 1, or "gaussian" for a real outcome.
    classes
        Number of classes; by default one more than the largest outcome.
    noise_scale
        Standard deviation of a Gaussian outcome.
    prior_scale
        Standard deviation of the normal prior on every weight and bias.
    scale
        Factor that multiplies x; None means 1/255 for rows held as bytes, and 1 otherwise.
    start_seed
        Seed of the random weights a run starts from.

    Examples
    --------
    >>> import numpy as np, modicum as mo
    >>> pixels = np.random.default_rng(1).integers(0, 256, size=(60, 28, 28))
    >>> rows = mo.Rows(x=pixels, y=np.arange(60) % 10, dtype="uint8")  # one byte per pixel
    >>> net = mo.models.MLP(hidden=(100,))
    >>> theta = net.start(rows)
    >>> {name: layer["kernel"].shape for name, layer in theta.items()}
    {'dense_0': (784, 100), 'dense_1': (100, 10)}
    >>> net.log_likelihood(theta, rows.slice(0, 5)).shape
    (5,)
    """

    def layers(self, rows: Rows) -> Shapes:
        """Shapes of dense layers."""
        return self.dense_layers(prod(rows.fields["x"]), rows)

    def outputs(self, theta: Params, x: jax.Array) -> jax.Array:
        """Logits of each row, or its mean."""
        return self.through_dense(theta, x.reshape(x.shape[0], -1))


@dataclass(frozen=True)
class CNN(_Layered):
    """Convolutional network: convolutions with max pooling, then dense layers.

    The defaults are those of the EWSG paper (section 5.3): two 5 by 5 convolutions of 32 and 64
    channels, each followed by 2 by 2 max pooling, and two dense layers of 200 units before the
    outputs, with a standard normal prior on all weights and biases. The paper does not say how
    edges are treated; here `padding` decides.

    Parameters
    ----------
    hidden, activation, likelihood, classes, noise_scale, prior_scale, scale, start_seed
        As in `MLP`.
    channels
        Output channels of each convolution.
    kernel
        Width and height of the convolutions.
    pool
        Width and height of the squares that are pooled; 1 pools nothing.
    padding
        "VALID" convolves within the image, "SAME" keeps its size.
    image
        Height, width and channels of an image; by default the shape of the field x, or the square
        root of its length where x is flat.

    Examples
    --------
    >>> import numpy as np, modicum as mo
    >>> pixels = np.random.default_rng(1).integers(0, 256, size=(20, 784))
    >>> rows = mo.Rows(x=pixels, y=np.arange(20) % 10, dtype="uint8")
    >>> net = mo.models.CNN()
    >>> theta = net.start(rows)
    >>> {name: layer["kernel"].shape for name, layer in theta.items()}
    {'conv_0': (5, 5, 1, 32), 'conv_1': (5, 5, 32, 64),
     'dense_0': (1024, 200), 'dense_1': (200, 200), 'dense_2': (200, 10)}
    """

    hidden: tuple[int, ...] = (200, 200)
    channels: tuple[int, ...] = (32, 64)
    kernel: int = 5
    pool: int = 2
    padding: str = "VALID"
    image: tuple[int, int, int] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "channels", whole_numbers("channels", self.channels))
        whole_number("kernel", self.kernel)
        whole_number("pool", self.pool)
        if self.padding not in ("VALID", "SAME"):
            raise SettingError(f"padding must be 'VALID' or 'SAME', not {self.padding!r}.")
        if self.image is not None:
            image = whole_numbers("image", self.image)
            if len(image) not in (2, 3):
                raise SettingError("image must be (height, width) or (height, width, channels).")
            object.__setattr__(self, "image", (*image, 1)[:3])

    def image_of(self, shape: tuple[int, ...]) -> tuple[int, int, int]:
        """Height, width and channels of rows of this shape."""
        if self.image is not None and prod(self.image) == prod(shape):
            return self.image
        if self.image is None and len(shape) in (2, 3):
            return (*shape, 1)[:3]  # type: ignore[return-value]
        side = isqrt(prod(shape))
        if self.image is None and len(shape) == 1 and side * side == shape[0]:
            return side, side, 1
        raise DataError(
            f"the field 'x' of shape {shape} is not an image"
            f"{'' if self.image is None else f' of shape {self.image}'}; give image=(height, "
            "width, channels) that has as many pixels."
        )

    def layers(self, rows: Rows) -> Shapes:
        """Convolutions, then dense layers."""
        high, wide, depth = self.image_of(rows.fields["x"])
        shapes: Shapes = {}
        for i, channels in enumerate(self.channels):
            shapes[f"conv_{i}"] = (self.kernel, self.kernel, depth, channels)
            lost = 0 if self.padding == "SAME" else self.kernel - 1
            high, wide, depth = (high - lost) // self.pool, (wide - lost) // self.pool, channels
            if min(high, wide) < 1:
                raise SettingError(
                    f"nothing is left of images of shape {rows.fields['x']} after {i + 1} "
                    "convolutions; use a smaller kernel, fewer convolutions (entries of channels) "
                    "or padding='SAME'."
                )
        return shapes | self.dense_layers(high * wide * depth, rows)

    def outputs(self, theta: Params, x: jax.Array) -> jax.Array:
        """Logits of each row, or its mean."""
        rectify = activation_named(self.activation)
        h = x.reshape(x.shape[0], *self.image_of(x.shape[1:]))
        for i in range(len(self.channels)):
            h = rectify(convolve(theta[f"conv_{i}"], h, self.padding))
            h = max_pool(h, self.pool)
        return self.through_dense(theta, h.reshape(h.shape[0], -1))

    def check(self, rows: Rows) -> None:
        """Refuse what every network refuses, and rows that are not images."""
        super().check(rows)
        self.layers(rows)
