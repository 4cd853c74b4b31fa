"""Bayesian neural networks: built-in layered ones, and user-defined ones."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from math import isqrt, log, prod, sqrt
from typing import Annotated, ClassVar, Literal, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from modicum.arguments import Count, FromTwo, Positive, check_settings, one_of
from modicum.arrays import HALF_LOG_2PI
from modicum.errors import DataError, SettingError, whole_number
from modicum.models.constraints import named_leaves
from modicum.models.model import BaseModel, Batch, Params
from modicum.models.observed import check_outcomes, classes_to, count_classes, outcome_range
from modicum.models.tracing import explained, uncompiled
from modicum.random import IMPL
from modicum.rows import Rows
from modicum.runtime import Array

Likelihood: TypeAlias = Literal["categorical", "gaussian"]


class NeuralModel(BaseModel):
    """A network whose outputs are logits of classes, or the mean of a normal outcome.

    Subclasses have the settings below as attributes, and define `outputs`.

    Attributes
    ----------
    likelihood
        "categorical": outcomes are classes 0, 1, ..., K - 1 and outputs their logits;
        "gaussian": the output is the mean of a real outcome with known noise.
    classes
        Number of classes, where it is a setting.
    noise_scale
        Standard deviation of a Gaussian outcome.
    prior_scale
        Standard deviation of the normal prior on every weight and bias.
    scale
        Factor that multiplies x; None means 1/255 for rows held as bytes, and 1 otherwise.
    """

    has_mode: ClassVar[bool] = False
    reads_bytes: ClassVar[bool] = True
    likelihood: str
    classes: int | None = None
    noise_scale: float
    prior_scale: float
    scale: float | None

    @abstractmethod
    def outputs(self, theta: Params, x: jax.Array) -> jax.Array:
        """Outputs of each row, (rows, K); `x` has the parameters' type and is scaled."""

    def log_prior(self, theta: Params) -> jax.Array:
        """Independent normals on all weights and biases."""
        leaves = [jnp.asarray(leaf) for leaf in jax.tree.leaves(theta)]
        squares = jnp.sum(jnp.stack([jnp.sum(leaf * leaf) for leaf in leaves]))
        constant = log(self.prior_scale) + HALF_LOG_2PI
        return -0.5 / self.prior_scale**2 * squares - sum(leaf.size for leaf in leaves) * constant

    def log_likelihood(self, theta: Params, batch: Batch) -> jax.Array:
        """Log-probability of each row's class, or log-density of its outcome."""
        outputs = self.outputs(theta, self._inputs(theta, batch))
        if self.likelihood == "categorical":
            # a masked sum, whose derivative needs no scatter
            is_class = jnp.arange(outputs.shape[-1]) == jnp.asarray(batch["y"])[:, None]
            return jnp.sum(jnp.where(is_class, outputs, 0), -1) - jax.nn.logsumexp(outputs, axis=-1)
        gap = jnp.asarray(batch["y"], outputs.dtype) - _only(outputs)
        return -0.5 * (gap / self.noise_scale) ** 2 - log(self.noise_scale) - HALF_LOG_2PI

    def expected(self, theta: Params, batch: Batch) -> jax.Array:
        """Probability of each class, or the mean of the outcome."""
        outputs = self.outputs(theta, self._inputs(theta, batch))
        return jax.nn.softmax(outputs) if self.likelihood == "categorical" else _only(outputs)

    def decide(self, expected: np.ndarray) -> np.ndarray | None:
        """Predict the most probable class."""
        return np.argmax(expected, axis=-1) if self.likelihood == "categorical" else None

    @property
    def simulates(self) -> bool:
        """Whether outcomes are numbers; classes are drawn from their probabilities instead."""
        return self.likelihood == "gaussian"

    def simulate(self, theta: Params, row: Batch, key: jax.Array) -> jax.Array:
        """Draw an outcome: its mean plus noise."""
        (mean,) = self.expected(theta, {name: jnp.asarray(x)[None] for name, x in row.items()})
        return mean + self.noise_scale * jax.random.normal(key)

    def _inputs(self, theta: Params, batch: Batch) -> jax.Array:
        """Scaled x in the type of the parameters, so that float32 stays float32."""
        x = jnp.asarray(batch["x"])
        scale = self.scale
        if scale is None:
            scale = 1.0 / 255 if x.dtype == jnp.uint8 else 1.0
        kind = jnp.result_type(*jax.tree.leaves(theta))
        x = x.astype(kind)
        return x if scale == 1.0 else x * jnp.asarray(scale, kind)

    # Checks -------------------------------------------------------------------------------

    def check(self, rows: Rows) -> None:
        """Refuse rows without x and y, with an offset, or with outcomes out of support."""
        if rows.coding is not None:
            raise DataError(
                "networks read columns of numbers, not codes; give each level as a column of zeros "
                "and ones, as Rows.from_table(..., dense=True) makes it."
            )
        self.require(rows, "x", "y")
        if "offset" in rows.fields:
            raise DataError("networks take no offset; leave the field 'offset' out.")
        if rows.fields["y"] != ():
            raise DataError("the field 'y' must hold one outcome per row.")
        if self.likelihood == "categorical":
            check_outcomes(self, rows, classes_to(self.classes))
            if self.output_size(rows) < 2:
                raise SettingError("the outcome has a single class; a classifier needs two.")

    def output_size(self, rows: Rows) -> int:
        """Number of outputs of the network: one per class, or one."""
        if self.likelihood == "gaussian":
            return 1
        return self.classes or count_classes(rows)


def _only(outputs: jax.Array) -> jax.Array:
    """The single output of each row."""
    return outputs[:, 0] if outputs.ndim == 2 else outputs


def whole_numbers(name: str, value: object) -> tuple[int, ...]:
    """Return a setting of one or more whole numbers from 1 as a hashable tuple."""
    entries = value if isinstance(value, tuple | list) else (value,)
    return tuple(whole_number(f"each entry of {name}", entry) for entry in entries)


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
    """A network of named layers, each with a kernel and a bias; `MLP` describes the settings."""

    hidden: tuple[int, ...] = (100,)
    activation: Annotated[str, one_of(ACTIVATIONS)] = "relu"
    likelihood: Likelihood = "categorical"
    classes: FromTwo | None = None
    noise_scale: Positive = 1.0
    prior_scale: Positive = 1.0
    scale: Positive | None = None
    start_seed: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "hidden", whole_numbers("hidden", self.hidden))
        check_settings(self)

    @abstractmethod
    def layers(self, rows: Rows) -> Shapes:
        """Shapes of the kernels, by layer."""

    def dense_layers(self, width: int, rows: Rows) -> Shapes:
        """Shapes of the dense layers on top of `width` inputs."""
        sizes = (width, *self.hidden, self.output_size(rows))
        return {f"dense_{i}": pair for i, pair in enumerate(pairwise(sizes))}

    def through_dense(self, theta: Params, h: jax.Array) -> jax.Array:
        """Apply the dense layers, the last without an activation."""
        rectify = ACTIVATIONS[self.activation]
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
    kernel: Count = 5
    pool: Count = 2
    padding: Literal["VALID", "SAME"] = "VALID"
    image: tuple[int, int, int] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "channels", whole_numbers("channels", self.channels))
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
        rectify = ACTIVATIONS[self.activation]
        h = x.reshape(x.shape[0], *self.image_of(x.shape[1:]))
        for i in range(len(self.channels)):
            h = rectify(convolve(theta[f"conv_{i}"], h, self.padding))
            h = max_pool(h, self.pool)
        return self.through_dense(theta, h.reshape(h.shape[0], -1))

    def check(self, rows: Rows) -> None:
        """Refuse what every network refuses, and rows that are not images."""
        super().check(rows)
        self.layers(rows)


@dataclass(frozen=True, eq=False, repr=False)
class Network(NeuralModel):
    """A network of your own, with a normal prior on every weight.

    Parameters
    ----------
    apply
        `apply(params, x)`: outputs of a batch of rows, (rows, K) logits of K classes, or (rows,)
        or (rows, 1) means. It must be a plain function of its arguments: no dropout, no batch
        statistics.
    params
        Starting weights: any pytree of floating-point arrays. It fixes the names of the draws:
        ``{"Dense_0": {"kernel": ...}}`` gives ``Dense_0.kernel``.
    likelihood
        "categorical" for classes 0, 1, ..., K - 1, or "gaussian" for a real outcome.
    noise_scale
        Standard deviation of a Gaussian outcome.
    prior_scale
        Standard deviation of the normal prior on every weight.
    scale
        Factor that multiplies x; None means 1/255 for rows held as bytes, and 1 otherwise.
    init
        Optional `init(key)`: random weights in the structure of `params`, to start each chain
        elsewhere.

    Examples
    --------
    A hand-written network; with Flax it would be ``Network(net.apply, net.init(key, x[:1]))``, and
    with Equinox ``params, static = eqx.partition(net, eqx.is_inexact_array)`` and
    ``Network(lambda p, x: jax.vmap(eqx.combine(p, static))(x), params)``.

    >>> import jax.numpy as jnp, numpy as np, modicum as mo
    >>> def apply(params, x):
    ...     return jnp.tanh(x @ params["in"]) @ params["out"]
    >>> rng = np.random.default_rng(1)
    >>> params = {"in": rng.normal(size=(2, 4)), "out": rng.normal(size=(4, 3))}
    >>> net = mo.models.Network(apply, params)
    >>> rows = mo.Rows(x=rng.normal(size=(9, 2)), y=np.arange(9) % 3)
    >>> net.check(rows)
    >>> net.expected(net.start(rows), rows.slice(0, 5)).shape
    (5, 3)
    """

    apply: Callable[[Params, jax.Array], jax.Array]
    params: Params
    likelihood: Likelihood = "categorical"
    noise_scale: Positive = 1.0
    prior_scale: Positive = 1.0
    scale: Positive | None = None
    init: Callable[[jax.Array], Params] | None = None

    users_functions: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not callable(self.apply):
            raise SettingError(
                f"apply must be a function of (params, x), not {type(self.apply).__name__}."
            )
        object.__setattr__(self, "apply", uncompiled(self.apply))
        check_settings(self)
        self._check_params()

    def outputs(self, theta: Params, x: jax.Array) -> jax.Array:
        """Return what `apply` returns."""
        return self.apply(theta, x)

    def start(self, rows: Rows) -> Params:
        """Return `params` in float64."""
        return jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), self.params)

    def random_start(self, rows: Rows, key: jax.Array) -> Params:
        """Return `init(key)`; without `init`, `params`."""
        return self.start(rows) if self.init is None else self.init(key)

    def report(self, theta: Params) -> dict[str, jax.Array]:
        """Name weights by their place in the tree, without Flax's outermost "params"."""
        named = named_leaves(theta)
        if all(name.startswith("params.") for name in named):
            return {name.removeprefix("params."): leaf for name, leaf in named.items()}
        return named

    def restore(self, named: Mapping[str, Array]) -> Params:
        """Put named draws back into the structure of `params`."""
        leaves = [named[name] for name in self.report(self.params)]
        return jax.tree.unflatten(jax.tree.structure(self.params), leaves)

    def identity(self) -> str:
        """Name weights and settings; `trace` identifies what `apply` computes."""
        shapes = {name: np.shape(leaf) for name, leaf in self.report(self.params).items()}
        settings = (self.likelihood, self.noise_scale, self.prior_scale, self.scale)
        return f"Network({shapes}, {settings})"

    def check(self, rows: Rows) -> None:
        """Try the network on the first rows, so that mistakes surface before any long work."""
        super().check(rows)
        count = min(len(rows), 8)
        called = f"it is called with x of shape {(count, *rows.fields['x'])}."
        with explained(lambda fault: f"apply fails on the first rows ({fault}); {called}"):
            outputs = jax.eval_shape(
                lambda p, x: self.outputs(p, self._inputs(p, {"x": x})),
                self.params,
                rows.slice(0, count)["x"],
            ).shape
        self._check_outputs(outputs, count, rows)

    def output_size(self, rows: Rows) -> int:
        """Number of outputs that the outcomes need at least."""
        return 1 if self.likelihood == "gaussian" else max(2, 1 + int(outcome_range(rows)[1]))

    def _check_outputs(self, shape: tuple[int, ...], count: int, rows: Rows) -> None:
        size = self.output_size(rows)
        if self.likelihood == "gaussian":
            if shape not in ((count,), (count, 1)):
                raise SettingError(
                    f"apply must return one mean per row, but for {count} rows its shape is "
                    f"{shape}."
                )
        elif len(shape) != 2 or shape[0] != count:
            raise SettingError(
                f"apply must return a vector of logits per row, but for {count} rows its shape is "
                f"{shape}."
            )
        elif shape[1] < size:
            raise DataError(
                f"the outcome has {size} classes, but the network has {shape[1]} outputs; give it "
                "one output per class."
            )

    def _check_params(self) -> None:
        leaves = jax.tree.leaves(self.params)
        if not leaves or not all(_is_floating(leaf) for leaf in leaves):
            raise SettingError(
                "params must be a pytree of floating-point arrays; separate the weights from the "
                "rest first (Equinox: eqx.partition(net, eqx.is_inexact_array); Flax NNX: "
                "nnx.split(net, nnx.Param, ...))."
            )
        if len(self.report(self.params)) < len(leaves):
            raise SettingError("two weights of params have the same name; rename one of them.")


def _is_floating(leaf: object) -> bool:
    return isinstance(leaf, float | np.ndarray | jax.Array) and bool(
        jnp.issubdtype(jnp.result_type(leaf), jnp.floating)
    )
