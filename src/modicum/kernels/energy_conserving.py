"""Energy-conserving subsampling: HMC whose dynamics and acceptance use the same subsample.

One iteration (Algorithm 1 of the HMC-ECS paper): refresh part of the subsample u by a
pseudo-marginal step at fixed parameters, then move the parameters at fixed u by any kernel that
leaves the conditional density invariant.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from modicum.kernels.adaptation import Adaptation, AdaptationFlags, adapt, start_adaptation
from modicum.kernels.base import (
    ControlVariate,
    Draw,
    Estimator,
    Move,
    Proxy,
    RowDesign,
    RowRequest,
    is_straight,
    recorded,
    straighten,
)
from modicum.kernels.moves import (
    Density,
    PathChances,
    is_plain_hmc,
    longest_step,
    move_afresh,
    path_chances,
    path_size,
)
from modicum.kernels.slices import entry, put, take
from modicum.models.base import Batch
from modicum.random import log_uniform, normal, symmetric_uniforms, unrelated_key
from modicum.runtime import Pytree

__all__ = [
    "EnergyConservingContext",
    "EnergyConservingKernel",
    "EnergyConservingState",
    "certain_rows",
    "replace_blocks",
]


class EnergyConservingContext(NamedTuple):
    """Constant inputs of the kernel."""

    proxy: Proxy
    design: Pytree  # the design's tables
    estimator: Pytree  # the estimator's tables
    constant: jax.Array  # the constant that the log-density omits
    certain: Pytree = None  # cached rows that every evaluation reads; None if there are none
    # Cached rows whose residuals sum to nearly l - sum q over the rows that are drawn, which the
    # estimator takes as its expectation. None: the expectation is constant.
    coreset: Pytree = None


class EnergyConservingState(NamedTuple):
    """State of the chain: parameters, subsample, and adaptation."""

    z: jax.Array  # whitened coordinates, possibly warped or curved
    subsample: Pytree  # cached rows, in blocks
    present: jax.Array  # which parts of the blocks are present
    values: jax.Array  # D of each row at z
    log: jax.Array  # what the estimator makes of them: log |Lhat| - sum q
    adaptation: Adaptation


class RefreshChances(NamedTuple):
    """The random numbers of a refresh."""

    block: jax.Array  # the blocks to propose anew
    log_uniform: jax.Array  # decide which proposals are accepted
    present: jax.Array  # which parts of the fresh blocks are present


class StepChances(NamedTuple):
    """The random numbers of one iteration."""

    refresh: RefreshChances
    move: PathChances | jax.Array  # a key for moves that draw their own numbers


class Refreshed(NamedTuple):
    """Result of a refresh."""

    acceptance_rate: jax.Array
    rows: jax.Array  # fresh rows that were evaluated


@dataclass(frozen=True)
class EnergyConservingKernel:
    """HMC-ECS with any control variate, estimator, design and move.

    Parameters
    ----------
    control_variate
        Computes residuals of rows about the anchor.
    estimator
        Turns residuals into a log-likelihood estimate (see `modicum.estimators`).
    design
        Draws the rows.
    move
        Moves the parameters at a fixed subsample.
    subsample, blocks, refreshes
        The subsample has m rows in G blocks, of which K are proposed anew per iteration.
    target_accept
        Target acceptance rate of the step-size adaptation.
    spread
        Chains start at `spread` posterior standard deviations about the anchor.
    first_step
        Initial step size; by default derived from the number of parameters.
    """

    control_variate: ControlVariate[Pytree]
    estimator: Estimator[Pytree]
    design: RowDesign
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

    def initial_row_request(self, key: jax.Array, context: EnergyConservingContext) -> RowRequest:
        """Request a whole subsample."""
        return self.design.draw(key, self.subsample, context.design)

    def row_request(self, key: jax.Array, context: EnergyConservingContext) -> RowRequest:
        """Request the rows of the blocks to be proposed, which depend on the key alone."""
        return self.design.draw(key, self.refreshes * self.block, context.design)

    def prepare(self, batch: Batch, context: EnergyConservingContext) -> Pytree:
        """Whiten and expand the rows just read."""
        return self.control_variate.cache(batch, context.proxy)

    def log_density(
        self, subsample: Pytree, present: jax.Array, context: EnergyConservingContext
    ) -> Density:
        """log |Lhat(z; u)| + log prior, up to a constant (minus eq. 3.4), and D of each row.

        The residuals of certainty rows are added exactly: they do not depend on u.
        """
        proxy, cv = context.proxy, self.control_variate

        def density(z: jax.Array) -> tuple[jax.Array, jax.Array]:
            s, growth = straighten(z, proxy)
            values = cv.values(subsample, s, proxy)
            estimate = self.estimator.combine(values, present, self._expected(s, context))
            log = cv.log_proxy(s, proxy) + estimate.log  # eq. 4.1 within eq. 4.5, or eq. 5.1
            if context.certain is not None:
                log += jnp.sum(cv.values(context.certain, s, proxy))
            return (log if is_straight(proxy) else log + growth), values

        return density

    def _expected(self, s: jax.Array, context: EnergyConservingContext) -> Pytree:
        """Return the estimator's tables at these parameters, independent of u."""
        if context.coreset is None:
            return context.estimator
        residuals = self.control_variate.values(context.coreset, s, context.proxy)
        return self.estimator.about(context.estimator, jnp.sum(residuals))

    def init(
        self, key: jax.Array, batch: Pytree, context: EnergyConservingContext
    ) -> EnergyConservingState:
        """Start at a draw about the anchor with a fresh subsample."""
        proxy = context.proxy
        size = proxy.point.shape[0]
        z = self.spread * normal(symmetric_uniforms(key, (size,), proxy.point.dtype))
        present = self.estimator.present(unrelated_key(key), self.blocks)
        at, _ = straighten(z, proxy)
        values = self.control_variate.values(batch, at, proxy)
        log = self.estimator.combine(values, present, self._expected(at, context)).log
        adaptation = start_adaptation(size, self.first_step, adapt_mass=False)
        return EnergyConservingState(z, batch, present, values, log, adaptation)

    def chances(self, key: jax.Array, context: EnergyConservingContext) -> StepChances:
        """Draw the random numbers of an iteration."""
        point, count = context.proxy.point, 2 * self.refreshes
        is_hmc = is_plain_hmc(self.move)
        of_move = path_size(point) if is_hmc else 0
        uniform = symmetric_uniforms(key, (count + of_move,), point.dtype)
        place = (1 + uniform[: self.refreshes]) / 2 * self.blocks
        refresh = RefreshChances(
            jnp.minimum(place.astype(jnp.uint32), self.blocks - 1),
            log_uniform(uniform[self.refreshes : count]),
            self.estimator.present(unrelated_key(key), self.refreshes),
        )
        move = path_chances(uniform[count:]) if is_hmc else unrelated_key(key, 1)
        return StepChances(refresh, move)

    def step(
        self,
        chances: StepChances,
        state: EnergyConservingState,
        flags: AdaptationFlags,
        batch: Pytree,
        context: EnergyConservingContext,
    ) -> tuple[EnergyConservingState, Draw]:
        """Refresh some blocks of the subsample, then move the parameters."""
        subsample, present, refreshed = self.refresh(chances.refresh, state, batch, context)
        packed, filled = self.estimator.pack(subsample, present)
        density = self.log_density(packed, filled, context)
        learned = state.adaptation
        point, info, evaluations = move_afresh(  # eqs. 3.6 and 3.7 at fixed u
            self.move, chances.move, state.z, density, learned.step_size, learned.inverse_mass
        )
        rate, values = info.acceptance_rate, point.by_product
        adaptation = adapt(
            learned, flags, point.position, rate, self.target_accept, longest_step(self.move)
        )
        at, growth = straighten(point.position, context.proxy)
        logdensity = point.logdensity
        if not is_straight(context.proxy):
            logdensity -= growth
        tables = self._expected(at, context)
        estimate = self.estimator.combine(values, filled, tables)
        draw = {
            "position": recorded(at, context.proxy),
            "lp": logdensity + context.constant,
            "step_size": learned.step_size,
            "acceptance_rate_u": refreshed.acceptance_rate,
            "rows_touched": refreshed.rows
            + (self.rows_present(present) + certain_rows(context)) * evaluations
            + 2 * _count(context.coreset),  # in the refresh, and for the recorded statistics
            **self.estimator.describe(estimate, values, filled, tables),
            **info._asdict(),
        }
        values = self.estimator.unpack(values, present)
        after = (point.position, subsample, present, values, estimate.log, adaptation)
        return EnergyConservingState(*after), draw

    def rows_present(self, present: jax.Array) -> jax.Array:
        """Number of rows in the parts that are present."""
        return jnp.sum(present) * (self.block // self.estimator.parts)

    def refresh(
        self,
        chances: RefreshChances,
        state: EnergyConservingState,
        fresh: Pytree,
        context: EnergyConservingContext,
    ) -> tuple[Pytree, jax.Array, Refreshed]:
        """Propose K blocks one after the other, each accepted by eq. 3.5.

        Return the rows, which parts of them are present, and the acceptance rate and cost.
        """
        at, _ = straighten(state.z, context.proxy)
        fresh_values = self.control_variate.values(fresh, at, context.proxy)
        tables = self._expected(at, context)

        def log_of(values: jax.Array, present: jax.Array) -> jax.Array:
            return self.estimator.combine(values, present, tables).log

        def propose(k: jax.Array, carry: Pytree) -> Pytree:
            current, log_now, accepted = carry
            k = k.astype(jnp.uint32)
            block, limit = entry((chances.block, chances.log_uniform), k)
            swap = partial(self._swap, k, block)
            log_then = log_of(*map(swap, current[1:], offered[1:]))
            accept = limit < log_then - log_now  # eq. 3.5
            after = jax.tree.map(partial(swap, accept=accept), current, offered)
            return after, jnp.where(accept, log_then, log_now), accepted + accept

        offered = (fresh, fresh_values, chances.present)
        start = (state.subsample, state.values, state.present)
        carry = (start, state.log, jnp.zeros((), int))
        (subsample, _, present), _, accepted = jax.lax.fori_loop(0, self.refreshes, propose, carry)
        fresh_rows = self.rows_present(chances.present)
        return subsample, present, Refreshed(accepted / self.refreshes, fresh_rows)

    def _swap(
        self,
        k: jax.Array,
        block: jax.Array,
        all_: jax.Array,
        new: jax.Array,
        accept: bool | jax.Array = True,
    ) -> jax.Array:
        """Replace a block by the k-th fresh block if `accept` is true."""
        size = new.shape[0] // self.refreshes
        part = take(new, k * size, size)
        part = jnp.where(accept, part, take(all_, block * size, size))
        return put(all_, part, block * size)


def certain_rows(context: EnergyConservingContext) -> int:
    """Number of rows that every evaluation reads."""
    return _count(context.certain) + _count(context.coreset)


def _count(cached: Pytree) -> int:
    """Number of cached rows."""
    leaves = jax.tree.leaves(cached)
    return leaves[0].shape[0] if leaves else 0


def replace_blocks(subsample: Pytree, fresh: Pytree, blocks: jax.Array, size: int) -> Pytree:
    """Put `fresh` rows, `size` at a time, in place of the given blocks of the subsample."""

    def replace_block(k: jax.Array, kept: Pytree) -> Pytree:
        return jax.tree.map(
            lambda all_, new: put(all_, take(new, k * size, size), blocks[k] * size), kept, fresh
        )

    return jax.lax.fori_loop(0, blocks.shape[0], replace_block, subsample)
