"""Exact energy-conserving subsampling: a subsampled surrogate proposes, all rows decide.

For a subsample u drawn independently of the parameters, a few reversible HMC steps on Lhat(.; u)
propose an end point, accepted with probability min(1, L(t') Lhat(t; u) / (L(t) Lhat(t'; u))). Each
such kernel leaves the exact posterior invariant whatever u is, at one full-data log-likelihood per
iteration: delayed acceptance (Christen and Fox 2005), or the surrogate transition method (Liu
2001). This acceptance step is not in the HMC-ECS paper; only the proposal is, by the steps of its
eqs. 3.6 and 3.7 with the Hhat of eq. 3.3. Its section 3.4 on full-data acceptance of subsampled
dynamics applies: the acceptance rate falls as the variance of log Lhat grows.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from modicum.kernels.adaptation import Adaptation, AdaptationFlags, adapt
from modicum.kernels.base import EMPTY, Draw, LogPosterior, RowRequest
from modicum.kernels.coordinates import coordinates_to_record, displacement, is_straight, straighten
from modicum.kernels.energy_conserving import (
    EnergyConservingContext,
    EnergyConservingKernel,
    certain_rows,
)
from modicum.kernels.moves import at_point, longest_step
from modicum.kernels.slices import entry, take
from modicum.models.base import Batch
from modicum.runtime import Pytree


class DelayedAcceptanceContext(NamedTuple):
    """Constant inputs of the kernel."""

    surrogate: EnergyConservingContext
    n: jax.Array  # number of rows
    data: Pytree  # the rows, in the form that the log-posterior takes


class DelayedAcceptanceState(NamedTuple):
    """State of the chain: parameters, their exact log-posterior, subsample, and adaptation."""

    z: jax.Array
    exact: jax.Array
    subsample: Pytree
    present: jax.Array
    adaptation: Adaptation


@dataclass(frozen=True)
class DelayedAcceptanceKernel:
    """A surrogate transition kernel whose proposals come from an energy-conserving kernel.

    Parameters
    ----------
    surrogate
        The kernel that provides subsample, estimator and move for the proposals.
    log_posterior
        `log_posterior(t, data)` of all rows; hashable.
    moves
        HMC moves per proposal.
    """

    surrogate: EnergyConservingKernel
    log_posterior: LogPosterior
    moves: int = 2

    def initial_row_request(self, key: jax.Array, context: DelayedAcceptanceContext) -> RowRequest:
        """Request a whole subsample."""
        return self.surrogate.initial_row_request(key, context.surrogate)

    def row_request(self, key: jax.Array, context: DelayedAcceptanceContext) -> RowRequest:
        """Request the rows that replace some blocks."""
        return self.surrogate.row_request(key, context.surrogate)

    def prepare(self, batch: Batch, context: DelayedAcceptanceContext) -> Pytree:
        """Whiten and expand the rows just read."""
        return self.surrogate.prepare(batch, context.surrogate)

    def _exact_log_density(self, z: jax.Array, context: DelayedAcceptanceContext) -> jax.Array:
        s, growth = straighten(z, context.surrogate.proxy)
        proxy = context.surrogate.proxy
        exact = self.log_posterior(proxy.point + displacement(s, proxy), context.data)
        return exact if is_straight(proxy) else exact + growth

    def init(
        self, key: jax.Array, batch: Pytree, context: DelayedAcceptanceContext
    ) -> DelayedAcceptanceState:
        """Start at the surrogate's initial state."""
        state = self.surrogate.init(key, batch, context.surrogate)
        exact = self._exact_log_density(state.z, context)
        present = state.owners != EMPTY
        return DelayedAcceptanceState(state.z, exact, state.subsample, present, state.adaptation)

    def chances(self, key: jax.Array, context: DelayedAcceptanceContext) -> jax.Array:
        """Return the key: a step draws its own random numbers."""
        del context
        return key

    def _replace(self, subsample: Pytree, fresh: Pytree, blocks: jax.Array) -> Pytree:
        """Put fresh rows in place of the given blocks, each of which is one part.

        They are not accepted or rejected by eq. 3.5: u must be independent of the parameters here.
        """
        estimator, size = self.surrogate.estimator, self.surrogate.block

        def replace_block(k: jax.Array, kept: Pytree) -> Pytree:
            new = jax.tree.map(lambda rows: take(rows, k * size, size), fresh)
            return jax.tree.map(partial(estimator.replace, slots=entry(blocks, k)), kept, new)

        return jax.lax.fori_loop(0, blocks.shape[0], replace_block, subsample)

    def step(
        self,
        key: jax.Array,
        state: DelayedAcceptanceState,
        flags: AdaptationFlags,
        batch: Pytree,
        context: DelayedAcceptanceContext,
    ) -> tuple[DelayedAcceptanceState, Draw]:
        """Replace some blocks, propose with the surrogate, and accept or reject with all rows."""
        kernel = self.surrogate
        block_key, move_key, accept_key = jax.random.split(key, 3)
        blocks = jax.random.randint(block_key, (kernel.refreshes,), 0, kernel.blocks)
        subsample = self._replace(state.subsample, batch, blocks)
        surrogate = kernel.log_density(subsample, state.present, context.surrogate)

        def density(z: jax.Array) -> jax.Array:
            return surrogate(z)[0]

        learned = state.adaptation
        point = start = at_point(state.z, density)
        steps, rates = jnp.zeros((), int), jnp.zeros(())
        for move_key_k in jax.random.split(move_key, self.moves):
            point, info = kernel.move(  # eqs. 3.6 and 3.7: reversible for exp(-Uhat), eq. 3.4
                move_key_k, point, density, learned.step_size, learned.inverse_mass
            )
            steps, rates = steps + info.n_steps, rates + info.acceptance_rate / self.moves
        exact = self._exact_log_density(point.position, context)
        # L(t') Lhat(t; u) / (L(t) Lhat(t'; u)); the priors, included in all four, cancel
        log_ratio = (exact - state.exact) + (start.logdensity - point.logdensity)
        accept = jnp.log(jax.random.uniform(accept_key)) < log_ratio
        z = jnp.where(accept, point.position, state.z)
        exact = jnp.where(accept, exact, state.exact)
        adaptation = adapt(
            learned, flags, z, rates, kernel.target_accept, longest_step(kernel.move)
        )
        at, growth = straighten(z, context.surrogate.proxy)
        values = kernel.control_variate.values(subsample, at, context.surrogate.proxy)
        described = (values, state.present, context.surrogate.estimator)
        estimate = kernel.estimator.combine(*described)
        draw = {
            "position": coordinates_to_record(at, context.surrogate.proxy),
            "lp": exact if is_straight(context.surrogate.proxy) else exact - growth,
            "step_size": learned.step_size,
            "acceptance_rate_exact": jnp.minimum(1.0, jnp.exp(jnp.minimum(log_ratio, 0.0))),
            "rows_touched": context.n
            + kernel.refreshes * kernel.block
            + kernel.subsample * (steps + 2)
            + certain_rows(context.surrogate) * (steps + 1),
            **kernel.estimator.describe(estimate, *described),
            **info._asdict(),
            "acceptance_rate": rates,
            "n_steps": steps,
        }
        after = DelayedAcceptanceState(z, exact, subsample, state.present, adaptation)
        return after, draw
