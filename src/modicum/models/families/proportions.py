"""Successes and failures: outcomes that are 0 or 1, numbers of successes, and proportions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from modicum.arrays import as_either, sigmoid
from modicum.errors import DataError, ModicumWarning
from modicum.models.families.links import (
    LINKS,
    Link,
    LinkName,
    bounded_exp,
    chances,
    draw_log_gammas,
    log_beta_tails,
    log_factorial,
    log_gamma,
    log_rising_from,
    log_sum,
    sigmoid_curves,
    softplus,
)
from modicum.models.linear_predictor import Derivatives, Draws, LinearPredictorModel, MeanOutcome
from modicum.models.model import Batch, Params
from modicum.models.observed import BINARY, CLOSED_SHARES, COUNTS, SHARES
from modicum.models.priors.units import Moments
from modicum.models.separation import find_separation
from modicum.rows import Rows


@dataclass(frozen=True, repr=False)
class _Successes(LinearPredictorModel):
    """A family of successes and failures."""

    on_numpy: ClassVar[bool] = True
    mean_is_share: ClassVar[bool] = True

    def separation(self, rows: Rows, theta: Params) -> tuple[ModicumWarning | None, int]:
        """Look for columns that separate successes from failures."""
        intercept = np.atleast_1d(theta["intercept"]) if self.intercept else None
        beta, trials = np.asarray(theta["beta"])[None], "trials" in self.outcome_fields
        return find_separation(rows, beta, intercept, reversed=True, trials=trials)


@dataclass(frozen=True, repr=False)
class _Binary(_Successes):
    """A family of outcomes that are 0 or 1, defined by the probability of a 1."""

    link: ClassVar[Link]
    support = BINARY

    def log_density(self, eta: jax.Array, y: jax.Array) -> jax.Array:
        """log p where y is 1, log(1 - p) where it is 0."""
        return y * self.link.log_success(eta[0]) + (1 - y) * self.link.log_failure(eta[0])

    def derivatives(self, eta: jax.Array, y: jax.Array, highest: int = 3) -> Derivatives:
        """Derivatives in eta."""
        pairs = zip(self.link.success(eta, highest), self.link.failure(eta, highest), strict=True)
        return tuple(y * one + (1 - y) * zero for one, zero in pairs)

    def mean(self, eta: jax.Array) -> jax.Array:
        """Chance of a one."""
        return self.link.chance(eta[0])

    def pseudo_variance(self, data: Moments) -> float:
        """1 / (p (1 - p)) at the share of ones."""
        return 1 / max(data.y_mean * (1 - data.y_mean), 1 / (data.weight + 1))

    def decide(self, expected: np.ndarray) -> np.ndarray:
        """Predict 1 where its probability is above a half."""
        return np.asarray(expected > 0.5)

    def variance(self, eta: jax.Array) -> jax.Array:
        """p (1 - p)."""
        return self.link.chance(eta[0]) * jnp.exp(self.link.log_failure(eta[0]))

    def draw_outcomes(self, rng: np.random.Generator, eta: np.ndarray, batch: Batch) -> np.ndarray:
        """Draw Bernoulli outcomes."""
        return 1.0 * (rng.random(eta.shape[:-1]) < chances(self.link, eta[..., 0]))

    def noise_variance(self, draws: Draws, mean: MeanOutcome) -> float | np.ndarray:
        """The variance of the latent variable."""
        return self.link.noise


@dataclass(frozen=True, repr=False)
class Logistic(_Binary):
    """Logistic regression: y in {0, 1}, log-odds linear in x.

    Examples
    --------
    >>> import modicum as mo
    >>> mo.models.Logistic(prior_scale=2.5)
    Logistic(prior_scale=2.5, intercept=True, intercept_scale=None)
    """

    link: ClassVar[Link] = LINKS["logit"]
    multiplies = "odds"

    def log_density(self, eta: jax.Array, y: jax.Array) -> jax.Array:
        """y eta - log(1 + e^eta)."""
        return y * eta[0] - softplus(eta[0])

    def derivatives(self, eta: jax.Array, y: jax.Array, highest: int = 3) -> Derivatives:
        """Derivatives in eta, with p the chance of a one."""
        p, q = sigmoid(eta), sigmoid(-eta)  # q = 1 - p without cancellation
        return (self.value(eta, y), y - p, *sigmoid_curves(p, q, highest))

    def value(self, eta: jax.Array, y: jax.Array) -> jax.Array:
        """y eta - log(1 + e^eta)."""
        return y * eta - softplus(eta)


@dataclass(frozen=True, repr=False)
class Probit(_Binary):
    """Probit regression: y in {0, 1}, the probability of a 1 is the normal cdf Phi(eta).

    Examples
    --------
    >>> import jax.numpy as jnp, modicum as mo
    >>> float(mo.models.Probit().mean(jnp.array([0.0])))
    0.5
    """

    link: ClassVar[Link] = LINKS["probit"]


@dataclass(frozen=True, repr=False)
class Cloglog(_Binary):
    """Complementary log-log regression: y in {0, 1}, 1 where an event of log-rate eta happened.

    The probability of a 1 is 1 - exp(-e^eta); exposure time enters as offset=log(time).

    Examples
    --------
    >>> import jax.numpy as jnp, modicum as mo
    >>> round(float(mo.models.Cloglog().mean(jnp.array([0.0]))), 4)
    0.6321
    """

    link: ClassVar[Link] = LINKS["cloglog"]
    multiplies = "hazard"


OPEN = (np.finfo(float).tiny, 1 - np.finfo(float).epsneg)  # smallest and largest share


@dataclass(frozen=True, repr=False)
class _Trials(_Successes):
    """A family of the number of successes in a row's trials."""

    link: LinkName = "logit"

    support = COUNTS
    outcome_fields: ClassVar[tuple[str, ...]] = ("y", "trials")
    field_meaning: ClassVar[dict[str, str]] = {
        "trials": "COLUMN is the number of trials of each row, and the outcome that of successes"
    }

    @property
    def multiplies(self) -> str:  # type: ignore[override]
        """What e^coefficient multiplies, by the link."""
        return {"logit": "odds", "cloglog": "hazard"}.get(self.link, "")

    def mean(self, eta: jax.Array) -> jax.Array:
        """Probability of a success."""
        return LINKS[self.link].chance(eta[0])

    def draw_outcomes(self, rng: np.random.Generator, eta: np.ndarray, batch: Batch) -> np.ndarray:
        """Draw the number of successes in each row's trials."""
        if "trials" not in batch:
            raise DataError(
                f"outcomes of {type(self).__name__} are successes in the trials of each row, but "
                "the rows do not say how many trials there are; give the field 'trials'."
            )
        trials = np.asarray(batch["trials"]).astype(np.int64)
        return rng.binomial(trials, self.draw_chances(rng, eta)).astype(float)

    def draw_chances(self, rng: np.random.Generator, eta: np.ndarray) -> np.ndarray:
        """Return the probability of a success in the trials of each row, or draw it."""
        return chances(LINKS[self.link], eta[..., 0])

    def check_fields(self, chunk: Batch, first: int) -> None:
        """Refuse trials that are not counts, and more successes than trials."""
        y, trials = np.asarray(chunk["y"]), np.asarray(chunk["trials"])
        bad = COUNTS.excludes(trials) | (trials < y)
        if bad.any():
            at = int(np.argmax(bad))
            raise DataError(
                f"row {first + at} has {y[at]:g} successes in {trials[at]:g} trials; 'y' must "
                "count the successes and 'trials' all trials of a row."
            )


@dataclass(frozen=True, repr=False)
class Binomial(_Trials):
    """Binomial regression: y successes in `trials`, a field of the rows.

    Outcomes are given as in brms and bambi, by successes and trials, not as a share. As everywhere,
    the field `weight` counts rows. Expected outcomes are probabilities of a success, so that
    prediction needs no trials.

    Parameters
    ----------
    link
        "logit", "probit" or "cloglog": link between success probability and linear predictor.

    Examples
    --------
    >>> import numpy as np, modicum as mo
    >>> rows = mo.Rows(x=np.zeros((2, 1)), y=np.array([3, 0]), trials=np.array([10, 4]))
    >>> mo.models.Binomial(link="probit").check(rows)
    """

    def log_density(self, eta: jax.Array, y: jax.Array) -> jax.Array:
        """y log p + (trials - y) log(1 - p) + log of the binomial coefficient."""
        link, (successes, trials) = LINKS[self.link], y
        part = successes * link.log_success(eta[0])
        return part + (trials - successes) * link.log_failure(eta[0]) + _log_binomial(y, eta)

    def log_tails(self, eta: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
        """At most y trials succeed if the uniform number y + 1 by size, a beta, exceeds p."""
        link, (successes, trials) = LINKS[self.link], y
        log_odds = link.log_success(eta[0]) - link.log_failure(eta[0])
        number = jnp.maximum(jnp.floor(successes), 0.0)
        return log_beta_tails(number + 1, jnp.maximum(trials - number, 1.0), log_odds)[::-1]

    def derivatives(self, eta: jax.Array, y: jax.Array, highest: int = 3) -> Derivatives:
        """Derivatives in eta."""
        link, successes, failures = LINKS[self.link], y[..., 0], y[..., 1] - y[..., 0]
        pairs = zip(link.success(eta, highest), link.failure(eta, highest), strict=True)
        f, *others = (successes * success + failures * failure for success, failure in pairs)
        return (f + _log_binomial(y, eta), *others)

    def noise_variance(self, draws: Draws, mean: MeanOutcome) -> float | np.ndarray:
        """The variance of the latent variable of a trial."""
        return LINKS[self.link].noise


@dataclass(frozen=True, repr=False)
class BetaBinomial(_Trials):
    """Beta-binomial regression: successes in `trials` that vary more than binomial ones.

    The probability of a success varies between rows, as Beta(mu precision, (1 - mu) precision), so
    that trials of a row have the correlation 1 / (1 + precision).

    Parameters
    ----------
    link
        "logit", "probit" or "cloglog": link between the mean mu and the linear predictor.

    Examples
    --------
    >>> import modicum as mo
    >>> mo.models.BetaBinomial().extras
    ('log_precision',)
    """

    extras: ClassVar[tuple[str, ...]] = ("log_precision",)
    simpler: ClassVar[str] = "binomial"
    on_numpy: ClassVar[bool] = False

    def log_density(self, eta: jax.Array, y: jax.Array) -> jax.Array:
        """B(y + a, trials - y + b) / B(a, b) times the binomial coefficient, by rising factors."""
        link, (successes, trials) = LINKS[self.link], (y[..., 0], y[..., 1])
        logs = eta[1] + link.log_success(eta[0]), eta[1] + link.log_failure(eta[0]), eta[1]
        log_x = jnp.stack(jnp.broadcast_arrays(*logs), axis=-1)  # all at once compiles faster
        counts = jnp.stack([successes, trials - successes, trials], axis=-1)
        return log_rising_from(log_x, counts) @ jnp.array([1.0, 1, -1]) + _log_binomial(y, eta[0])

    def log_tails(self, eta: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Sums of probabilities, of fewer and of more successes."""
        y, count = jnp.floor(y), jnp.array([1.0, 0.0], y.dtype)
        below = log_sum(self.log_density, eta, y * (1 - count), y[0])
        return below, log_sum(self.log_density, eta, y + count, y[1])

    def draw_chances(self, rng: np.random.Generator, eta: np.ndarray) -> np.ndarray:
        """Draw beta variables."""
        link, at = LINKS[self.link], as_either(eta[..., 0])
        with np.errstate(over="ignore"):
            logs = np.asarray(link.log_success(at)), np.asarray(link.log_failure(at))
        return _draw_shares(rng, *(eta[..., 1] + log for log in logs))


def _draw_shares(rng: np.random.Generator, log_a: np.ndarray, log_b: np.ndarray) -> np.ndarray:
    """Draw beta variables, as the share of one gamma variable in the sum of two."""
    a, b = (draw_log_gammas(rng, bounded_exp(log)) for log in (log_a, log_b))
    return np.clip(chances(LINKS["logit"], a - b), *OPEN)


def _log_binomial(y: jax.Array, eta: jax.Array) -> jax.Array:
    """Log of the binomial coefficient."""
    successes, trials = y[..., 0], y[..., 1]
    part = log_factorial(successes, eta) + log_factorial(trials - successes, eta)
    return log_factorial(trials, eta) - part


@dataclass(frozen=True, repr=False)
class Beta(LinearPredictorModel):
    """Beta regression: y strictly between 0 and 1, the log-odds of its mean linear in x.

    y ~ Beta(mu precision, (1 - mu) precision), with variance mu (1 - mu) / (1 + precision).

    Examples
    --------
    >>> import modicum as mo
    >>> mo.models.Beta().extras
    ('log_precision',)
    """

    extras: ClassVar[tuple[str, ...]] = ("log_precision",)
    mean_is_share: ClassVar[bool] = True
    support = SHARES
    multiplies = "odds"

    def log_tails(self, eta: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Tails of a beta variable."""
        y = jnp.asarray(y, eta.dtype)
        a, b = (jnp.exp(eta[1] - softplus(sign * eta[0])) for sign in (-1, 1))
        return log_beta_tails(a, b, jnp.log(y) - jnp.log1p(-y))

    def log_density(self, eta: jax.Array, y: jax.Array) -> jax.Array:
        """Beta log-density; gamma(a) = gamma(a + 1) / a avoids overflow as a or b goes to 0."""
        eta, extra = eta
        y = jnp.asarray(y, eta.dtype)
        log_a, log_b = extra - softplus(-eta), extra - softplus(eta)
        a, b = jnp.exp(log_a), jnp.exp(log_b)
        constant = log_gamma(jnp.exp(extra)) - log_gamma(a + 1) - log_gamma(b + 1) + log_a + log_b
        return constant + (a - 1) * jnp.log(y) + (b - 1) * jnp.log1p(-y)

    def mean(self, eta: jax.Array) -> jax.Array:
        """The sigmoid of eta."""
        return jax.nn.sigmoid(eta[0])

    def variance(self, eta: jax.Array) -> jax.Array:
        """mu (1 - mu) / (1 + precision)."""
        spread = jax.nn.sigmoid(eta[0]) * jax.nn.sigmoid(-eta[0])
        return spread / (1 + jnp.exp(eta[1]))

    def draw_outcomes(self, rng: np.random.Generator, eta: np.ndarray, batch: Batch) -> np.ndarray:
        """Draw beta variables."""
        mean, log_precision = eta[..., 0], eta[..., 1]
        logs = (log_precision - np.logaddexp(0.0, e) for e in (-mean, mean))
        return _draw_shares(rng, *logs)


@dataclass(frozen=True, repr=False)
class ZeroOneInflatedBeta(Beta):
    """Shares that are 0 or 1 with probability `edge_chance`, and otherwise beta variables.

    Of the shares at the edges, `one_share` are 1. The log-odds of the mean of the others are linear
    in x. (brms calls the two probabilities zoi and coi.)

    Examples
    --------
    >>> import modicum as mo
    >>> mo.models.ZeroOneInflatedBeta().extras
    ('log_precision', 'logit_edge_chance', 'logit_one_share')
    """

    extras: ClassVar[tuple[str, ...]] = ("log_precision", "logit_edge_chance", "logit_one_share")
    support = CLOSED_SHARES

    def log_tails(self, eta: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Those of a beta variable, and of the points 0, which is never above y, and 1."""
        edge, one = eta[2:]
        log_none = -softplus(edge)
        below, above = super().log_tails(eta[:2], jnp.where(y > 0, y, 0.5))
        below = jnp.where(y > 0, log_none + below, -jnp.inf)
        above = log_none + jnp.where(y > 0, above, 0.0)
        zero, one = (edge + log_none - softplus(each) for each in (one, -one))
        return jnp.logaddexp(below, zero), jnp.logaddexp(above, one)

    def log_density(self, eta: jax.Array, y: jax.Array) -> jax.Array:
        """Log-probability of a 0 or 1, or that of neither plus the beta log-density."""
        edge, one = eta[2:]
        at_edge = (y == 0) | (y == 1)
        of_edge = edge + jnp.where(y == 1, one, 0.0) - softplus(one)
        of_others = super().log_density(eta[:2], jnp.where(at_edge, 0.5, y))
        return jnp.where(at_edge, of_edge, of_others) - softplus(edge)

    def mean(self, eta: jax.Array) -> jax.Array:
        """edge_chance one_share + (1 - edge_chance) mu."""
        edge = jax.nn.sigmoid(eta[2])
        return edge * jax.nn.sigmoid(eta[3]) + (1 - edge) * super().mean(eta)

    def variance(self, eta: jax.Array) -> jax.Array:
        """Variance within edges and others, plus that of their means."""
        edge, one = jax.nn.sigmoid(eta[2:])
        within = edge * one * (1 - one) + (1 - edge) * super().variance(eta)
        return within + edge * (1 - edge) * (one - super().mean(eta)) ** 2

    def draw_outcomes(self, rng: np.random.Generator, eta: np.ndarray, batch: Batch) -> np.ndarray:
        """Draw shares at the edges with their probability, and beta variables otherwise."""
        u, v = rng.random((2, *eta.shape[:-1]))
        edge, one = (chances(LINKS["logit"], eta[..., k]) for k in (2, 3))
        others = super().draw_outcomes(rng, eta[..., :2], batch)
        return np.where(u < edge, 1.0 * (v < one), others)
