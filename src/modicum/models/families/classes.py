"""Classes: multinomial logistic regression, and cumulative logit regression for ordered classes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import ClassVar, Self

import jax
import jax.numpy as jnp
import numpy as np

from modicum.errors import DataError, ModicumWarning, SettingError, whole_number
from modicum.models.families.links import LINKS, bounded_exp, log1m_exp, softplus
from modicum.models.linear_predictor import Derivatives, Draws, LinearPredictorModel, MeanOutcome
from modicum.models.model import Batch, Labels, Params
from modicum.models.outcome_checks import class_fault, class_names, count_classes
from modicum.models.priors import Moments
from modicum.models.separation import find_ordinal_separation, find_separation
from modicum.rows import Rows
from modicum.runtime import Array


def with_reference(eta: jax.Array) -> jax.Array:
    """Append the predictor of the reference class, 0, to the predictors (..., K - 1)."""
    return jnp.concatenate([eta, jnp.zeros_like(eta[..., :1])], axis=-1)


@dataclass(frozen=True, repr=False)
class _Classes(LinearPredictorModel):
    """A family of classes 0, 1, ..., K - 1, predicted by their probabilities."""

    classes: int | None = None
    fewest: ClassVar[int] = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.classes is not None:
            whole_number("classes", self.classes, self.fewest)

    def decide(self, expected: np.ndarray) -> np.ndarray:
        """Predict the most probable class."""
        return np.argmax(expected, axis=-1)

    def outcome_fault(self, y: np.ndarray) -> tuple[np.ndarray, str]:
        """Allow only whole numbers from 0 to K - 1."""
        return class_fault(y, self.classes)


@dataclass(frozen=True, repr=False)
class Softmax(_Classes):
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

    predictor_per_class: ClassVar[bool] = True
    multiplies = "odds against the reference class"

    def predictors(self, rows: Rows) -> int:
        """Return one predictor per class but the reference."""
        if self.classes is not None:
            return self.classes - 1
        return count_classes(rows) - 1

    def log_density(self, eta: jax.Array, y: jax.Array) -> jax.Array:
        """eta_y - log sum exp(eta), the reference class at 0."""
        padded = jnp.append(eta, 0.0)
        return padded[y.astype(int)] - jax.nn.logsumexp(padded)

    def derivatives(self, eta: jax.Array, y: jax.Array, highest: int = 1) -> Derivatives:
        """f and its gradient in the q predictors, (rows,) and (rows, q); no more is ever needed."""
        q = eta.shape[-1]
        pi = jnp.exp(eta - jax.nn.logsumexp(with_reference(eta), axis=-1, keepdims=True))
        hot = jax.nn.one_hot(y.astype(int), q + 1, dtype=eta.dtype)[..., :q]
        return jax.vmap(self.log_density)(eta, y), hot - pi

    def mean(self, eta: jax.Array) -> jax.Array:
        """Probability of each class, the reference last."""
        return jax.nn.softmax(jnp.append(eta, 0.0))

    def separation(self, rows: Rows, theta: Params) -> tuple[ModicumWarning | None, int]:
        """Look for columns that separate the classes."""
        intercept = np.asarray(theta["intercept"]) if self.intercept else None
        return find_separation(rows, np.asarray(theta["beta"]), intercept, reversed=False)

    def draw_outcomes(self, rng: np.random.Generator, eta: np.ndarray, batch: Batch) -> np.ndarray:
        """Draw classes by the Gumbel-max trick."""
        del batch
        padded = np.concatenate([eta, np.zeros_like(eta[..., :1])], axis=-1)
        return 1.0 * np.argmax(padded + rng.gumbel(size=padded.shape), axis=-1)

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


@dataclass(frozen=True, repr=False)
class Ordinal(_Classes):
    """Ordered classes 0, 1, ..., K - 1: P(y <= k) is the sigmoid of cutpoint_k - x @ beta.

    A positive coefficient makes higher classes more likely. `classes` may be left out: it is then
    one more than the largest outcome, and every class must occur. Draws are called `beta` and
    `cutpoint` (K - 1 of them, increasing). The cutpoints replace the intercept: the sampled
    parameters are minus the first cutpoint, which has an intercept's prior, and the logarithms of
    the distances between cutpoints, each N(0, 5^2) by default.

    Examples
    --------
    >>> import numpy as np, modicum as mo
    >>> rows = mo.Rows(x=np.zeros((3, 1)), y=np.array([0, 1, 2]))
    >>> mo.models.Ordinal().labels(rows)["cutpoint"]
    (('0|1', '1|2'),)
    """

    fewest: ClassVar[int] = 3
    multiplies = "odds of a higher class"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.intercept:
            raise SettingError(
                "Ordinal has cutpoints in place of an intercept, which cannot be left out: remove "
                "intercept=False."
            )

    def noise_variance(self, draws: Draws, mean: MeanOutcome) -> float | np.ndarray:
        """The variance of the latent variable between whose cutpoints the outcome is."""
        return LINKS["logit"].noise

    @property
    def extras(self) -> tuple[str, ...]:  # type: ignore[override]
        """Names of the logarithms of the distances between cutpoints, in alphabetical order.

        Empty until the classes are known, see `resolved`.
        """
        count = 0 if self.classes is None else self.classes - 2
        return tuple(f"log_gap_{k:04d}" for k in range(1, count + 1))

    def resolved(self, rows: Rows, data: Moments | None = None) -> Self:
        """Return the model with its classes counted and all priors fixed."""
        counted = self if self.classes is not None else replace(self, classes=count_classes(rows))
        return super(Ordinal, counted).resolved(rows, data)

    def log_density(self, eta: jax.Array, y: jax.Array) -> jax.Array:
        """log(sigmoid(a) - sigmoid(b)), with a, b the cutpoints of class y minus eta.

        That is log sigmoid(a) + log sigmoid(-b) + log(1 - e^(b - a)), which does not cancel.
        """
        cuts, apart = _cutpoints(eta[1:])
        steps = jnp.asarray(y)[..., None] - jnp.arange(len(cuts))  # (no scatters)
        above, below, between = (steps == 0) @ cuts, (steps == 1) @ cuts, (steps == 0) @ apart
        return _log_chance(eta[0], y, len(cuts), above, below, between)

    def log_likelihood(self, theta: Params, batch: Batch) -> jax.Array:
        """Evaluate all rows at once, looking up the shared cutpoints by class."""
        cuts, apart = _cutpoints(jnp.stack([jnp.asarray(theta[name]) for name in self.extras]))
        y = self.outcome(batch)
        tables = jnp.pad(cuts, (0, 1)), jnp.pad(cuts, (1, 0)), jnp.pad(apart, (0, 1))
        place = y.astype(jnp.int32)
        of_row = (table.at[place].get(mode="promise_in_bounds") for table in tables)
        return _log_chance(self.linear(theta, batch), y, len(cuts), *of_row)

    def mean(self, eta: jax.Array) -> jax.Array:
        """Probability of each class."""
        classes = jnp.arange(len(eta) + 1)
        return jnp.exp(jax.vmap(lambda k: self.log_density(eta, k))(classes))

    def report(self, theta: Params) -> dict[str, jax.Array]:
        """Report the cutpoints."""
        gaps = [jnp.exp(theta[name]) for name in self.extras]
        first = -jnp.asarray(theta["intercept"])
        cutpoint = jnp.cumsum(jnp.stack([first, *gaps]))
        named = {"beta": theta["beta"], "cutpoint": cutpoint}
        return self.split_effects(named) | self.report_own(theta)

    def restore(self, named: Mapping[str, Array]) -> Params:
        """Undo `report`."""
        cutpoint = jnp.asarray(named["cutpoint"])
        gaps = jnp.log(jnp.diff(cutpoint))
        names = zip(self.extras, gaps, strict=True)
        rest = {name: value for name, value in named.items() if name != "cutpoint"}
        return super().restore(rest) | {"intercept": -cutpoint[0], **dict(names)}

    def separation(self, rows: Rows, theta: Params) -> tuple[ModicumWarning | None, int]:
        """Look for columns that separate the ordered classes."""
        cutpoints = np.asarray(self.report(theta)["cutpoint"])
        return find_ordinal_separation(rows, np.asarray(theta["beta"]), cutpoints)

    def draw_outcomes(self, rng: np.random.Generator, eta: np.ndarray, batch: Batch) -> np.ndarray:
        """Draw classes by where a logistic variable about eta falls among the cutpoints."""
        del batch
        cuts = np.cumsum(bounded_exp(eta[..., 1:]), axis=-1)  # from the first one, which is at 0
        latent = eta[..., 0] + rng.logistic(size=eta.shape[:-1])
        return (latent > 0) + 1.0 * np.sum(latent[..., None] > cuts, axis=-1)

    def check_outcome(self, rows: Rows) -> None:
        """Refuse outcomes out of support, and fewer than three classes."""
        super().check_outcome(rows)
        if self.classes is None and count_classes(rows) < 3:
            raise DataError(
                "the outcome has fewer than three classes, so there is no order to model; use "
                "Logistic, or give classes= if there are more."
            )

    def labels(self, rows: Rows) -> Labels:
        """Label coefficients by columns, and cutpoints by the classes on either side."""
        count = self.classes or count_classes(rows)
        between = tuple(f"{a}|{b}" for a, b in pairwise(class_names(rows, count)))
        return super().labels(rows) | {"cutpoint": (between,)}


def _cutpoints(log_gaps: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Cutpoints minus the first, and log(1 - e^-gap) of each class k = 1, 2, ..."""
    gaps = jnp.exp(log_gaps)
    cuts = jnp.concatenate([jnp.zeros(1, gaps.dtype), jnp.cumsum(gaps)])
    return cuts, jnp.pad(log1m_exp(gaps), (1, 0))


def _log_chance(
    eta: jax.Array, y: jax.Array, last: int, above: jax.Array, below: jax.Array, between: jax.Array
) -> jax.Array:
    """Log-probability of class y between two cutpoints; the first and last class have only one."""
    return (
        jnp.where(y < last, -softplus(eta - above), 0.0)
        + jnp.where(y > 0, -softplus(below - eta), 0.0)
        + between
    )
