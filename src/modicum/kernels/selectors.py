"""Selectors: which of several drawn batches drives a step of stochastic-gradient MCMC.

`Plain` uses the one batch that was drawn. `Exponential` is the index chain of EWSG. A new selector
is a class here and a line in SELECTORS.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import jax
import jax.numpy as jnp

from modicum.errors import SettingError, whole_number
from modicum.kernels.base import Draw
from modicum.kernels.integrators import Integrator, NoiseMatch
from modicum.runtime import Pytree

__all__ = ["SELECTORS", "Exponential", "Plain", "Selector"]


class Selector(ABC):
    """Picks a gradient out of candidates. Frozen dataclasses: hashable, without arrays."""

    @abstractmethod
    def batches(self, integrator: Integrator) -> int:
        """How many batches a step draws; refuses integrators it cannot serve."""

    @abstractmethod
    def select(
        self, key: jax.Array, gradients: jax.Array, matching: Callable[[], NoiseMatch]
    ) -> tuple[jax.Array, Draw]:
        """Return one gradient, made of the candidates (batches, d), and what to record."""


@dataclass(frozen=True)
class Plain(Selector):
    """One batch per step, used as it is."""

    def batches(self, integrator: Integrator) -> int:
        """One batch."""
        del integrator
        return 1

    def select(
        self, key: jax.Array, gradients: jax.Array, matching: Callable[[], NoiseMatch]
    ) -> tuple[jax.Array, Draw]:
        """Return the only gradient."""
        del key, matching
        return gradients[0], {}


@dataclass(frozen=True)
class Exponential(Selector):
    """Exponentially weighted batches, by a Metropolis chain over them (EWSG paper, Algorithm 1).

    Batches are weighted by how well the step they make matches that of the full gradient,
    p_I ~ exp(|x + a_I|^2 / 2) (eq. 4). To first order this adds to friction what the batch
    adds to noise, so that the momentum keeps its temperature. It is not a reduction of the
    gradient's variance. The chain starts from a uniform batch.

    Parameters
    ----------
    index_steps
        Length M of the chain; M + 1 batches are drawn per step. From a uniform start one step is
        exact to first order in the weights.
    x
        What stands for the unknown next momentum r' in x: "current" r' = r, x = sqrt(h) gamma r /
        sigma (the paper's choice, section 4.3); "zero" x = 0; "one" x = 1; "rest" r' = 0.
    weights
        "exponential": exp(|x + a|^2 / 2), the paper's. "linear": exp(x . a), which leaves the
        force alone and is not biased by skewed gradients. Without a momentum a further batch takes
        the place of x.

    Examples
    --------
    >>> from modicum.kernels.integrators import Langevin, Underdamped
    >>> from modicum.kernels.selectors import Exponential
    >>> Exponential().batches(Underdamped()), Exponential(weights="linear").batches(Langevin())
    (2, 3)
    """

    index_steps: int = 1
    x: Literal["current", "zero", "one", "rest"] = "current"
    weights: Literal["exponential", "linear"] = "exponential"

    def __post_init__(self) -> None:
        whole_number("index_steps", self.index_steps)
        if self.x not in ("current", "zero", "one", "rest"):
            raise SettingError(f"x must be 'current', 'zero', 'one' or 'rest', not {self.x!r}.")
        if self.weights not in ("exponential", "linear"):
            raise SettingError(f"weights must be 'exponential' or 'linear', not {self.weights!r}.")
        if self.weights == "linear" and self.x == "zero":
            raise SettingError("linear weights exp(x . a) are all alike with x='zero'.")

    def batches(self, integrator: Integrator) -> int:
        """M + 1, and one more where it stands for x."""
        if integrator.obstacle:
            raise SettingError(integrator.obstacle)
        if not integrator.has_momentum and self.x in ("one", "rest"):
            raise SettingError(
                f"x={self.x!r} speaks of a momentum, and {type(integrator).__name__} has none; "
                "leave x out."
            )
        reference = self.weights == "linear" and not integrator.has_momentum
        return self.index_steps + 1 + reference

    def select(
        self, key: jax.Array, gradients: jax.Array, matching: Callable[[], NoiseMatch]
    ) -> tuple[jax.Array, Draw]:
        """Walk through the candidates; record the share that was accepted."""
        match = matching()
        first, proposed = gradients[0], gradients[1 : self.index_steps + 1]
        if len(gradients) > self.index_steps + 1:
            x = match.scale * gradients[-1]
        else:
            x = self.guess(match)
        log_uniform = jnp.log(jax.random.uniform(key, (self.index_steps,), gradients.dtype))

        def propose(current: jax.Array, candidate: Pytree) -> tuple[jax.Array, jax.Array]:
            new, limit = candidate
            accept = limit < self.log_ratio(match.scale * current, match.scale * new, x)  # eq. 5
            return jnp.where(accept, new, current), accept

        last, accepted = jax.lax.scan(propose, first, (proposed, log_uniform), unroll=4)
        return last, {"acceptance_rate_index": jnp.mean(accepted.astype(gradients.dtype))}

    def guess(self, match: NoiseMatch) -> jax.Array:
        """x, by the guess at the next momentum."""
        return {
            "current": match.x,
            "zero": jnp.zeros_like(match.x),
            "one": jnp.ones_like(match.x),
            "rest": match.rest,
        }[self.x]

    def log_ratio(self, current: jax.Array, proposed: jax.Array, x: jax.Array) -> jax.Array:
        """log p_J - log p_I (eq. 5): (a_J - a_I) . (x + (a_J + a_I) / 2)."""
        centre = x if self.weights == "linear" else x + (proposed + current) / 2
        return jnp.sum((proposed - current) * centre)


SELECTORS: dict[str, type[Selector]] = {"plain": Plain, "exponential": Exponential}
