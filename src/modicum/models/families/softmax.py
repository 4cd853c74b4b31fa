"""Classes without an order: multinomial logistic regression."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from modicum.errors import ModicumWarning, SettingError, whole_number
from modicum.models.base import Batch, Labels, Params
from modicum.models.linear import LinearPredictorModel
from modicum.models.outcomes import class_fault, class_names, count_classes
from modicum.models.separation import find_separation
from modicum.rows import Rows

Derivatives = tuple[jax.Array, ...]


def with_reference(eta: jax.Array) -> jax.Array:
    """Append the predictor of the reference class, 0, to the predictors (..., K - 1)."""
    return jnp.concatenate([eta, jnp.zeros_like(eta[..., :1])], axis=-1)


@dataclass(frozen=True, repr=False)
class Softmax(LinearPredictorModel):
    """Multinomial logistic regression: classes 0, 1, ..., K - 1, the last one the reference.

    `classes` may be left out: it is then one more than the largest outcome, and every class must
    occur. Draws are called `beta` (K - 1 classes by columns) and `intercept` (K - 1 classes).

    Examples
    --------
    >>> import numpy as np, modicum as mo
    >>> rows = mo.Rows(x=np.eye(3), y=np.array([0, 1, 2]))
    >>> mo.models.Softmax(classes=3).start(rows)["beta"].shape
    (2, 3)
    """

    classes: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.classes is not None:
            whole_number("classes", self.classes, 2)

    def predictors(self, rows: Rows) -> int:
        """Return one predictor per class but the reference."""
        if self.classes is not None:
            return self.classes - 1
        return count_classes(rows) - 1

    def log_density(self, eta: jax.Array, y: jax.Array) -> jax.Array:
        """eta_y - log sum exp(eta), the reference class at 0."""
        padded = jnp.append(eta, 0.0)
        return padded[y.astype(int)] - jax.nn.logsumexp(padded)

    def derivatives(self, eta: jax.Array, y: jax.Array) -> Derivatives:
        """f, gradient, Hessian and third derivatives in the q predictors, by row.

        Shapes (rows,), (rows, q), (rows, q, q), (rows, q, q, q).
        """
        q = eta.shape[-1]
        pi = jnp.exp(eta - jax.nn.logsumexp(with_reference(eta), axis=-1, keepdims=True))
        hot = jax.nn.one_hot(y.astype(int), q + 1, dtype=eta.dtype)[..., :q]
        centred = jnp.eye(q) - pi[..., None, :]  # row a: e_a - pi
        covariance = jnp.einsum("...c,...ca,...cb->...ab", pi, centred, centred)
        reference = 1 - pi.sum(-1)
        covariance += reference[..., None, None] * pi[..., :, None] * pi[..., None, :]
        third = jnp.einsum("...c,...ca,...cb,...cd->...abd", pi, centred, centred, centred)
        third -= reference[..., None, None, None] * jnp.einsum("...a,...b,...c->...abc", pi, pi, pi)
        return jax.vmap(self.log_density)(eta, y), hot - pi, -covariance, -third

    def higher_derivatives(self, eta: jax.Array, y: jax.Array) -> Derivatives:
        """Unavailable: softmax control variates are differentiated automatically."""
        raise SettingError("Softmax has several predictors; its expansion stops at order 3.")

    def mean(self, eta: jax.Array) -> jax.Array:
        """Probability of each class, the reference last."""
        return jax.nn.softmax(jnp.append(eta, 0.0))

    def decide(self, expected: np.ndarray) -> np.ndarray:
        """Predict the most probable class."""
        return np.argmax(expected, axis=-1)

    def separation(self, rows: Rows, theta: Params) -> tuple[ModicumWarning | None, int]:
        """Look for columns that separate the classes."""
        intercept = np.asarray(theta["intercept"]) if self.intercept else None
        beta = np.asarray(theta["beta"])
        separation, passes = find_separation(rows, beta, intercept, reversed=False)
        return None if separation is None else separation.warning(), passes

    def draw_outcomes(self, rng: np.random.Generator, eta: np.ndarray, batch: Batch) -> np.ndarray:
        """Draw classes by the Gumbel-max trick."""
        del batch
        padded = np.concatenate([eta, np.zeros_like(eta[..., :1])], axis=-1)
        return 1.0 * np.argmax(padded + rng.gumbel(size=padded.shape), axis=-1)

    def outcome_fault(self, y: np.ndarray) -> tuple[np.ndarray, str]:
        """Allow only whole numbers from 0 to K - 1."""
        return class_fault(y, self.classes)

    def check_outcome(self, rows: Rows) -> None:
        """Refuse outcomes out of support, and an outcome with a single class."""
        super().check_outcome(rows)
        if self.predictors(rows) < 1:
            raise SettingError("the outcome has a single class; Softmax needs two or more.")

    def labels(self, rows: Rows) -> Labels:
        """Label the axes of beta by classes and columns."""
        classes = class_names(rows, self.predictors(rows), "class ")
        named: Labels = {"beta": (classes, tuple(rows.columns))} if rows.columns else {}
        return named | {"intercept": (classes,)}
