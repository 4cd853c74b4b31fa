"""Normal priors in concrete numbers: given in raw units, or found in the units of the data.

A default that is the same number for every table overrides some of them: a coefficient of N(0, 2.5)
rules out the slope of a column measured in kilometres rather than metres, and an intercept of
N(0, 10) is where the predictor of the year 0 lies. So by default coefficient j has the scale
2.5 / sd(x_j), times the unit of the outcome, and the intercept's prior is that of
a = intercept + mean(x) . beta, the predictor at the mean of the columns: what centring the columns
would give, as rstanarm, brms and bambi do it. The posterior then does not depend on units.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Real

import jax
import jax.numpy as jnp
import numpy as np

from modicum.errors import DataError, ModicumWarning
from modicum.rows import Coding, Rows, first_not_finite

__all__ = ["Moments", "NormalPrior", "NormalPriors", "is_positive", "moments", "prior_warnings"]

TOGETHER = 16_384  # rows whose moments are formed at once: they fit a cache
CONSTANT = 1e-10  # standard deviation, as a share of the mean, below which a column is constant
FAR = 3.0  # standard deviations from what the prior expects


def is_positive(value: object) -> bool:
    """Whether `value` is a finite number above zero."""
    return isinstance(value, Real) and 0 < float(value) < np.inf


@dataclass(frozen=True)
class NormalPrior:
    """A normal distribution."""

    mean: float
    sd: float

    def log_density(self, value: jax.Array) -> jax.Array:
        """Log-density, summed over the entries of `value`."""
        return normal_log_density(jnp.asarray(value) - self.mean, jnp.asarray(self.sd))

    def __str__(self) -> str:
        return f"normal({self.mean:.4g}, {self.sd:.4g})"


@dataclass(frozen=True)
class NormalPriors:
    """Independent normal priors of a linear-predictor model, each in numbers.

    Parameters
    ----------
    coefficients
        Standard deviation of each column's coefficient, about 0.
    intercept
        Prior of intercept + centre . beta; None for a model without an intercept.
    centre
        Where in x the intercept's prior holds; empty: at 0, so that it is the intercept's own.
    extras
        Priors of the other parameters, by name.
    """

    coefficients: tuple[float, ...]
    intercept: NormalPrior | None = None
    centre: tuple[float, ...] = ()
    extras: tuple[tuple[str, NormalPrior], ...] = ()

    @classmethod
    def from_dict(cls, saved: Mapping[str, object]) -> NormalPriors:
        """Undo `dataclasses.asdict`."""

        def prior(values: Mapping[str, float]) -> NormalPrior:
            return NormalPrior(float(values["mean"]), float(values["sd"]))

        intercept, extras = saved["intercept"], saved["extras"]
        return cls(
            tuple(float(sd) for sd in saved["coefficients"]),  # type: ignore[attr-defined]
            None if intercept is None else prior(intercept),  # type: ignore[arg-type]
            tuple(float(c) for c in saved["centre"]),  # type: ignore[attr-defined]
            tuple((str(name), prior(of)) for name, of in extras),  # type: ignore[attr-defined]
        )

    def log_density(self, theta: Mapping[str, jax.Array]) -> jax.Array:
        """Log-prior at unconstrained parameters: a quadratic."""
        beta = jnp.asarray(theta["beta"])
        total = normal_log_density(beta, jnp.asarray(self.coefficients))
        if self.intercept is not None:
            total += self.intercept.log_density(self.centred_intercept(theta))
        for name, prior in self.extras:
            total += prior.log_density(theta[name])
        return total

    def centred_intercept(self, theta: Mapping[str, jax.Array]) -> jax.Array:
        """The linear predictor at the centre: what the intercept's prior is about."""
        intercept = jnp.asarray(theta["intercept"])
        if not self.centre:
            return intercept
        return intercept + jnp.asarray(theta["beta"]) @ jnp.asarray(self.centre)

    def distances(self, theta: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """How far parameters lie from their prior's centre, in its standard deviations."""
        beta = np.asarray(theta["beta"])
        away = {"beta": beta / np.asarray(self.coefficients)}
        if self.intercept is not None:
            centred = np.asarray(theta["intercept"])
            if self.centre:
                centred = centred + beta @ np.asarray(self.centre)
            away["intercept"] = (centred - self.intercept.mean) / self.intercept.sd
        for name, prior in self.extras:
            away[name] = (np.asarray(theta[name]) - prior.mean) / prior.sd
        return away

    def describe(self, columns: tuple[str, ...]) -> dict[str, str]:
        """Name each prior, readably; one line for all coefficients where they share it."""
        each = [str(NormalPrior(0.0, sd)) for sd in self.coefficients]
        if len(set(each)) == 1:
            said = {"beta": each[0]}
        else:
            said = {f"beta[{name}]": text for name, text in zip(columns, each, strict=True)}
        if self.intercept is not None:
            where = ", of the predictor at the mean of the columns" if self.centre else ""
            said["intercept"] = f"{self.intercept}{where}"
        return said | {name: str(prior) for name, prior in self.extras}


def normal_log_density(value: jax.Array, scale: jax.Array) -> jax.Array:
    """Log-density of independent normals about zero, summed."""
    z = jnp.asarray(value) / scale
    return jnp.sum(-0.5 * z**2 - jnp.log(scale) - 0.5 * np.log(2 * np.pi))


# The units of the data --------------------------------------------------------------------


@dataclass(frozen=True)
class Moments:
    """Means and standard deviations over all rows, frequency weights counted.

    Attributes
    ----------
    x_mean, x_sd
        Of each column; the standard deviation of a constant column is 0.
    y_mean, y_sd
        Of the outcome less the offset, where there is one number of it per row.
    log_rate
        Logarithm of outcomes over exposures e^offset; minus infinity where all outcomes are 0.
    log_exposure
        Logarithm of the total exposure.
    """

    x_mean: np.ndarray
    x_sd: np.ndarray
    y_mean: float
    y_sd: float
    log_rate: float
    log_exposure: float


def moments(rows: Rows) -> Moments:
    """One streaming pass over the fields x, y, offset and weight."""
    width = len(rows.columns)
    scalar_offset = rows.fields.get("offset") == ()
    merged = _Merged(np.zeros(width + 1))
    counts, log_exposure = 0.0, -np.inf
    for chunk in rows.chunks(TOGETHER):
        y = np.asarray(chunk["y"], np.float64)
        offset = np.asarray(chunk["offset"], np.float64) if scalar_offset else np.zeros(len(y))
        weight = np.asarray(chunk.get("weight", np.ones(len(y))), np.float64)
        if rows.coding is not None and rows.coding.apart:
            merged.merge(*_of_codes(rows.coding, chunk, y - offset, weight))
        else:
            x = chunk["x"] if rows.coding is None else rows.coding.densely(chunk)
            together = np.empty((len(y), width + 1))
            together[:, :width], together[:, width] = x, y - offset
            merged.add(together, weight)
        counts += float(weight @ y)
        top = offset.max()
        with np.errstate(divide="ignore"):  # a chunk whose weights are all 0
            log_exposure = np.logaddexp(log_exposure, top + np.log(weight @ np.exp(offset - top)))
    mean, sd = merged.mean, merged.sd()
    with np.errstate(divide="ignore", invalid="ignore"):
        log_rate = float(np.log(counts) - log_exposure)
    _require_finite(rows, mean, sd)
    return Moments(
        mean[:-1], sd[:-1], float(mean[-1]), float(sd[-1]), log_rate, float(log_exposure)
    )


class _Merged:
    """Weighted means and sums of squared deviations, merged chunk by chunk (Chan et al. 1979)."""

    def __init__(self, mean: np.ndarray) -> None:
        self.mean, self.squares, self.weight = mean, np.zeros_like(mean), 0.0

    def add(self, values: np.ndarray, weight: np.ndarray) -> None:
        total = float(weight.sum())
        if total == 0:
            return
        with np.errstate(over="ignore", invalid="ignore"):  # told below, in words
            mean = weight @ values / total
            values -= mean
            self.merge(mean, weight @ np.square(values, out=values), total)

    def merge(self, mean: np.ndarray, squares: np.ndarray, total: float) -> None:
        """Take in means and squared deviations of rows of so much weight."""
        if total == 0:
            return
        with np.errstate(over="ignore", invalid="ignore"):
            self.squares += squares
            both, shift = self.weight + total, mean - self.mean
            if self.weight:
                self.squares += shift**2 * (self.weight * total / both)
            self.mean = self.mean + shift * (total / both)
        self.weight = both

    def sd(self) -> np.ndarray:
        """Zero where only rounding is left."""
        sd = np.sqrt(self.squares / max(self.weight, np.finfo(float).tiny))
        return np.where(sd <= CONSTANT * np.abs(self.mean), 0.0, sd)


def _of_codes(
    coding: Coding, chunk: Mapping[str, np.ndarray], y: np.ndarray, weight: np.ndarray
) -> tuple[np.ndarray, np.ndarray, float]:
    """Means of all columns and of y, squared deviations from them, and the weight of the rows.

    A column of a term is zero in all rows but those of its level, which are counted.
    """
    total = float(weight.sum())
    mean, squares = np.zeros(coding.size + 1), np.zeros(coding.size + 1)
    if total == 0:
        return mean, squares, total
    held = [*coding.dense, coding.size]
    x = chunk["x"][:, : len(coding.dense)] if coding.dense else np.zeros((len(y), 0))
    values = np.column_stack([np.asarray(x, np.float64), y])
    with np.errstate(over="ignore", invalid="ignore"):  # told in words elsewhere
        mean[held] = weight @ values / total
        squares[held] = weight @ np.square(values - mean[held])
        for term in coding.terms:
            codes, first = chunk[term.field], int(term.reference)
            value = 1.0 if term.scale is None else np.asarray(chunk["x"][:, term.scale], float)
            summed = np.bincount(codes, weight * value, minlength=term.levels)
            centre = summed / total
            inside = np.bincount(
                codes, weight * (value - centre[codes]) ** 2, minlength=term.levels
            )
            outside = total - np.bincount(codes, weight, minlength=term.levels)
            mean[term.columns] = centre[first:]
            squares[term.columns] = (inside + np.maximum(outside, 0.0) * centre**2)[first:]
    return mean, squares, total


def _require_finite(rows: Rows, mean: np.ndarray, sd: np.ndarray) -> None:
    bad = ~(np.isfinite(mean) & np.isfinite(sd))
    if bad.any():
        damage = first_not_finite(rows)
        if damage is not None:
            raise damage.error()
        names = (*rows.columns, rows.outcome or "y")
        raise DataError(
            f"the column '{names[int(np.argmax(bad))]}' holds numbers so large that their variance "
            "overflows; give it in another unit (divide it by a constant)."
        )


# A guard ----------------------------------------------------------------------------------


def prior_warnings(
    names: tuple[str, ...], distance: np.ndarray, posterior_sd: np.ndarray
) -> list[ModicumWarning]:
    """Say so where the data pull a parameter further from its prior than the prior expects.

    Under the prior, a posterior mean varies with variance tau^2 - v (prior variance less posterior
    variance). A mean many such standard deviations from the prior's centre tells that prior and
    data disagree, also where a tight prior has kept the mean close to itself.

    Parameters
    ----------
    names
        Of the parameters.
    distance
        Posterior means less prior means, in prior standard deviations.
    posterior_sd
        Posterior standard deviations, in prior standard deviations.
    """
    learnt = np.maximum(1.0 - posterior_sd**2, 1e-6)
    score = np.abs(distance) / np.sqrt(learnt)
    worst = int(np.argmax(np.where(np.isfinite(score), score, 0.0)))
    if not score[worst] > FAR:
        return []
    others = int((score > FAR).sum()) - 1
    called = names[worst] + (f" (and of {others} more)" if others else "")
    return [
        ModicumWarning(
            "prior-far",
            f"the prior of {called} and the data disagree: the posterior mean lies "
            f"{abs(distance[worst]):.2g} prior standard deviations from the prior's centre, which "
            f"is {score[worst]:.2g} standard deviations further than that prior expects, so the "
            "prior holds the estimate back from what the data say",
            "widen that prior (prior_scale, intercept_scale or scale_prior; None puts it in the "
            "units of the data)",
            distance=float(distance[worst]),
            score=float(score[worst]),
        )
    ]
