"""Energy-conserving subsampling: HMC whose dynamics and accept step use the same subsample.

One iteration (Algorithm 1 of the HMC-ECS paper): refresh part of the subsample u by a
pseudo-marginal step at fixed parameters, then move the parameters at fixed u by any kernel that
leaves the conditional density invariant.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from modicum.designs import Design, Drawn
from modicum.kernels.adaptation import Adaptation, Signal, adapt, start_adaptation
from modicum.kernels.base import Context, Draw
from modicum.kernels.moves import Move, MoveInfo, Point, at_point

__all__ = ["EnergyConservingKernel", "EnergyConservingState", "replace_blocks"]


class EnergyConservingState(NamedTuple):
    """Where the chain is: parameters, subsample, and what warm-up knows."""

    z: jax.Array  # whitened coordinates
    subsample: Any  # m cached rows
    values: jax.Array  # D of each of them at z
    adaptation: Adaptation


@dataclass(frozen=True)
class EnergyConservingKernel:
    """HMC-ECS over any control variate, estimator, design and move.

    Parameters
    ----------
    control_variate
        Residuals of rows about the anchor.
    estimator
        What turns residuals into a log-likelihood estimate.
    design
        How rows are drawn.
    move
        The step in the parameters at a fixed subsample.
    subsample, blocks, refreshes
        m rows in G blocks, of which K are proposed anew an iteration.
    target_accept
        The acceptance rate the step size is tuned for.
    spread
        Chains start at `spread` posterior standard deviations about the anchor.
    first_step
        Step size to start from; by default guessed from the number of parameters.
    """

    control_variate: Any
    estimator: Any
    design: Design
    move: Move
    subsample: int
    blocks: int
    refreshes: int
    target_accept: float = 0.8
    spread: float = 1.0
    first_step: float | None = None

    @property
    def block(self) -> int:
        """Rows in a block, m/G."""
        return self.subsample // self.blocks

    def wants_at_start(self, key: jax.Array, context: Context) -> Drawn:
        """A whole subsample."""
        return self.design.draw(key, self.subsample, context["design"])

    def wants(self, key: jax.Array, context: Context) -> Drawn:
        """The rows of the blocks to be proposed; they depend on the key alone."""
        return self.design.draw(key, self.refreshes * self.block, context["design"])

    def prepare(self, batch: Any, context: Context) -> Any:
        """Whiten and expand the rows that were read."""
        return self.control_variate.cache(batch, context["proxy"])

    def log_density(self, subsample: Any, context: Context) -> Callable[[jax.Array], jax.Array]:
        """Log Lhat(z; u) + log prior, up to a constant (minus eq. 3.4)."""
        proxy = context["proxy"]

        def density(z: jax.Array) -> jax.Array:
            values = self.control_variate.values(subsample, z, proxy)
            estimate = self.estimator.combine(values)
            return self.control_variate.log_proxy(z, proxy) + estimate.log

        return density

    def init(self, key: jax.Array, batch: Any, context: Context) -> EnergyConservingState:
        """Start at a draw about the anchor with a fresh subsample."""
        proxy = context["proxy"]
        size = proxy["point"].shape[0]
        z = self.spread * jax.random.normal(key, (size,))
        values = self.control_variate.values(batch, z, proxy)
        return EnergyConservingState(z, batch, values, start_adaptation(size, self.first_step))

    def step(
        self,
        key: jax.Array,
        state: EnergyConservingState,
        signal: Signal,
        batch: Any,
        context: Context,
    ) -> tuple[EnergyConservingState, Draw]:
        """Refresh some blocks of the subsample, then move the parameters."""
        refresh_key, move_key = jax.random.split(key)
        subsample, accepted = self.refresh(refresh_key, state, batch, context)
        density = self.log_density(subsample, context)
        learned = state.adaptation
        before = at_point(state.z, density)
        point, info = self.move(move_key, before, density, learned.step_size, learned.inverse_mass)
        rate = info.acceptance_rate
        adaptation = adapt(learned, signal, point.position, rate, self.target_accept)
        values = self.control_variate.values(subsample, point.position, context["proxy"])
        after = EnergyConservingState(point.position, subsample, values, adaptation)
        return after, self.record(point, info, values, accepted, learned.step_size, context)

    def record(
        self,
        point: Point,
        info: MoveInfo,
        values: jax.Array,
        accepted: jax.Array,
        step_size: jax.Array,
        context: Context,
    ) -> Draw:
        """What to keep of an iteration."""
        estimate = self.estimator.combine(values)
        fresh = self.refreshes * self.block
        return {
            "position": point.position,
            "lp": point.logdensity + context["constant"],
            "step_size": step_size,
            "acceptance_rate_u": accepted,
            "difference_estimate": estimate.difference,
            "variance_estimate": estimate.variance,
            # fresh rows; the gradient after the refresh, those of the move, the residuals after it
            "rows_touched": fresh + self.subsample * (info.n_steps + 2),
            **info._asdict(),
        }

    def refresh(
        self, key: jax.Array, state: EnergyConservingState, fresh: Any, context: Context
    ) -> tuple[Any, jax.Array]:
        """Propose K blocks one after the other, each accepted by eq. 3.5; return the new rows."""
        fresh_values = self.control_variate.values(fresh, state.z, context["proxy"])
        which_key, accept_key = jax.random.split(key)
        which = jax.random.randint(which_key, (self.refreshes,), 0, self.blocks)
        log_uniform = jnp.log(jax.random.uniform(accept_key, (self.refreshes,)))

        def propose(k: Any, carry: Any) -> Any:
            subsample, values, log_now, accepted = carry
            place = which[k] * self.block
            proposed = _put(values, _take(fresh_values, k * self.block, self.block), place)
            log_then = self.estimator.combine(proposed).log
            accept = log_uniform[k] < log_then - log_now

            def replace(all_: jax.Array, new: jax.Array) -> jax.Array:
                old = _take(all_, place, self.block)
                return _put(
                    all_, jnp.where(accept, _take(new, k * self.block, self.block), old), place
                )

            return (
                jax.tree.map(replace, subsample, fresh),
                jnp.where(accept, proposed, values),
                jnp.where(accept, log_then, log_now),
                accepted + accept,
            )

        log_now = self.estimator.combine(state.values).log
        start = (state.subsample, state.values, log_now, jnp.zeros((), int))
        subsample, _, _, accepted = jax.lax.fori_loop(0, self.refreshes, propose, start)
        return subsample, accepted / self.refreshes


def replace_blocks(subsample: Any, fresh: Any, blocks: jax.Array, size: int) -> Any:
    """Put `fresh` rows, `size` at a time, in place of the given blocks of the subsample."""

    def one(k: Any, kept: Any) -> Any:
        return jax.tree.map(
            lambda all_, new: _put(all_, _take(new, k * size, size), blocks[k] * size), kept, fresh
        )

    return jax.lax.fori_loop(0, blocks.shape[0], one, subsample)


def _take(array: jax.Array, place: Any, count: int) -> jax.Array:
    return jax.lax.dynamic_slice_in_dim(array, place, count)


def _put(array: jax.Array, part: jax.Array, place: Any) -> jax.Array:
    return jax.lax.dynamic_update_slice_in_dim(array, part, place, 0)
