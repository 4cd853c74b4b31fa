"""Selectors choose which of several drawn batches drives a step of stochastic-gradient MCMC.

`Plain` uses the only batch drawn. `Exponential` is the index chain of EWSG. To add a selector,
write a class here and add it to SELECTORS.
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


class Selector(ABC):
    """Selects a gradient from candidates. Subclasses are frozen dataclasses without arrays."""

    @abstractmethod
    def batches(self, integrator: Integrator) -> int:
        """Return the number of batches a step draws; refuse unsupported integrators."""

    @abstractmethod
    def select(
        self, key: jax.Array, gradients: jax.Array, matching: Callable[[], NoiseMatch]
    ) -> tuple[jax.Array, Draw]:
        """Select a gradient from the candidates (batches, d); return it and its statistics."""


@dataclass(frozen=True)
class Plain(Selector):
    """One batch per step, without selection."""

    def batches(self, integrator: Integrator) -> int:
        """Return 1."""
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

    Batches are weighted by how well their step matches the step of the full gradient,
    p_I ~ exp(|x + a_I|^2 / 2) (eq. 4). To first order this increases the friction to balance the
    noise of the batch, so that the momentum keeps its temperature. It does not reduce the variance
    of the gradient. The chain starts from a uniform batch.

    Parameters
    ----------
    index_steps
        Length M of the chain; M + 1 batches are drawn per step. From a uniform start one step is
        exact to first order in the weights.
    x
        The guess at the unknown next momentum r' in x: "current" r' = r, x = sqrt(h) gamma r /
        sigma (the paper's choice, section 4.3); "zero" x = 0; "one" x = 1; "rest" r' = 0.
    weights
        "exponential": exp(|x + a|^2 / 2), the paper's weights. "linear": exp(x . a), which does
        not change the force and is not biased by skewed gradients. Without a momentum, x is
        computed from an additional batch.

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
            raise SettingError(
                "linear weights exp(x . a) are all equal with x='zero'; choose another x, or "
                "weights='exponential'."
            )

    def batches(self, integrator: Integrator) -> int:
        """Return M + 1, plus one if x is computed from a batch."""
        if integrator.obstacle:
            raise SettingError(integrator.obstacle)
        if not integrator.has_momentum and self.x in ("one", "rest"):
            raise SettingError(
                f"x={self.x!r} needs a momentum, which {type(integrator).__name__} does not have; "
                "leave out x."
            )
        reference = self.weights == "linear" and not integrator.has_momentum
        return self.index_steps + 1 + reference

    def select(
        self, key: jax.Array, gradients: jax.Array, matching: Callable[[], NoiseMatch]
    ) -> tuple[jax.Array, Draw]:
        """Run the index chain over the candidates; record its acceptance rate."""
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
        """Return x, from the guess at the next momentum."""
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
