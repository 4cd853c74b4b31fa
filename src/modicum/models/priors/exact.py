"""The terms of a prior: of coefficients, intercepts, group effects and their hyperparameters.

Terms that are quadratic, or count as such, are folded into the likelihood's quadratic; every step
evaluates the others exactly.

A term is the prior of some entries of the flat vector t, and of its hyperparameters where it has
them (the horseshoe's global scale). It is a pytree: its numbers are leaves, and all else is static.

The anchor is the mode of the posterior with each term replaced by a normal of precision w(r), where
r^2 is the posterior second moment of the entry (see `distributions`). Hyperparameters are set to
the mode of their marginal posterior, by the same EM. Both need only a point and a covariance, and
no pass over the rows. Priors of logarithms are smooth, and stay as they are.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from math import lgamma
from typing import ClassVar, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from modicum.arrays import HALF_LOG_2PI, as_either, is_numpy, namespace
from modicum.linalg.arrow import ArrowMatrix, Symmetric
from modicum.models.constraints import (
    Entries,
    Interval,
    covariance_factor,
    simplex,
    unnormalized_lkj,
)
from modicum.models.priors.distributions import Prior, ShrunkPrior
from modicum.runtime import Array, in_equal_blocks, jit

T = TypeVar("T")
AT_ONCE = 256  # points at which compiled code evaluates log-densities


class NormalApproximation(NamedTuple):
    """A normal prior of some entries of t that replaces one that is not normal."""

    where: np.ndarray  # positions in t; (effects, levels) where levels have the same precision
    mean: np.ndarray  # mean at each position
    precision: np.ndarray  # a matrix, or its diagonal; for a 2-d `where`, that of one level


class NonCentred(NamedTuple):
    """Entries that are sampled relative to a scale, the less so the more the data inform them."""

    where: np.ndarray  # positions in t
    scale: np.ndarray  # position of the log scale of each
    ratio: np.ndarray  # information in the data times the squared scale, at the anchor


class ExactTerm(ABC):
    """The prior of some entries of t."""

    folded: bool = False  # whether it is quadratic, or counts as such, rather than exact
    smooth: bool = False  # whether Newton's method climbs the log-density itself, not a normal
    pooled: ClassVar[bool] = False  # whether the entries are effects of a pooled term
    on_numpy: ClassVar[bool] = True  # whether `log_density` also takes NumPy's arrays (..., d)

    @abstractmethod
    def log_density(self, t: jax.Array) -> jax.Array:
        """Log-density at t, including that of the hyperparameters."""

    def log_slopes(self, t: jax.Array) -> jax.Array:
        """Log-derivatives in t, part of `log_density`, of what the priors are distributions of."""
        return namespace(t).zeros(())

    def settle(self, t: np.ndarray, covariance: ArrowMatrix) -> np.ndarray:
        """Return t with the hyperparameters, if there are any, near their marginal mode."""
        return t

    def normal_approximations(
        self, t: np.ndarray, covariance: ArrowMatrix, hyperparameters: bool
    ) -> Sequence[NormalApproximation]:
        """Return normals that approximate the term about t, with or without hyperparameters."""
        return []

    def non_centred(self, t: np.ndarray, information: np.ndarray) -> NonCentred | None:
        """Return the entries that are sampled relative to a scale, or None.

        `information` is the data's information about each entry, given all others.
        """
        return None


def _tree(*numbers: str) -> Callable[[type[T]], type[T]]:
    """Register a kind of term as a pytree: these fields are numbers, and all else is static."""

    def register(kind: type[T]) -> type[T]:
        static = [f.name for f in fields(kind) if f.name not in numbers]  # type: ignore[arg-type]
        return jax.tree_util.register_dataclass(kind, numbers, static)

    return register


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class ExactPrior:
    """Some terms of a model's prior, such as all that are not quadratic."""

    terms: tuple[ExactTerm, ...]

    def log_density(self, t: jax.Array) -> jax.Array:
        """Log-density at t."""
        return sum((term.log_density(t) for term in self.terms), namespace(t).zeros(()))

    def log_densities(self, t: np.ndarray) -> np.ndarray:
        """Log-densities at points (S, d), by NumPy where it has all formulas."""
        if all(term.on_numpy for term in self.terms):
            return np.asarray(self.log_density(as_either(t)))
        return in_equal_blocks(lambda some: np.asarray(_log_densities(self, some)), t, AT_ONCE)

    @property
    def smooth(self) -> tuple[bool, ...]:
        """Which terms are smooth."""
        return tuple(term.smooth for term in self.terms)

    def settle(self, t: np.ndarray, covariance: ArrowMatrix) -> np.ndarray:
        """Return t with all hyperparameters near their marginal mode."""
        for term in self.terms:
            t = term.settle(t, covariance)
        return t

    def non_centred(self, t: np.ndarray, information: np.ndarray) -> NonCentred | None:
        """Return all entries that are sampled relative to a scale, or None."""
        parts = [term.non_centred(t, information) for term in self.terms]
        relative = [part for part in parts if part is not None]
        if not relative:
            return None
        return NonCentred(*(np.concatenate(pieces) for pieces in zip(*relative, strict=True)))

    def normal_approximation(
        self, t: np.ndarray, covariance: ArrowMatrix, hyperparameters: bool = True
    ) -> tuple[np.ndarray, Symmetric]:
        """Mean and precision (d, d) of the normal that approximates all but smooth terms about t.

        `hyperparameters` includes their precision. The precision is dense or an arrow matrix, like
        the covariance.
        """
        mean = t.copy()
        parts = [
            part
            for term in self.terms
            if not term.smooth
            for part in term.normal_approximations(t, covariance, hyperparameters)
        ]
        precision = covariance.diagonal_like(np.zeros(len(t)))
        for where, centre, inverse in parts:
            mean[where] = centre
            precision.add_normal(where, inverse)
        return mean, precision.plain


@jit()
def _log_densities(prior: ExactPrior, t: Array) -> jax.Array:
    return jax.vmap(prior.log_density)(jnp.asarray(t))


@_tree("prior", "log_mass")
@dataclass(frozen=True, eq=False)
class Independent(ExactTerm):
    """Independent entries with distributions of one kind.

    Within an interval, t has their free values, and the density is smooth: on the real line it may
    have a kink, or be nearly flat. `log_mass` is the logarithm of its mass in the interval.
    """

    prior: Prior
    log_mass: Array
    where: tuple[int, ...]
    within: Interval | None = None

    @property
    def folded(self) -> bool:  # type: ignore[override]
        """Whether the density is normal in t."""
        return self.within is None and self.prior.quadratic

    @property
    def smooth(self) -> bool:  # type: ignore[override]
        """Whether t has free values."""
        return self.within is not None

    def log_density(self, t: jax.Array) -> jax.Array:
        """Sum over entries of the log-density in t."""
        xp, value = namespace(t), t[..., np.array(self.where)]
        if self.within is None:
            return xp.sum(self.prior.density(value), axis=-1)
        inside = self.within.constrain(value)
        return xp.sum(self.prior.density(inside) - self.log_mass, axis=-1) + self.log_slopes(t)

    def log_slopes(self, t: jax.Array) -> jax.Array:
        """Those of entries within an interval."""
        if self.within is None:
            return super().log_slopes(t)
        return namespace(t).sum(self.within.log_slopes(t[..., np.array(self.where)]), axis=-1)

    def normal_approximations(
        self, t: np.ndarray, covariance: ArrowMatrix, hyperparameters: bool
    ) -> Sequence[NormalApproximation]:
        """EM's normal."""
        where, mean = np.array(self.where), self.prior.mean  # type: ignore[attr-defined]
        square = (t[where] - mean) ** 2 + covariance.diagonal()[where]
        return [NormalApproximation(where, mean, self.prior.precision(square))]


@_tree("prior", "centre")
@dataclass(frozen=True, eq=False)
class CentredIntercept(ExactTerm):
    """A normal intercept at some point in x."""

    prior: Prior
    centre: Array  # the point
    where: tuple[int, ...]
    columns: tuple[tuple[int, ...], ...]  # of the common coefficients beside each intercept
    constrained: Entries
    smooth = True
    on_numpy: ClassVar[bool] = False

    @property
    def folded(self) -> bool:  # type: ignore[override]
        """Whether t has the coefficients there, rather than their free values."""
        return not self.constrained

    def log_density(self, t: jax.Array) -> jax.Array:
        """Log-density of the predictor at the point."""
        shift = self.constrained.constrain(t[np.array(self.columns)]) @ jnp.asarray(self.centre)
        return jnp.sum(self.prior.density(t[np.array(self.where)] + shift))


@_tree()
@dataclass(frozen=True, eq=False)
class StepShares(ExactTerm):
    """Shares of the steps of monotonic effects, uniform on simplexes, by their free values."""

    where: tuple[tuple[int, ...], ...]
    smooth = True
    on_numpy: ClassVar[bool] = False

    def log_density(self, t: jax.Array) -> jax.Array:
        """log (K - 1)! of each simplex of K shares, in its free values."""
        return self.log_slopes(t) + sum(lgamma(len(own) + 1) for own in self.where)

    def log_slopes(self, t: jax.Array) -> jax.Array:
        """Those of the shares."""
        return jnp.sum(jnp.stack([simplex.log_jacobian(t[np.array(own)]) for own in self.where]))


@_tree("prior")
@dataclass(frozen=True, eq=False)
class SharedScale(ExactTerm):
    """ShrunkPrior priors of entries that share a global scale tau, whose logarithm is sampled.

    Local scales are integrated out. The prior has the unit and the resolution of each entry. Units
    are multiples of the scale of the noise, where its logarithm is the entry `noise` of t.
    """

    prior: ShrunkPrior
    where: tuple[int, ...]
    tau: int
    noise: int | None = None
    on_numpy: ClassVar[bool] = False  # the quadrature of many points would fill the memory

    def log_density(self, t: jax.Array) -> jax.Array:
        """Log-density of the coefficients given tau, plus that of log tau."""
        prior, tau = self._in_noise(t), jnp.exp(t[self.tau])
        of_tau = prior.log_scale(tau, len(self.where)) + self.log_slopes(t)
        return of_tau + jnp.sum(prior.density(t[np.array(self.where)], tau))

    def log_slopes(self, t: jax.Array) -> jax.Array:
        """That of tau, which is tau."""
        return t[self.tau]

    def _in_noise(self, t: Array) -> ShrunkPrior:
        """Return the prior with units multiplied by the scale of the noise."""
        if self.noise is None:
            return self.prior
        unit = self.prior.unit * namespace(t).exp(t[self.noise])
        return self.prior.with_units(unit, self.prior.resolution)

    def _squares(self, t: np.ndarray, covariance: ArrowMatrix) -> np.ndarray:
        where = np.array(self.where)
        return np.asarray(t[where] ** 2 + covariance.diagonal()[where])

    def settle(self, t: np.ndarray, covariance: ArrowMatrix) -> np.ndarray:
        """Set tau to its most probable value, with squared coefficients at their second moments."""
        grid, squares = self.prior.log_typical + GRID, self._squares(t, covariance)
        logs = np.asarray(_log_density_of_tau(self._in_noise(t), grid, squares))
        settled = t.copy()
        settled[self.tau] = grid[np.argmax(logs)]
        return settled

    def normal_approximations(
        self, t: np.ndarray, covariance: ArrowMatrix, hyperparameters: bool
    ) -> Sequence[NormalApproximation]:
        """Normal coefficients given tau; for log tau, a normal with the curvature there."""
        prior, square = self._in_noise(t), self._squares(t, covariance)
        where, precision = np.array(self.where), prior.precision(square, np.exp(t[self.tau]))
        coefficients = NormalApproximation(where, np.zeros(len(where)), precision)
        if not hyperparameters:
            return [coefficients]
        near = t[self.tau] + np.array([-0.5, 0.0, 0.5])
        left, at, right = np.asarray(_log_density_of_tau(prior, near, square))
        curvature = np.clip(-(left - 2 * at + right) / 0.25, 0.3, None)
        place = np.array([self.tau])
        return [coefficients, NormalApproximation(place, t[place], np.array([curvature]))]


GRID = np.linspace(-12.0, 3.0, 151)  # log(tau / scale of its prior)


@jit()
def _log_density_of_tau(prior: ShrunkPrior, log_tau: Array, square: Array) -> jax.Array:
    """Joint log-density of each log tau and of coefficients with these squares."""
    value = jnp.sqrt(square)

    def at_log_tau(log: jax.Array) -> jax.Array:
        tau = jnp.exp(log)
        return jnp.sum(prior.density(value, tau)) + prior.log_scale(tau, len(value)) + log

    return jax.lax.map(at_log_tau, jnp.asarray(log_tau))


NEWTON_STEPS, LONGEST = 30, 0.7  # most steps, and the longest in any hyperparameter
STILL = 1e-8  # longest of the last step
NUDGE = 3e-3  # between points of finite differences in hyperparameters, whose error is 10^-10
AROUND = np.array([-2.0, -1.0, 1.0, 2.0])  # these points, and their weights for two derivatives
FIRST, SECOND = np.array([1, -8, 8, -1]) / 12, np.array([-1, 16, 16, -1]) / 12
LEAST_PRECISION = 1.0  # least precision assumed for the posterior of a sampled log scale
LEAST_LOG_SD = -300.0  # below it a precision overflows
LEAST_SHARE = 0.05  # least share of the information that observed effects would give


@_tree("scales", "eta")
@dataclass(frozen=True, eq=False)
class Effects(ExactTerm):
    """Effects of the levels of one factor, and the parameters of their distribution.

    The joint density of effects and scales has no useful mode.

    Parameters
    ----------
    scales, eta
        Priors of the standard deviations, and the concentration of the LKJ prior.
    where
        Positions in t of the effects: all levels of the first effect, then of the next; none if
        they are integrated out.
    sds, partials
        Positions of log standard deviations and of transformed partial correlations; may be empty.
    """

    scales: tuple[Prior, ...]
    eta: Array
    where: tuple[int, ...]
    sds: tuple[int, ...]
    partials: tuple[int, ...] = ()
    pooled: ClassVar[bool] = True

    @property
    def folded(self) -> bool:  # type: ignore[override]
        """Whether there are hyperparameters alone."""
        return not self.where

    @property
    def count(self) -> int:
        """Effects per level."""
        return len(self.sds)

    @property
    def levels(self) -> int:
        """Number of levels."""
        return len(self.where) // self.count

    @property
    def hyperparameters(self) -> np.ndarray:
        """Positions of the hyperparameters."""
        return np.array([*self.sds, *self.partials])

    def log_density(self, t: jax.Array) -> jax.Array:
        """log p(u | Sigma) + log p(Sigma), in the sampled coordinates."""
        of_hyper = log_hyper_density(self.scales, self.eta, t[..., self.hyperparameters])
        return self.log_effects(t) + of_hyper if self.where else of_hyper

    def log_slopes(self, t: jax.Array) -> jax.Array:
        """Those of standard deviations and correlations."""
        return log_hyper_slopes(t[..., self.hyperparameters], self.count)

    def log_effects(self, t: jax.Array) -> jax.Array:
        """log p(u | Sigma)."""
        xp = namespace(t)
        u = t[..., np.array(self.where)].reshape(*t.shape[:-1], self.count, self.levels)
        lower = covariance_factor(t[..., self.hyperparameters], self.count)
        sds = xp.diagonal(lower, axis1=-2, axis2=-1)
        z = _solve(lower, u) if self.partials else u / sds[..., None]
        log_det = xp.sum(xp.log(sds), axis=-1) + self.count * HALF_LOG_2PI
        return -0.5 * xp.sum(z**2, axis=(-2, -1)) - self.levels * log_det

    def precision_given(self, hyper: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Precisions of the effects of a level, (..., count, count), and half their log dets."""
        hyper = np.maximum(hyper, LEAST_LOG_SD)
        lower = np.asarray(covariance_factor(as_either(hyper), self.count))
        inverse = np.linalg.inv(lower)
        log_diagonal = np.log(np.diagonal(inverse, axis1=-2, axis2=-1))
        return inverse.swapaxes(-1, -2) @ inverse, log_diagonal.sum(axis=-1)

    def log_hyper(self, hyper: np.ndarray) -> np.ndarray:
        """Log-densities of hyperparameters (..., number), in the sampled coordinates."""
        return np.asarray(log_hyper_density(self.scales, self.eta, as_either(hyper)))

    # The anchor -------------------------------------------------------------------------------

    def _second_moments(self, t: np.ndarray, covariance: ArrowMatrix) -> tuple[np.ndarray, ...]:
        """Sums over levels of u u' and of the effects' posterior covariances, (count, count)."""
        where = np.array(self.where).reshape(self.count, self.levels)
        u = t[where]
        return u @ u.T, covariance.sum_over_levels(where)

    def _bent(self, hyper: np.ndarray, second: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the gradient and the Hessian of E log p(u, Sigma) in the hyperparameters.

        `second` is E sum u u'. Off its diagonal, the Hessian is minus the Fisher information.
        """
        number = len(hyper)
        nudges = (NUDGE * AROUND[:, None, None] * np.eye(number)).reshape(-1, number)
        points = hyper + np.concatenate([np.zeros((1, number)), nudges])
        inverse, half_log_det = self.precision_given(points)
        logs = self.levels * half_log_det - np.sum(inverse * second, axis=(1, 2)) / 2
        logs += self.log_hyper(points)
        rises = (logs[1:] - logs[0]).reshape(-1, number)
        factors = np.asarray(covariance_factor(as_either(points), self.count))
        slopes = np.tensordot(FIRST, factors[1:].reshape(len(AROUND), number, -1), 1) / NUDGE
        # the derivatives of the covariance, with the factor's inverse on both sides
        half = np.linalg.solve(factors[0], slopes.reshape(number, *factors.shape[1:]))
        moved = (half + half.swapaxes(1, 2)).reshape(number, -1)
        hessian = -self.levels / 2 * (moved @ moved.T)
        np.fill_diagonal(hessian, SECOND @ rises / NUDGE**2)
        return FIRST @ rises / NUDGE, hessian

    def settle(self, t: np.ndarray, covariance: ArrowMatrix) -> np.ndarray:
        """Set Sigma to the mode of E log p(u, Sigma); tau^2 = S / (L - 1) with a flat prior."""
        uu, V = self._second_moments(t, covariance)
        settled, hyper = t.copy(), t[self.hyperparameters]
        for _ in range(NEWTON_STEPS):
            gradient, hessian = self._bent(hyper, uu + V)
            values, vectors = np.linalg.eigh(-hessian)
            uphill = vectors @ ((vectors.T @ gradient) / np.maximum(np.abs(values), 0.1))
            hyper = hyper + np.clip(uphill, -LONGEST, LONGEST)
            if np.abs(uphill).max() < STILL:
                break
        settled[self.hyperparameters] = hyper
        return settled

    def normal_approximations(
        self, t: np.ndarray, covariance: ArrowMatrix, hyperparameters: bool
    ) -> Sequence[NormalApproximation]:
        """Normal effects given Sigma; for Sigma, the information with u integrated out."""
        places, where = self.hyperparameters, np.array(self.where)
        inverse, _ = self.precision_given(t[places])
        precision = np.full(len(where), inverse[0, 0])
        effects = NormalApproximation(where, np.zeros(len(where)), precision)
        if self.count > 1:
            lines = where.reshape(self.count, self.levels)
            effects = NormalApproximation(lines, np.zeros(lines.shape), inverse)
        if not hyperparameters:
            return [effects]
        uu, V = self._second_moments(t, covariance)
        curvature = -np.diag(self._bent(t[places], uu + V)[1])
        share = 1 - np.sum(inverse * V) / (self.levels * self.count)
        precisions = np.maximum(curvature * max(share, LEAST_SHARE), LEAST_PRECISION)
        return [effects, NormalApproximation(places, t[places], precisions)]

    def informed(self, t: np.ndarray, covariance: ArrowMatrix) -> np.ndarray:
        """lambda of each effect: the share of its information that comes from data, in [0, 1]."""
        variance = covariance.diagonal()[np.array(self.where)].reshape(self.count, self.levels)
        prior = np.exp(2 * t[np.array(self.sds)])[:, None]
        return np.asarray(np.clip(1 - variance / prior, 0.0, 1.0))

    def non_centred(self, t: np.ndarray, information: np.ndarray) -> NonCentred:
        """Effects move with their standard deviation, less the larger A_ll tau^2 is."""
        scale = np.repeat(np.array(self.sds), self.levels)
        ratio = information[np.array(self.where)] * np.exp(2 * t[scale])
        return NonCentred(np.array(self.where), scale, ratio)


def _solve(lower: jax.Array, u: jax.Array) -> jax.Array:
    if is_numpy(u):
        return as_either(np.linalg.solve(lower, u))
    return jax.scipy.linalg.solve_triangular(lower, u, lower=True)


def log_hyper_density(scales: tuple[Prior, ...], eta: Array, hyper: jax.Array) -> jax.Array:
    """Log-density of log standard deviations and of transformed partial correlations."""
    xp, count = namespace(hyper), len(scales)
    total = xp.zeros(())
    for k, prior in enumerate(scales):
        log_sd = hyper[..., k]
        total = total + prior.density(xp.exp(log_sd)) + log_sd
    if hyper.shape[-1] > count:
        total = total + unnormalized_lkj(hyper[..., count:], count, xp.asarray(eta))
    return total


def log_hyper_slopes(hyper: jax.Array, count: int) -> jax.Array:
    """Log-derivatives of standard deviations and of a correlation matrix, of which LKJ(1) is flat.

    Both are part of `log_hyper_density`.
    """
    of_sds = namespace(hyper).sum(hyper[..., :count], axis=-1)
    return of_sds + unnormalized_lkj(hyper[..., count:], count, 1.0)
