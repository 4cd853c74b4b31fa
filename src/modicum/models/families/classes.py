"""Classes: multinomial logistic regression, and three kinds of regression for ordered classes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Annotated, ClassVar, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np

from modicum.arguments import FromTwo, at_least
from modicum.arrays import log1m_exp, namespace
from modicum.errors import DataError, ModicumWarning, SettingError
from modicum.models.families.links import LINKS, LinkName, bounded_exp, log_factorial
from modicum.models.linear_predictor import Draws, LinearPredictorModel, MeanOutcome
from modicum.models.model import Batch, Labels, Params
from modicum.models.observed import COUNTS, Support, class_names, classes_to, count_classes
from modicum.models.priors.resolved import Part, Reported
from modicum.models.priors.units import Moments
from modicum.models.separation import find_ordinal_separation, find_separation
from modicum.rows import Rows
from modicum.rows.formula.parsing import OF_CLASSES
from modicum.runtime import Array


@dataclass(frozen=True, repr=False)
class _Classes(LinearPredictorModel):
    """A family of classes 0, 1, ..., K - 1, predicted by their probabilities."""

    classes: FromTwo | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.modelled and (len(self.modelled) + 1 != self.classes or self.intercept):
            raise SettingError(
                f"{type(self).__name__} explains all classes by one formula, that of the "
                f"outcome: leave out the formula of {self.modelled[0]!r}."
            )

    @property
    def extras(self) -> tuple[str, ...]:  # type: ignore[override]
        """The predictors of classes with terms of their own, sorted as parameters are."""
        return tuple(f"class_{name}" for name in sorted(self.modelled))

    def own_predictors(self, eta: Array) -> Array:
        """Return these predictors in the order of the classes, from the predictors of a row."""
        return eta[..., np.argsort(np.argsort(self.modelled)) + 1]

    def decide(self, expected: np.ndarray) -> np.ndarray:
        """Predict the most probable class."""
        return np.argmax(expected, axis=-1)

    @property
    def support(self) -> Support:
        """Whole numbers from 0 to K - 1."""
        return classes_to(self.classes)


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
    terms_by_class: ClassVar[str | None] = ""
    multiplies = "odds against the reference class"

    def logits(self, eta: Array) -> Array:
        """Return the predictors of all classes, the reference last, from those of a row.

        With pooled terms the mean's predictor is the reference's, which is 0.
        """
        xp = namespace(eta)
        if self.modelled:
            return xp.concatenate([self.own_predictors(eta), eta[..., :1]], axis=-1)
        return xp.concatenate([eta, xp.zeros_like(eta[..., :1])], axis=-1)

    def predictors(self, rows: Rows) -> int:
        """Return one predictor per class but the reference, unless each has terms of its own."""
        if self.modelled:
            return 0
        if self.classes is not None:
            return self.classes - 1
        return count_classes(rows) - 1

    def log_density(self, eta: jax.Array, y: jax.Array) -> jax.Array:
        """eta_y - log sum exp(eta), the reference class at 0."""
        logits = self.logits(eta)
        return logits[y.astype(int)] - jax.nn.logsumexp(logits)

    def mean(self, eta: jax.Array) -> jax.Array:
        """Probability of each class, the reference last."""
        return jax.nn.softmax(self.logits(eta))

    def separation(self, rows: Rows, theta: Params) -> tuple[ModicumWarning | None, int]:
        """Look for columns that separate the classes."""
        if self.modelled or len(self.outcome_fields) > 1:
            return super().separation(rows, theta)
        intercept = np.asarray(theta["intercept"]) if self.intercept else None
        return find_separation(rows, np.asarray(theta["beta"]), intercept, reversed=False)

    def draw_outcomes(self, rng: np.random.Generator, eta: np.ndarray, batch: Batch) -> np.ndarray:
        """Draw classes by the Gumbel-max trick."""
        logits = self.logits(eta)
        return 1.0 * np.argmax(logits + rng.gumbel(size=logits.shape), axis=-1)

    def check_outcome(self, rows: Rows) -> None:
        """Refuse outcomes out of support, and an outcome with a single class."""
        super().check_outcome(rows)
        if self.predictors(rows) < 1 and not self.modelled:
            raise SettingError("the outcome has a single class; Softmax needs two or more.")

    def labels(self, rows: Rows) -> Labels:
        """Label the axes of beta by classes and columns."""
        if self.modelled:
            return super().labels(rows)
        classes = class_names(rows, self.predictors(rows), "class ")
        named: Labels = {"beta": (classes, tuple(rows.columns))} if rows.columns else {}
        return named | {"intercept": (classes,)}


@dataclass(frozen=True, repr=False)
class Multinomial(Softmax):
    """Counts of classes among the `trials` of a row, a field; the last class is the reference.

    The probabilities of classes are those of `Softmax`: a row of counts is worth as many rows of
    one outcome each. A formula has ``cbind(a, b, c) ~ x``.

    Parameters
    ----------
    counts
        Fields of the rows with the counts of all classes but the first, which is the outcome `y`.

    Examples
    --------
    >>> import numpy as np, modicum as mo
    >>> counts = {"y": [3, 0], "b": [1, 2], "c": [0, 2], "trials": [4, 4]}
    >>> model = mo.models.Multinomial(counts=("b", "c"))
    >>> model.start(mo.Rows(x=np.zeros((2, 1)), **counts))["beta"].shape
    (2, 1)
    """

    counts: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "counts", tuple(self.counts))
        object.__setattr__(self, "outcome_fields", ("y", "trials", *self.counts))
        if self.counts:
            object.__setattr__(self, "classes", len(self.counts) + 1)
        super().__post_init__()

    def log_density(self, eta: jax.Array, y: jax.Array) -> jax.Array:
        """Sum of y_k log p_k, and the log of the multinomial coefficient."""
        counts = jnp.concatenate([y[:1], y[2:]]).astype(eta.dtype)  # without the trials
        apart = log_factorial(counts, eta).sum() - log_factorial(counts.sum(), eta)
        return counts @ jax.nn.log_softmax(self.logits(eta)) - apart

    def decide(self, expected: np.ndarray) -> None:  # type: ignore[override]
        """Predict no class: an outcome has several."""

    @property
    def drawn_given(self) -> tuple[str, ...]:
        """The trials alone: the other fields are outcomes."""
        return ("trials",)

    def draw_outcomes(self, rng: np.random.Generator, eta: np.ndarray, batch: Batch) -> np.ndarray:
        """Draw the counts of all classes, (..., K)."""
        logits = self.logits(eta)
        chances = np.exp(logits - logits.max(axis=-1, keepdims=True))
        trials = np.asarray(batch["trials"]).astype(np.int64)
        return 1.0 * rng.multinomial(trials, chances / chances.sum(axis=-1, keepdims=True))

    support = COUNTS

    def check_fields(self, chunk: Batch, first: int) -> None:
        """Refuse counts that are not counts, or whose sum is not the number of trials."""
        counts = np.stack([np.asarray(chunk[name]) for name in ("y", *self.counts)])
        trials = np.asarray(chunk["trials"])
        bad = COUNTS.excludes(counts).any(axis=0) | (np.sum(counts, axis=0) != trials)
        if bad.any():
            at = int(np.argmax(bad))
            listed = ", ".join(f"{count:g}" for count in counts[:, at])
            raise DataError(
                f"row {first + at} has the counts {listed} in {trials[at]:g} trials; they must be "
                "whole numbers from 0, and the trials their sum."
            )


class _Cutpoints(NamedTuple):
    """Cutpoints: minus the first and the extra parameters, or minus intercepts by class."""

    model: _OrderedClasses

    def constrain(self, free: jax.Array) -> jax.Array:
        """Return the cutpoints on the last axis."""
        if self.model.modelled:
            return -free[..., np.argsort(np.argsort(self.model.modelled))]
        return self.model.cutpoints(free[..., 1:]) - free[..., :1]

    def free(self, value: jax.Array) -> jax.Array:
        """Return what is sampled."""
        if self.model.modelled:
            return -value[np.argsort(self.model.modelled)]
        return jnp.concatenate([-value[:1], self.model.free_cutpoints(value - value[0])])


@dataclass(frozen=True, repr=False)
class _OrderedClasses(_Classes):
    """Ordered classes, told apart by cutpoints, which replace the intercept.

    The sampled parameters are minus the first cutpoint, which has an intercept's prior, and one
    extra parameter for each other cutpoint. Where effects differ between cutpoints, each has a
    predictor of its own, which is added to the common one, and whose intercept is minus the
    cutpoint.
    """

    classes: Annotated[int, at_least(3)] | None = None
    has_order: ClassVar[bool] = True
    # Whether cutpoints increase, by gaps whose logarithms are the extra parameters; else these are
    # the shifts of each other cutpoint from the first.
    increasing: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.intercept and (self.without_intercept or not self.modelled):
            raise SettingError(
                f"{type(self).__name__} has cutpoints in place of an intercept, which cannot be "
                "left out: remove intercept=False."
            )

    @property
    def extras(self) -> tuple[str, ...]:  # type: ignore[override]
        """Names of the parameters of the other cutpoints, in alphabetical order.

        Empty until the classes are known, see `resolved`.
        """
        if self.modelled:
            return super().extras
        count = 0 if self.classes is None else self.classes - 2
        name = "log_gap" if self.increasing else "shift"
        return tuple(f"{name}_{k:04d}" for k in range(1, count + 1))

    def cutpoints(self, extras: jax.Array) -> jax.Array:
        """Return the cutpoints minus the first, which is 0, on the last axis."""
        xp = namespace(extras)
        others = xp.cumsum(xp.exp(extras), axis=-1) if self.increasing else extras
        return xp.pad(others, [(0, 0)] * (extras.ndim - 1) + [(1, 0)])

    def free_cutpoints(self, cuts: jax.Array) -> jax.Array:
        """Return the extra parameters, given the cutpoints minus the first."""
        return jnp.log(jnp.diff(cuts)) if self.increasing else cuts[1:]

    def beyond(self, eta: Array) -> Array:
        """Return the predictor minus each cutpoint, from the predictors of a row, (..., K - 1)."""
        if self.modelled:
            return eta[..., :1] + self.own_predictors(eta)
        xp = namespace(eta)
        return eta[..., :1] - xp.concatenate([xp.zeros_like(eta[..., :1]), eta[..., 1:]], axis=-1)

    def resolved(self, rows: Rows, data: Moments | None = None) -> Self:
        """Return the model with its classes counted and all priors fixed."""
        counted = self if self.classes is not None else replace(self, classes=count_classes(rows))
        return super(_OrderedClasses, counted).resolved(rows, data)

    def mean(self, eta: jax.Array) -> jax.Array:
        """Probability of each class."""
        classes = jnp.arange(len(eta) + 1 - bool(self.modelled))
        return jnp.exp(jax.vmap(lambda k: self.log_density(eta, k))(classes))

    def reported_alone(self) -> Iterator[Reported]:
        """Yield the cutpoints, of which the intercept and the extra parameters are coordinates."""
        names = self.extras if self.modelled else ("intercept", *self.extras)
        yield Reported("cutpoint", tuple(map(Part, names)), _Cutpoints(self))

    def describe_priors(self, rows: Rows) -> dict[str, str]:
        """Name the priors of cutpoints by what they are priors of."""
        cuts = [f"cutpoint[{name}]" for name in self.labels(rows)["cutpoint"][0]]
        named = {"intercept": f"-{cuts[0]}"}
        named |= {f"{name}.intercept": f"-cutpoint[{name}]" for name in self.modelled}
        for k, name in enumerate(() if self.modelled else self.extras, start=1):
            between = f"{cuts[k]} - {cuts[k - 1 if self.increasing else 0]}"
            named |= {self.extra_key(name): between, name: between}
            if self.extra_key(name) != name:
                named[name] = f"log({between})"
        return {named.get(name, name): text for name, text in super().describe_priors(rows).items()}

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


@dataclass(frozen=True, repr=False)
class Ordinal(_OrderedClasses):
    """Ordered classes 0, 1, ..., K - 1: P(y <= k) is the sigmoid of cutpoint_k - x @ beta.

    A positive coefficient makes higher classes more likely. `classes` may be left out: it is then
    one more than the largest outcome, and every class must occur. Draws are called `beta` and
    `cutpoint` (K - 1 of them, increasing). The cutpoints replace the intercept: the sampled
    parameters are minus the first cutpoint, which has an intercept's prior, and the logarithms of
    the distances between cutpoints, each N(0, 5^2) by default.

    Parameters
    ----------
    classes
        The number of classes; None: counted.
    link
        "logit", "probit" or "cloglog": of which distribution P(y <= k) is the cumulative one.

    Examples
    --------
    >>> import numpy as np, modicum as mo
    >>> rows = mo.Rows(x=np.zeros((3, 1)), y=np.array([0, 1, 2]))
    >>> mo.models.Ordinal().labels(rows)["cutpoint"]
    (('0|1', '1|2'),)
    """

    link: LinkName = "logit"
    increasing: ClassVar[bool] = True

    @property
    def multiplies(self) -> str:  # type: ignore[override]
        """What e^coefficient multiplies, by the link."""
        return "odds of a higher class" if self.link == "logit" else ""

    def noise_variance(self, draws: Draws, mean: MeanOutcome) -> float | np.ndarray:
        """The variance of the latent variable between whose cutpoints the outcome is."""
        return LINKS[self.link].noise

    def log_density(self, eta: jax.Array, y: jax.Array) -> jax.Array:
        """log(F(a) - F(b)), with a, b the cutpoints of class y minus eta."""
        cuts, apart = self.cutpoints(eta[1:]), self._log_apart(eta[1:])
        steps = jnp.asarray(y)[..., None] - jnp.arange(len(cuts))  # (no scatters)
        above, below, between = (steps == 0) @ cuts, (steps == 1) @ cuts, (steps == 0) @ apart
        return self._log_chance(eta[0], y, len(cuts), above, below, between)

    def log_likelihood(self, theta: Params, batch: Batch) -> jax.Array:
        """Evaluate all rows at once, looking up the shared cutpoints by class."""
        extras = jnp.stack([jnp.asarray(theta[name]) for name in self.extras])
        cuts, apart, y = self.cutpoints(extras), self._log_apart(extras), self.outcome(batch)
        tables = jnp.pad(cuts, (0, 1)), jnp.pad(cuts, (1, 0)), jnp.pad(apart, (0, 1))
        place = y.astype(jnp.int32)
        of_row = (table.at[place].get(mode="promise_in_bounds") for table in tables)
        return self._log_chance(self.linear(theta, batch), y, len(cuts), *of_row)

    def _log_apart(self, log_gaps: jax.Array) -> jax.Array:
        """log(1 - e^-gap) of each class k = 1, 2, ..., and 0 for the first."""
        return jnp.pad(log1m_exp(jnp.exp(log_gaps)), (1, 0))

    def _log_chance(
        self,
        eta: jax.Array,
        y: jax.Array,
        last: int,
        above: jax.Array,
        below: jax.Array,
        between: jax.Array,
    ) -> jax.Array:
        """Log-probability of class y between two cutpoints; the first and last have only one.

        F(a) - F(b) is F(a) (1 - F(b)) (1 - e^-d), where d is the difference of the log-odds of F(a)
        and F(b), so that nothing cancels. For the logit link d is the distance of the cutpoints.
        """
        link, a, b = LINKS[self.link], above - eta, below - eta
        lower, upper = link.log_success(a), link.log_failure(b)
        if self.link != "logit":
            d = lower - link.log_failure(a) - link.log_success(b) + upper
            middle = (y > 0) & (y < last)
            between = jnp.where(middle, log1m_exp(jnp.where(middle, d, 1.0)), 0.0)
        return jnp.where(y < last, lower, 0.0) + jnp.where(y > 0, upper, 0.0) + between

    def separation(self, rows: Rows, theta: Params) -> tuple[ModicumWarning | None, int]:
        """Look for columns that separate the ordered classes."""
        cutpoints = np.asarray(self.report(theta)["cutpoint"])
        return find_ordinal_separation(rows, np.asarray(theta["beta"]), cutpoints)

    def draw_outcomes(self, rng: np.random.Generator, eta: np.ndarray, batch: Batch) -> np.ndarray:
        """Draw classes by where a latent variable about eta falls among the cutpoints."""
        cuts = np.cumsum(bounded_exp(eta[..., 1:]), axis=-1)  # from the first one, which is at 0
        latent = eta[..., 0] + LINKS[self.link].draw(rng, eta.shape[:-1])
        return (latent > 0) + 1.0 * np.sum(latent[..., None] > cuts, axis=-1)


@dataclass(frozen=True, repr=False)
class StoppingRatio(_OrderedClasses):
    """Ordered classes reached one after the other: P(y = k | y >= k) is F(cutpoint_k - x @ beta).

    For classes that are stages, such as degrees of schooling or of a disease: a positive
    coefficient makes it more likely to go on. Cutpoints need not increase; the distance of each
    from the first is N(0, 5^2) by default.

    Parameters
    ----------
    classes
        The number of classes; None: counted.
    link
        "logit", "probit" or "cloglog": F is the link's cumulative distribution function. With
        "cloglog" this is the proportional-hazards model of times in intervals.

    Examples
    --------
    >>> import jax.numpy as jnp, modicum as mo
    >>> mo.models.StoppingRatio(classes=3).mean(jnp.zeros(2)).tolist()
    [0.5, 0.25, 0.25]
    """

    link: LinkName = "logit"
    terms_by_class: ClassVar[str | None] = OF_CLASSES

    @property
    def multiplies(self) -> str:  # type: ignore[override]
        """What e^coefficient multiplies, by the link."""
        return "odds of going on" if self.link == "logit" else ""

    def log_density(self, eta: jax.Array, y: jax.Array) -> jax.Array:
        """Sum log(1 - F) over the classes before y, and log F at y, unless it is the last."""
        link, at = LINKS[self.link], -jnp.asarray(self.beyond(jnp.asarray(eta)))
        classes = jnp.arange(len(at))
        stopped = jnp.where(classes == y, link.log_success(at), 0.0)
        return jnp.sum(stopped + jnp.where(classes < y, link.log_failure(at), 0.0))

    def draw_outcomes(self, rng: np.random.Generator, eta: np.ndarray, batch: Batch) -> np.ndarray:
        """Draw at each class whether to stop there."""
        at = -self.beyond(eta)
        on = LINKS[self.link].draw(rng, at.shape) > at
        return 1.0 * np.sum(np.cumprod(on, axis=-1), axis=-1)


@dataclass(frozen=True, repr=False)
class AdjacentCategory(_OrderedClasses):
    """Ordered classes: the log-odds of class k + 1 against class k are x @ beta - cutpoint_k.

    Cutpoints need not increase; the distance of each from the first is N(0, 5^2) by default.

    Parameters
    ----------
    classes
        The number of classes; None: counted.

    Examples
    --------
    >>> import jax.numpy as jnp, modicum as mo
    >>> mo.models.AdjacentCategory(classes=4).mean(jnp.zeros(3)).tolist()
    [0.25, 0.25, 0.25, 0.25]
    """

    multiplies = "odds of the next class"
    terms_by_class: ClassVar[str | None] = OF_CLASSES

    def log_density(self, eta: jax.Array, y: jax.Array) -> jax.Array:
        """log softmax of the sums of eta - cutpoint over the classes before each."""
        scores = jnp.pad(jnp.cumsum(self.beyond(jnp.asarray(eta))), (1, 0))
        at = jnp.arange(len(scores)) == y  # (no scatters)
        return at @ scores - jax.nn.logsumexp(scores)

    def draw_outcomes(self, rng: np.random.Generator, eta: np.ndarray, batch: Batch) -> np.ndarray:
        """Draw classes by the Gumbel-max trick."""
        odds = np.cumsum(self.beyond(eta), axis=-1)
        scores = np.concatenate([np.zeros_like(eta[..., :1]), odds], axis=-1)
        return 1.0 * np.argmax(scores + rng.gumbel(size=scores.shape), axis=-1)
