"""The base of all networks: a normal prior on every weight, and a likelihood for the outputs."""

from __future__ import annotations

from abc import abstractmethod
from math import log
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from modicum.arrays import HALF_LOG_2PI
from modicum.errors import DataError, SettingError, suggestion, whole_number
from modicum.models.base import BaseModel, Batch, Params
from modicum.models.outcomes import check_outcomes, class_fault, count_classes
from modicum.models.priors import is_positive
from modicum.rows import Rows

LIKELIHOODS = ("categorical", "gaussian")


class NeuralModel(BaseModel):
    """A network whose outputs are logits of classes, or the mean of a normal outcome.

    Subclasses have the settings below as attributes, and define `outputs`.

    Attributes
    ----------
    likelihood
        "categorical": outcomes are classes 0, 1, ..., K - 1 and outputs their logits;
        "gaussian": the output is the mean of a real outcome with known noise.
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

    def check_settings(self) -> None:
        """Refuse settings that do not define a model."""
        if self.likelihood not in LIKELIHOODS:
            raise SettingError(
                f"likelihood must be 'categorical' or 'gaussian', not {self.likelihood!r}"
                f"{suggestion(str(self.likelihood), LIKELIHOODS)}."
            )
        for name in ("prior_scale", "noise_scale"):
            if not is_positive(getattr(self, name)):
                raise SettingError(f"{name} must be a positive number.")
        if self.scale is not None and not is_positive(self.scale):
            raise SettingError("scale must be a positive number, or None.")

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
            classes = self.known_classes()
            check_outcomes(self, rows, lambda y: class_fault(y, classes))
            if self.output_size(rows) < 2:
                raise SettingError("the outcome has a single class; a classifier needs two.")

    def known_classes(self) -> int | None:
        """Number of classes, where it is a setting."""
        return None

    def output_size(self, rows: Rows) -> int:
        """Number of outputs of the network: one per class, or one."""
        if self.likelihood == "gaussian":
            return 1
        return self.known_classes() or count_classes(rows)


def _only(outputs: jax.Array) -> jax.Array:
    """The single output of each row."""
    return outputs[:, 0] if outputs.ndim == 2 else outputs


def whole_numbers(name: str, value: object) -> tuple[int, ...]:
    """Return a setting of one or more whole numbers from 1 as a hashable tuple."""
    entries = value if isinstance(value, tuple | list) else (value,)
    return tuple(whole_number(f"each entry of {name}", entry) for entry in entries)
