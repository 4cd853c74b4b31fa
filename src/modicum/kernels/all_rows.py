"""Kernels that read all rows: HMC and NUTS, and subsampled proposals that all rows accept.

Hamiltonian moves on the exact log-posterior, in whitened coordinates about the anchor, are the
reference method.

In delayed acceptance a subsampled surrogate proposes. For a subsample u drawn independently of the
parameters, a few reversible HMC steps on Lhat(.; u) propose an end point, accepted with probability
min(1, L(t') Lhat(t; u) / (L(t) Lhat(t'; u))). Each such kernel leaves the exact posterior invariant
whatever u is, at one full-data log-likelihood per iteration (Christen and Fox 2005; the surrogate
transition method of Liu 2001). This acceptance step is not in the HMC-ECS paper; only the proposal
is, by the steps of its eqs. 3.6 and 3.7 with the Hhat of eq. 3.3. Its section 3.4 on full-data
acceptance of subsampled dynamics applies: the acceptance rate falls as the variance of log Lhat
grows.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.scipy.linalg import solve_triangular

from modicum.arrays import entry, take
from modicum.kernels.energy_conserving import (
    EnergyConservingContext,
    EnergyConservingKernel,
    certain_rows,
)
from modicum.kernels.likelihood_estimates import EMPTY
from modicum.kernels.moves import (
    Adaptation,
    AdaptationFlags,
    adapt,
    at_point,
    longest_step,
    start_adaptation,
)
from modicum.kernels.protocols import (
    Draw,
    Kernel,
    LogDensity,
    LogPosterior,
    Move,
    MoveInfo,
    Point,
    RowRequest,
)
from modicum.kernels.whitening import Whitening
from modicum.models.model import Batch
from modicum.runtime import Pytree


class FullDataContext(NamedTuple):
    """Constant inputs of the kernel."""

    where: Whitening
    n: jax.Array  # number of rows
    data: Pytree  # the rows, in the form that the log-posterior takes
    starts: ModeStarts | None = None  # starting points if there are several modes


class FullDataState(NamedTuple):
    """State of the chain, and adaptation."""

    point: Point  # in whitened coordinates z
    adaptation: Adaptation


class ModeStarts(NamedTuple):
    """Starting points of chains spread over several modes, in the chains' coordinates."""

    keys: jax.Array  # (chains, 2): words of each chain's first key, by which it finds its mode
    mode: jax.Array  # (chains,)
    centre: jax.Array  # (modes, d)
    spread: jax.Array | None  # (modes, d, d): factor of the scatter about a mode; None: no scatter


def exact_log_density(log_posterior: LogPosterior, where: Whitening, data: Pytree) -> LogDensity:
    """Return the log-density of a chain's coordinates, of which all rows are read."""

    def density(z: jax.Array) -> jax.Array:
        t, growth = where.parameters(z)
        log = log_posterior(t, data)
        return log if where.is_straight else log + growth

    return density


@dataclass(frozen=True)
class FullDataKernel(Kernel[FullDataState, FullDataContext]):
    """A Hamiltonian move on a log-posterior that reads every row.

    Parameters
    ----------
    log_posterior
        `log_posterior(t, data)`; hashable.
    move
        HMC or NUTS.
    target_accept
        Target acceptance rate of the step-size adaptation.
    first_step
        Initial step size; by default derived from the number of parameters.
    dense
        Whether warm-up learns a dense mass matrix rather than a diagonal one.
    """

    log_posterior: LogPosterior
    move: Move
    target_accept: float = 0.8
    first_step: float | None = None
    dense: bool = False

    def _log_density(self, context: FullDataContext) -> LogDensity:
        return exact_log_density(self.log_posterior, context.where, context.data)

    def init(self, key: jax.Array, batch: None, context: FullDataContext) -> FullDataState:
        """Start at a draw about the anchor, or about the mode assigned to this chain."""
        size = context.where.point.shape[0]
        z = jax.random.normal(key, (size,))
        if context.starts is not None:
            starts = context.starts
            chain = jnp.argmax(jnp.all(starts.keys == jax.random.key_data(key), axis=1))
            mode = starts.mode[chain]
            away = 0.0 if starts.spread is None else starts.spread[mode] @ z
            z = starts.centre[mode] + away
        point = at_point(z, self._log_density(context))
        return FullDataState(point, start_adaptation(size, self.first_step, dense=self.dense))

    def step(
        self,
        key: jax.Array,
        state: FullDataState,
        flags: AdaptationFlags,
        batch: None,
        context: FullDataContext,
    ) -> tuple[FullDataState, Draw]:
        """Follow one trajectory, and adapt to it during warm-up."""
        learned = state.adaptation
        move = partial(_move_dense, self.move) if self.dense else self.move
        point, info = move(
            key, state.point, self._log_density(context), learned.step_size, learned.inverse_mass
        )
        adaptation = adapt(learned, flags, point.position, info.acceptance_rate, self.target_accept)
        position, lp = context.where.to_record(point.position, point.logdensity)
        draw = {
            "position": position,
            "lp": lp,
            "step_size": learned.step_size,
            "rows_touched": info.n_steps * context.n,
            **info._asdict(),
        }
        return FullDataState(point, adaptation), draw


def _move_dense(
    move: Move,
    key: jax.Array,
    point: Point,
    logdensity: LogDensity,
    step_size: jax.Array,
    inverse_mass: jax.Array,
) -> tuple[Point, MoveInfo]:
    """Move with a dense inverse mass matrix F F': with unit mass in the coordinates z = z0 + F w.

    A rejected move leaves w at 0, and so z where it was.
    """
    factor = jnp.linalg.cholesky(inverse_mass)
    origin = jnp.zeros_like(point.position)
    start = Point(origin, point.logdensity, factor.T @ point.logdensity_grad)

    def shifted(w: jax.Array) -> jax.Array:
        return logdensity(point.position + factor @ w)

    end, info = move(key, start, shifted, step_size, jnp.ones_like(origin))
    slope = solve_triangular(factor.T, end.logdensity_grad, lower=False)
    stayed = jnp.all(end.position == 0)
    gradient = jnp.where(stayed, point.logdensity_grad, slope)
    return Point(point.position + factor @ end.position, end.logdensity, gradient), info


MOVES = 2  # HMC moves per proposal


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
class DelayedAcceptanceKernel(Kernel[DelayedAcceptanceState, DelayedAcceptanceContext]):
    """A surrogate transition kernel whose proposals come from an energy-conserving kernel.

    Parameters
    ----------
    surrogate
        The kernel that provides subsample, estimator and move for the proposals.
    log_posterior
        `log_posterior(t, data)` of all rows; hashable.
    """

    surrogate: EnergyConservingKernel
    log_posterior: LogPosterior

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
        return exact_log_density(self.log_posterior, context.surrogate.proxy.where, context.data)(z)

    def init(
        self, key: jax.Array, batch: Pytree, context: DelayedAcceptanceContext
    ) -> DelayedAcceptanceState:
        """Start at the surrogate's initial state."""
        state = self.surrogate.init(key, batch, context.surrogate)
        exact = self._exact_log_density(state.z, context)
        present = state.owners != EMPTY
        return DelayedAcceptanceState(state.z, exact, state.subsample, present, state.adaptation)

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
        for move_key_k in jax.random.split(move_key, MOVES):
            point, info = kernel.move(  # eqs. 3.6 and 3.7: reversible for exp(-Uhat), eq. 3.4
                move_key_k, point, density, learned.step_size, learned.inverse_mass
            )
            steps, rates = steps + info.n_steps, rates + info.acceptance_rate / MOVES
        exact = self._exact_log_density(point.position, context)
        # L(t') Lhat(t; u) / (L(t) Lhat(t'; u)); the priors, included in all four, cancel
        log_ratio = (exact - state.exact) + (start.logdensity - point.logdensity)
        accept = jnp.log(jax.random.uniform(accept_key)) < log_ratio
        z = jnp.where(accept, point.position, state.z)
        exact = jnp.where(accept, exact, state.exact)
        adaptation = adapt(
            learned, flags, z, rates, kernel.target_accept, longest_step(kernel.move)
        )
        at, _ = context.surrogate.proxy.where.straighten(z)
        values = kernel.control_variate.values(subsample, at, context.surrogate.proxy)
        described = (values, state.present, context.surrogate.estimator)
        estimate = kernel.estimator.combine(*described)
        position, lp = context.surrogate.proxy.where.to_record(z, exact)
        draw = {
            "position": position,
            "lp": lp,
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
        return DelayedAcceptanceState(z, exact, subsample, state.present, adaptation), draw
