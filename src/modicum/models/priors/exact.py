"""Priors that are not quadratic, which every step evaluates exactly.

A term is the prior of some entries of the flat vector t, and of its hyperparameters where it has
them (the horseshoe's global scale). The term is static; its constants are passed as arrays.

The anchor is the mode of the posterior with each term replaced by a normal of precision w(r), where
r^2 is the posterior second moment of the entry (see `distributions`). Hyperparameters are set to
the mode of their marginal posterior, by the same EM. Both need only a point and a covariance, and
no pass over the rows. Priors of logarithms are smooth, and stay as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import ClassVar, NamedTuple, Protocol, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from modicum.models.arrow import ArrowCovariance, ArrowMatrix, Covariance, Symmetric, diagonal
from modicum.models.priors.distributions import HalfCauchy, Horseshoe, Prior
from modicum.runtime import Array, jit

Numbers: TypeAlias = tuple[jax.Array | np.ndarray, ...]


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


class ExactTerm(Protocol):
    """The prior of some entries of t. Hashable."""

    @property
    def smooth(self) -> bool:
        """Whether Newton's method climbs the log-density itself rather than a normal."""
        ...

    def log_density(self, t: jax.Array, numbers: Numbers) -> jax.Array:
        """Log-density at t, including that of the hyperparameters."""
        ...

    def settle(self, t: np.ndarray, covariance: Covariance, numbers: Numbers) -> np.ndarray:
        """Return t with the hyperparameters near their marginal mode."""
        ...

    def normal_approximations(
        self, t: np.ndarray, covariance: Covariance, numbers: Numbers, hyperparameters: bool
    ) -> Sequence[NormalApproximation]:
        """Return normals that approximate the term about t, with or without hyperparameters."""
        ...

    def non_centred(self, t: np.ndarray, information: np.ndarray) -> NonCentred | None:
        """Return the entries that are sampled relative to a scale, or None.

        `information` is the data's information about each entry, given all others.
        """
        ...


@dataclass(frozen=True)
class ExactPrior:
    """All terms of a model's prior that are not quadratic."""

    terms: tuple[ExactTerm, ...]

    def log_density(self, t: jax.Array, numbers: tuple[Numbers, ...]) -> jax.Array:
        """Log-density at t."""
        pairs = zip(self.terms, numbers, strict=True)
        return sum((term.log_density(t, of_term) for term, of_term in pairs), jnp.zeros(()))

    @property
    def smooth(self) -> tuple[bool, ...]:
        """Which terms are smooth."""
        return tuple(term.smooth for term in self.terms)

    def log_smooth(self, t: jax.Array, numbers: tuple[Numbers, ...]) -> jax.Array:
        """Log-density at t of the smooth terms."""
        pairs = zip(self.terms, numbers, strict=True)
        smooth = (term.log_density(t, of_term) for term, of_term in pairs if term.smooth)
        return sum(smooth, jnp.zeros(()))

    def settle(
        self, t: np.ndarray, covariance: Covariance, numbers: tuple[Numbers, ...]
    ) -> np.ndarray:
        """Return t with all hyperparameters near their marginal mode."""
        for term, of_term in zip(self.terms, numbers, strict=True):
            t = term.settle(t, covariance, of_term)
        return t

    def non_centred(self, t: np.ndarray, information: np.ndarray) -> NonCentred | None:
        """Return all entries that are sampled relative to a scale, or None."""
        parts = [term.non_centred(t, information) for term in self.terms]
        relative = [part for part in parts if part is not None]
        if not relative:
            return None
        return NonCentred(*(np.concatenate(pieces) for pieces in zip(*relative, strict=True)))

    def normal_approximation(
        self,
        t: np.ndarray,
        covariance: Covariance,
        numbers: tuple[Numbers, ...],
        hyperparameters: bool = True,
    ) -> tuple[np.ndarray, Symmetric]:
        """Mean and precision (d, d) of the normal that approximates all but smooth terms about t.

        `hyperparameters` includes their precision. The precision is dense or an arrow matrix, like
        the covariance.
        """
        mean = t.copy()
        parts = self._approximations(t, covariance, numbers, hyperparameters)
        if isinstance(covariance, ArrowCovariance):
            arrow = ArrowMatrix.zeros(covariance.big, covariance.border)
            for where, centre, inverse in parts:
                mean[where] = centre
                arrow.add_normal(where, inverse)
            return mean, arrow
        precision = np.zeros((len(t), len(t)))
        for where, centre, inverse in parts:
            mean[where] = centre
            square = np.diag(inverse) if inverse.ndim == 1 else inverse
            if where.ndim == 2:
                square = np.kron(inverse, np.eye(where.shape[1]))
            precision[np.ix_(where.ravel(), where.ravel())] += square
        return mean, precision

    def _approximations(
        self, t: np.ndarray, covariance: Covariance, numbers: tuple[Numbers, ...], own: bool
    ) -> list[NormalApproximation]:
        """Return the normal approximations of all terms that are not smooth."""
        pairs = zip(self.terms, numbers, strict=True)
        return [
            part
            for term, of_term in pairs
            if not term.smooth
            for part in term.normal_approximations(t, covariance, of_term, own)
        ]


@dataclass(frozen=True)
class Independent:
    """Independent entries with distributions of one kind; with `logged`, t has their logarithms.

    Numbers: the arguments of the distribution, one array each.
    """

    kind: type[Prior]
    where: tuple[int, ...]
    logged: bool = False

    @property
    def smooth(self) -> bool:
        """Only logarithms: on the real line a density may have a kink, or be nearly flat."""
        return self.logged

    def log_density(self, t: jax.Array, numbers: Numbers) -> jax.Array:
        """Sum over entries of the log-density in t."""
        return jnp.sum(self._log_densities(t[np.array(self.where)], *map(jnp.asarray, numbers)))

    def _log_densities(self, value: jax.Array, *numbers: jax.Array) -> jax.Array:
        if self.logged:
            return self.kind.density(jnp.exp(value), *numbers) + value
        return self.kind.density(value, *numbers)

    def settle(self, t: np.ndarray, covariance: Covariance, numbers: Numbers) -> np.ndarray:
        """Return t: there are no hyperparameters."""
        del covariance, numbers
        return t

    def normal_approximations(
        self, t: np.ndarray, covariance: Covariance, numbers: Numbers, hyperparameters: bool
    ) -> Sequence[NormalApproximation]:
        """EM's normal."""
        del hyperparameters  # there are none
        where = np.array(self.where)
        arrays = [np.asarray(number) for number in numbers]
        names = [field.name for field in fields(self.kind)]  # type: ignore[arg-type]
        mean = arrays[names.index("mean")]
        square = (t[where] - mean) ** 2 + diagonal(covariance)[where]
        return [NormalApproximation(where, mean, self.kind.precision(square, *arrays))]

    def non_centred(self, t: np.ndarray, information: np.ndarray) -> None:
        """None: these entries share no scale."""


@dataclass(frozen=True)
class SharedScale:
    """Horseshoe priors of entries that share a global scale tau, whose logarithm is sampled.

    Numbers: scale and slab; the unit and the resolution of each entry.
    """

    where: tuple[int, ...]
    tau: int
    smooth: ClassVar[bool] = False  # it has a pole at 0

    def log_density(self, t: jax.Array, numbers: Numbers) -> jax.Array:
        """Log-density of the coefficients given tau, plus that of log tau."""
        scale, *rest = map(jnp.asarray, numbers)
        tau = jnp.exp(t[self.tau])
        of_tau = HalfCauchy.density(tau, scale) + t[self.tau]
        return of_tau + jnp.sum(Horseshoe.density(t[np.array(self.where)], scale, *rest, tau))

    def _squares(self, t: np.ndarray, covariance: Covariance) -> np.ndarray:
        where = np.array(self.where)
        return np.asarray(t[where] ** 2 + diagonal(covariance)[where])

    def settle(self, t: np.ndarray, covariance: Covariance, numbers: Numbers) -> np.ndarray:
        """Set tau to its most probable value, with squared coefficients at their second moments."""
        arguments = [np.asarray(number) for number in numbers]
        grid = np.log(arguments[0]) + GRID
        logs = np.asarray(_log_density_of_tau(grid, self._squares(t, covariance), *arguments))
        settled = t.copy()
        settled[self.tau] = grid[np.argmax(logs)]
        return settled

    def normal_approximations(
        self, t: np.ndarray, covariance: Covariance, numbers: Numbers, hyperparameters: bool
    ) -> Sequence[NormalApproximation]:
        """Normal coefficients given tau; for log tau, a normal with the curvature there."""
        arguments = [np.asarray(number) for number in numbers]
        square, where = self._squares(t, covariance), np.array(self.where)
        precision = Horseshoe.precision(square, *arguments, np.exp(t[self.tau]))
        coefficients = NormalApproximation(where, np.zeros(len(where)), precision)
        if not hyperparameters:
            return [coefficients]
        near = t[self.tau] + np.array([-0.5, 0.0, 0.5])
        left, at, right = np.asarray(_log_density_of_tau(near, square, *arguments))
        curvature = np.clip(-(left - 2 * at + right) / 0.25, 0.3, None)
        place = np.array([self.tau])
        return [coefficients, NormalApproximation(place, t[place], np.array([curvature]))]

    def non_centred(self, t: np.ndarray, information: np.ndarray) -> None:
        """None: local scales are integrated out."""


GRID = np.linspace(-12.0, 3.0, 151)  # log(tau / scale of its prior)


@jit()
def _log_density_of_tau(log_tau: Array, square: Array, *numbers: Array) -> jax.Array:
    """Joint log-density of each log tau and of coefficients with these squares."""
    value, arguments = jnp.sqrt(square), [jnp.asarray(number) for number in numbers]

    def at_log_tau(log: jax.Array) -> jax.Array:
        tau = jnp.exp(log)
        log_densities = Horseshoe.density(value, *arguments, tau)
        return jnp.sum(log_densities) + HalfCauchy.density(tau, arguments[0]) + log

    return jax.lax.map(at_log_tau, jnp.asarray(log_tau))
