"""Priors that are no quadratic: evaluated exactly in each step, beside the likelihood's quadratic.

A term is the prior of some entries of the flat vector t, and of parameters of its own where it has
them (the horseshoe's global scale). What is static is the term; its numbers travel as arrays.

The anchor is where the posterior would have its mode if each term were a normal: that of precision
w(r), r^2 the posterior second moment of the entry (see `distributions`). Parameters of the prior's
own are at the mode of their marginal posterior, by the same EM. Both follow from a
point and a covariance, without a pass over the rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import NamedTuple, Protocol, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from modicum.models.arrow import ArrowCovariance, ArrowMatrix, Covariance, Symmetric, diagonal
from modicum.models.priors.distributions import HalfCauchy, Horseshoe, Prior

__all__ = [
    "ExactPrior",
    "ExactTerm",
    "Independent",
    "NonCentred",
    "Numbers",
    "SharedScale",
    "StandIn",
]

Numbers: TypeAlias = tuple[jax.Array | np.ndarray, ...]


class StandIn(NamedTuple):
    """A normal prior of some entries of t, in place of one that is none."""

    where: np.ndarray  # flat places; (effects, levels) where levels have the same precision
    mean: np.ndarray  # of each place
    precision: np.ndarray  # a matrix, or a vector where it is diagonal; of the effects of a level


class NonCentred(NamedTuple):
    """Entries that are sampled relative to a scale, the less the more the data say of them."""

    where: np.ndarray  # flat places
    scale: np.ndarray  # flat place of the log scale of each
    ratio: np.ndarray  # information of the data times the square of the scale, at the anchor


class ExactTerm(Protocol):
    """The prior of some entries of t. Hashable."""

    def log_density(self, t: jax.Array, numbers: Numbers) -> jax.Array:
        """Log-density at t, that of the term's own parameters included."""
        ...

    def settle(self, t: np.ndarray, covariance: Covariance, numbers: Numbers) -> np.ndarray:
        """Return t with the term's own parameters where their marginal mode is about."""
        ...

    def stand_ins(
        self, t: np.ndarray, covariance: Covariance, numbers: Numbers, own: bool
    ) -> Sequence[StandIn]:
        """Return the normals that stand for the term about t, with those of its `own` or not."""
        ...

    def non_centred(self, t: np.ndarray, information: np.ndarray) -> NonCentred | None:
        """Return which entries are sampled relative to a scale; None: none.

        `information` is what the data alone say of each entry, all others known.
        """
        ...


@dataclass(frozen=True)
class ExactPrior:
    """All such terms of a model."""

    terms: tuple[ExactTerm, ...]

    def log_density(self, t: jax.Array, numbers: tuple[Numbers, ...]) -> jax.Array:
        """Log-density at t."""
        parts = zip(self.terms, numbers, strict=True)
        return sum((term.log_density(t, own) for term, own in parts), jnp.zeros(()))

    def settle(
        self, t: np.ndarray, covariance: Covariance, numbers: tuple[Numbers, ...]
    ) -> np.ndarray:
        """Return t with all parameters of the priors' own settled."""
        for term, own in zip(self.terms, numbers, strict=True):
            t = term.settle(t, covariance, own)
        return t

    def non_centred(self, t: np.ndarray, information: np.ndarray) -> NonCentred | None:
        """Return all entries that are sampled relative to a scale; None: there are none."""
        parts = [term.non_centred(t, information) for term in self.terms]
        held = [part for part in parts if part is not None]
        if not held:
            return None
        return NonCentred(*(np.concatenate(each) for each in zip(*held, strict=True)))

    def stand_in(
        self,
        t: np.ndarray,
        covariance: Covariance,
        numbers: tuple[Numbers, ...],
        own: bool = True,
    ) -> tuple[np.ndarray, Symmetric]:
        """Mean and precision (d, d) of the normal that stands for all terms about t.

        Without the priors' `own` parameters, where these are not asked for. The precision has the
        form of the covariance.
        """
        mean = t.copy()
        if isinstance(covariance, ArrowCovariance):
            arrow = ArrowMatrix.zeros(covariance.big, covariance.border)
            for where, centre, inverse in self._stand_ins(t, covariance, numbers, own):
                mean[where] = centre
                arrow.add_normal(where, inverse)
            return mean, arrow
        precision = np.zeros((len(t), len(t)))
        for where, centre, inverse in self._stand_ins(t, covariance, numbers, own):
            mean[where] = centre
            square = np.diag(inverse) if inverse.ndim == 1 else inverse
            if where.ndim == 2:
                square = np.kron(inverse, np.eye(where.shape[1]))
            precision[np.ix_(where.ravel(), where.ravel())] += square
        return mean, precision

    def _stand_ins(
        self, t: np.ndarray, covariance: Covariance, numbers: tuple[Numbers, ...], own: bool
    ) -> list[StandIn]:
        """Those of all terms."""
        pairs = zip(self.terms, numbers, strict=True)
        return [s for term, of_term in pairs for s in term.stand_ins(t, covariance, of_term, own)]


@dataclass(frozen=True)
class Independent:
    """Entries with distributions of one kind, each its own; of positive numbers, the logarithm.

    Numbers: the arguments of the distribution, one array each.
    """

    kind: type[Prior]
    where: tuple[int, ...]
    logged: bool = False

    def log_density(self, t: jax.Array, numbers: Numbers) -> jax.Array:
        """The sum over entries, in t."""
        return jnp.sum(self._each(t[np.array(self.where)], *map(jnp.asarray, numbers)))

    def _each(self, value: jax.Array, *numbers: jax.Array) -> jax.Array:
        if self.logged:
            return self.kind.density(jnp.exp(value), *numbers) + value
        return self.kind.density(value, *numbers)

    def settle(self, t: np.ndarray, covariance: Covariance, numbers: Numbers) -> np.ndarray:
        """Nothing of its own."""
        del covariance, numbers
        return t

    def stand_ins(
        self, t: np.ndarray, covariance: Covariance, numbers: Numbers, own: bool
    ) -> Sequence[StandIn]:
        """That of EM; of a logarithm, the tangent quadratic, with some curvature at least."""
        del own  # it has none
        where = np.array(self.where)
        if self.logged:
            return [self._tangent(t, where, numbers)]
        arrays = [np.asarray(number) for number in numbers]
        names = [field.name for field in fields(self.kind)]  # type: ignore[arg-type]
        mean = arrays[names.index("mean")]
        square = (t[where] - mean) ** 2 + diagonal(covariance)[where]
        return [StandIn(where, mean, self.kind.precision(square, *arrays))]

    def non_centred(self, t: np.ndarray, information: np.ndarray) -> None:
        """Nothing: these have no scale of their own."""

    def _tangent(self, t: np.ndarray, where: np.ndarray, numbers: Numbers) -> StandIn:
        def total(value: jax.Array) -> jax.Array:
            return jnp.sum(self._each(value, *map(jnp.asarray, numbers)))

        at = jnp.asarray(t[where])
        slope = np.asarray(jax.grad(total)(at))
        bent = -np.diag(np.asarray(jax.hessian(total)(at)))
        precision = np.maximum(bent, 0.01)
        return StandIn(where, t[where] + slope / precision, precision)


@dataclass(frozen=True)
class SharedScale:
    """Horseshoe priors of entries that share a global scale tau, whose logarithm is sampled.

    Numbers: scale and slab; the unit and the resolution of each entry.
    """

    where: tuple[int, ...]
    tau: int

    def log_density(self, t: jax.Array, numbers: Numbers) -> jax.Array:
        """Given tau, and of tau itself."""
        scale, *own = map(jnp.asarray, numbers)
        tau = jnp.exp(t[self.tau])
        of_tau = HalfCauchy.density(tau, scale) + t[self.tau]
        return of_tau + jnp.sum(Horseshoe.density(t[np.array(self.where)], scale, *own, tau))

    def _squares(self, t: np.ndarray, covariance: Covariance) -> np.ndarray:
        where = np.array(self.where)
        return np.asarray(t[where] ** 2 + diagonal(covariance)[where])

    def settle(self, t: np.ndarray, covariance: Covariance, numbers: Numbers) -> np.ndarray:
        """The most probable tau, were each coefficient as large as its second moment says."""
        own = [np.asarray(number) for number in numbers]
        grid = np.log(own[0]) + GRID
        logs = np.asarray(_of_tau(jnp.asarray(grid), self._squares(t, covariance), *own))
        settled = t.copy()
        settled[self.tau] = grid[np.argmax(logs)]
        return settled

    def stand_ins(
        self, t: np.ndarray, covariance: Covariance, numbers: Numbers, own: bool
    ) -> Sequence[StandIn]:
        """Normal coefficients given tau, and a scale for tau from the curvature there."""
        arguments = [np.asarray(number) for number in numbers]
        square, where = self._squares(t, covariance), np.array(self.where)
        precision = Horseshoe.precision(square, *arguments, np.exp(t[self.tau]))
        coefficients = StandIn(where, np.zeros(len(where)), precision)
        if not own:
            return [coefficients]
        near = t[self.tau] + np.array([-0.5, 0.0, 0.5])
        left, at, right = np.asarray(_of_tau(jnp.asarray(near), square, *arguments))
        bent = np.clip(-(left - 2 * at + right) / 0.25, 0.3, None)
        place = np.array([self.tau])
        return [coefficients, StandIn(place, t[place], np.array([bent]))]

    def non_centred(self, t: np.ndarray, information: np.ndarray) -> None:
        """Nothing: local scales are integrated out."""


GRID = np.linspace(-12.0, 3.0, 151)  # of log tau, about that of its prior's scale


def _of_tau(log_tau: jax.Array, square: np.ndarray, *numbers: np.ndarray) -> jax.Array:
    """Log-density of each log tau beside coefficients of these squares."""
    value, own = jnp.sqrt(square), [jnp.asarray(number) for number in numbers]

    def at_log_tau(log: jax.Array) -> jax.Array:
        tau = jnp.exp(log)
        each = Horseshoe.density(value, *own, tau)
        return jnp.sum(each) + HalfCauchy.density(tau, own[0]) + log

    return jax.lax.map(at_log_tau, log_tau)
