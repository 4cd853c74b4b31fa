"""The priors of a linear-predictor model, each in numbers.

A default that is the same number for every table overrides some of them: a coefficient of N(0, 2.5)
rules out the slope of a column measured in kilometres rather than metres, and an intercept of
N(0, 10) is where the predictor of the year 0 lies. So by default coefficient j has the scale
2.5 / sd(x_j), times the unit of the outcome, and the intercept's prior is that of
a = intercept + mean(x) . beta, the predictor at the mean of the columns: what centring the columns
would give, as rstanarm, brms and bambi do it. The posterior then does not depend on units.

Normal priors, and flat ones, are part of the likelihood's quadratic wherever there is one
(`log_folded`); all others are evaluated as they are (`exact`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from modicum.models.priors.distributions import (
    Flat,
    Horseshoe,
    LogNormal,
    Normal,
    Prior,
    normal_log_density,
    prior_from_dict,
)
from modicum.models.priors.exact import (
    ExactPrior,
    ExactTerm,
    Independent,
    Numbers,
    SharedScale,
)

__all__ = ["OWN", "ModelPriors", "is_logged", "shapes_of"]

OWN = "variation"  # the parameters of priors: last among a model's, whatever a family has besides
HORSESHOE = "log_horseshoe"


def is_logged(name: str) -> bool:
    """Whether the parameter of this name is the logarithm of a positive number."""
    return name.startswith("log_")


@dataclass(frozen=True)
class ModelPriors:
    """Independent priors of a linear-predictor model.

    Parameters
    ----------
    coefficients
        Prior of each column's coefficient.
    intercept
        Prior of intercept + centre . beta; None for a model without an intercept.
    centre
        Where in x the intercept's prior holds; empty: at 0, so that it is the intercept's own.
    extras
        Priors of the other parameters, by name; of one called log_..., that of what it is the
        logarithm of.
    """

    coefficients: tuple[Prior, ...]
    intercept: Prior | None = None
    centre: tuple[float, ...] = ()
    extras: tuple[tuple[str, Prior], ...] = ()

    # To and from a file ----------------------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON values."""
        return {
            "coefficients": [prior.to_dict() for prior in self.coefficients],
            "intercept": None if self.intercept is None else self.intercept.to_dict(),
            "centre": list(self.centre),
            "extras": [[name, prior.to_dict()] for name, prior in self.extras],
        }

    @classmethod
    def from_dict(cls, saved: Mapping[str, Any]) -> ModelPriors:
        """Undo `to_dict`."""
        intercept = saved["intercept"]
        return cls(
            tuple(prior_from_dict(prior) for prior in saved["coefficients"]),
            None if intercept is None else prior_from_dict(intercept),
            tuple(float(c) for c in saved["centre"]),
            tuple((str(name), prior_from_dict(prior)) for name, prior in saved["extras"]),
        )

    # Log-densities ---------------------------------------------------------------------------

    def log_density(self, theta: Mapping[str, Any]) -> jax.Array:
        """Log-prior at unconstrained parameters."""
        total = self.log_folded(theta)
        exact = self.exact(shapes_of(theta))
        if exact is None:
            return total
        t = jnp.concatenate([jnp.ravel(leaf) for leaf in _leaves(theta).values()])
        return total + exact[0].log_density(t, exact[1])

    def log_folded(self, theta: Mapping[str, Any]) -> jax.Array:
        """The part that is a quadratic in the parameters."""
        beta = jnp.asarray(theta["beta"])
        total = jnp.zeros(())
        normal = [j for j, prior in enumerate(self.coefficients) if isinstance(prior, Normal)]
        if normal:
            of = [self.coefficients[j] for j in normal]
            mean, sd = np.array([prior.numbers for prior in of]).T
            own = beta if len(normal) == beta.shape[-1] else beta[..., np.array(normal)]
            total = normal_log_density(own - mean if mean.any() else own, jnp.asarray(sd))
        if self.intercept is not None and self.intercept.quadratic:
            total += self.intercept.log_density(self.centred_intercept(theta))
        for name, prior in self.extras:
            if isinstance(prior, LogNormal):  # normal in what is sampled
                total += Normal(*prior.numbers).log_density(theta[name])
            elif prior.quadratic:
                total += prior.log_density(theta[name])
        return total

    def centred_intercept(self, theta: Mapping[str, Any]) -> jax.Array:
        """The linear predictor at the centre: what the intercept's prior is about."""
        intercept = jnp.asarray(theta["intercept"])
        if not self.centre:
            return intercept
        return intercept + jnp.asarray(theta["beta"]) @ jnp.asarray(self.centre)

    def exact(
        self, shapes: Mapping[str, tuple[int, ...]]
    ) -> tuple[ExactPrior, tuple[Numbers, ...]] | None:
        """The part that is none, for parameters of these shapes in the order of the flat vector."""
        places = _places(shapes)
        terms: list[tuple[ExactTerm, Numbers]] = []
        columns = places["beta"].reshape(shapes["beta"])
        kinds = [type(p) for p in self.coefficients if not p.quadratic]
        for kind in dict.fromkeys(kinds):
            if kind is not Horseshoe:
                own = [j for j, p in enumerate(self.coefficients) if type(p) is kind]
                of = [self.coefficients[j] for j in own]
                terms.append(_independent(kind, columns[..., own], of))
        for k, like in enumerate(self.horseshoes):
            own = [j for j, p in enumerate(self.coefficients) if _alike(p, like)]
            terms.append(self._shared(columns[..., own], own, like, places[_HORSESHOE][k]))
        if self.intercept is not None and not self.intercept.quadratic:
            of_all = [self.intercept] * places["intercept"].size
            terms.append(_independent(type(self.intercept), places["intercept"], of_all))
        for name, prior in self.extras:
            if not prior.quadratic:
                terms.append(_independent(type(prior), places[name], [prior], is_logged(name)))
        if not terms:
            return None
        return ExactPrior(tuple(term for term, _ in terms)), tuple(own for _, own in terms)

    def _shared(
        self, where: np.ndarray, columns: list[int], like: Horseshoe, tau: int
    ) -> tuple[ExactTerm, Numbers]:
        each = np.array([self.coefficients[j].numbers[2:] for j in columns])  # unit, resolution
        shared = (np.asarray(like.scale), np.asarray(like.slab))
        own = tuple(np.broadcast_to(number, where.shape).ravel() for number in each.T)
        return SharedScale(tuple(map(int, where.ravel())), int(tau)), (*shared, *own)

    # Parameters of their own -----------------------------------------------------------------

    @property
    def horseshoes(self) -> tuple[Horseshoe, ...]:
        """Those that differ by more than the unit of a column: each has a global scale."""
        like: list[Horseshoe] = []
        for prior in self.coefficients:
            if isinstance(prior, Horseshoe) and not any(_alike(prior, h) for h in like):
                like.append(prior)
        return tuple(like)

    def start(self) -> dict[str, Any]:
        """Where the priors' own parameters start."""
        if not self.horseshoes:
            return {}
        return {OWN: {HORSESHOE: np.log([0.1 * h.scale for h in self.horseshoes])}}

    def report(self, own: Mapping[str, Any]) -> dict[str, Any]:
        """Name the priors' own parameters the way draws show them."""
        if HORSESHOE not in own:
            return {}
        scale = jnp.exp(own[HORSESHOE])
        return {"horseshoe_scale": scale[0] if len(self.horseshoes) == 1 else scale}

    def restore(self, named: dict[str, Any]) -> dict[str, Any]:
        """Undo `report`: take the priors' own parameters out of `named`."""
        if not self.horseshoes:
            return {}
        scale = jnp.log(named.pop("horseshoe_scale"))
        return {OWN: {HORSESHOE: jnp.reshape(scale, (len(self.horseshoes),))}}

    # What users see --------------------------------------------------------------------------

    def distances(self, theta: Mapping[str, Any]) -> dict[str, Any]:
        """How far parameters lie from their prior's centre, in its widths (of a normal, sds)."""
        beta = np.asarray(theta["beta"])
        centre, width = np.array([(p.centre, p.width) for p in self.coefficients]).T
        away: dict[str, Any] = {"beta": (beta - centre) / width}
        if self.intercept is not None:
            centred = np.asarray(theta["intercept"])
            if self.centre:
                centred = centred + beta @ np.asarray(self.centre)
            away["intercept"] = (centred - self.intercept.centre) / self.intercept.width
        for name, prior in self.extras:
            value = np.asarray(theta[name])
            mean, width = prior.numbers if prior.quadratic and prior.numbers else (0.0, np.inf)
            away[name] = (value - mean) / width
        if OWN in theta:
            away[OWN] = jax.tree.map(np.zeros_like, theta[OWN])
        return away

    def normal(self, theta: Mapping[str, Any]) -> dict[str, Any]:
        """Which parameters have a normal prior, whose width is its standard deviation."""
        is_normal = [isinstance(p, Normal) for p in self.coefficients]
        marks: dict[str, Any] = {"beta": np.broadcast_to(is_normal, np.shape(theta["beta"]))}
        if self.intercept is not None:
            own = isinstance(self.intercept, Normal)
            marks["intercept"] = np.full(np.shape(theta["intercept"]), own)
        marks |= {name: np.asarray(prior.quadratic) for name, prior in self.extras}
        if OWN in theta:
            marks[OWN] = jax.tree.map(lambda leaf: np.zeros(np.shape(leaf), bool), theta[OWN])
        return marks

    def shrunk(self, theta: Mapping[str, Any]) -> dict[str, Any]:
        """Which parameters have a prior that is meant to decide where data are silent."""
        marks = {
            name: np.zeros(np.shape(leaf), bool) for name, leaf in theta.items() if name != OWN
        }
        own = [isinstance(prior, Horseshoe) for prior in self.coefficients]
        marks["beta"] = np.broadcast_to(own, np.shape(theta["beta"]))
        if OWN in theta:
            marks[OWN] = jax.tree.map(lambda leaf: np.ones(np.shape(leaf), bool), theta[OWN])
        return marks

    @property
    def has_flat(self) -> bool:
        """Whether some parameter has no prior, so that the posterior may be none."""
        given = (*self.coefficients, self.intercept, *(prior for _, prior in self.extras))
        return any(isinstance(prior, Flat) for prior in given)

    def describe(self, columns: tuple[str, ...]) -> dict[str, str]:
        """Name each prior, readably; one line for all coefficients where they share it."""
        each = [str(prior) for prior in self.coefficients]
        if len(set(each)) == 1:
            said = {"beta": each[0]}
        else:
            said = {f"beta[{name}]": text for name, text in zip(columns, each, strict=True)}
        if self.intercept is not None:
            where = ", of the predictor at the mean of the columns" if self.centre else ""
            said["intercept"] = f"{self.intercept}{where}"
        for name, prior in self.extras:
            if isinstance(prior, LogNormal):
                said[name] = str(Normal(*prior.numbers))
            else:
                said[name.removeprefix("log_") if is_logged(name) else name] = str(prior)
        return said


_HORSESHOE = f"{OWN}.{HORSESHOE}"


def _alike(prior: Prior, like: Horseshoe) -> bool:
    return isinstance(prior, Horseshoe) and prior.numbers[:2] == like.numbers[:2]


def _independent(
    kind: type[Prior], where: np.ndarray, priors: list[Prior], logged: bool = False
) -> tuple[ExactTerm, Numbers]:
    """A term of one kind: the last axis of `where` goes with `priors`."""
    numbers = [
        np.array([prior.numbers[i] for prior in priors]) for i in range(len(priors[0].numbers))
    ]
    spread = tuple(np.broadcast_to(number, where.shape).ravel() for number in numbers)
    return Independent(kind, tuple(map(int, where.ravel())), logged), spread


def shapes_of(theta: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """The shape of each leaf by its path, in the order of the flat vector."""
    return {name: np.shape(leaf) for name, leaf in _leaves(theta).items()}


def _leaves(theta: Mapping[str, Any]) -> dict[str, Any]:
    """Every leaf by its path, in the order of the flat vector."""
    paths = jax.tree_util.tree_flatten_with_path(dict(theta))[0]
    return {".".join(step.key for step in path): leaf for path, leaf in paths}


def _places(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, np.ndarray]:
    """Flat places of each leaf."""
    places, first = {}, 0
    for name, shape in shapes.items():
        places[name] = np.arange(first, first + prod(shape))
        first += prod(shape)
    return places
