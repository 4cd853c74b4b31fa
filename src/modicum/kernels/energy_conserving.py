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

from modicum.arrays import entry, take
from modicum.kernels.likelihood_estimates import EMPTY, Estimator
from modicum.kernels.moves import (
    Adaptation,
    AdaptationFlags,
    Density,
    HMCMove,
    PathChances,
    adapt,
    longest_step,
    move_afresh,
    path_chances,
    path_size,
    start_adaptation,
)
from modicum.kernels.protocols import (
    ControlVariate,
    Draw,
    Kernel,
    Move,
    Proxy,
    RowDesign,
    RowRequest,
    number_of_rows,
)
from modicum.models.model import Batch
from modicum.random import log_uniform, normal, symmetric_uniforms, unrelated_key
from modicum.runtime import Pytree


class EnergyConservingContext(NamedTuple):
    """Constant inputs of the kernel."""

    proxy: Proxy
    design: Pytree  # the design's tables
    estimator: Pytree  # the estimator's tables
    constant: jax.Array  # the constant that the log-density omits
    certain: Pytree = None  # cached rows that every evaluation reads; None if there are none
    # Cached rows whose residuals sum to nearly l - sum q over the rows that are drawn, which the
    # estimator takes as its expectation. None: the expectation is constant. Chains keep them with
    # their subsample, so that both are evaluated together.
    coreset: Pytree = None


class EnergyConservingState(NamedTuple):
    """State of the chain: parameters, subsample, and adaptation."""

    z: jax.Array  # whitened coordinates, possibly warped or curved
    subsample: Pytree  # cached rows: those of the estimator's slots, then the coreset's
    owners: jax.Array  # the block whose part is in each slot; EMPTY: none
    values: jax.Array  # D of each row at z
    log: jax.Array  # what the estimator makes of them: log |Lhat| - sum q
    adaptation: Adaptation


class RefreshChances(NamedTuple):
    """The random numbers of a refresh."""

    block: jax.Array  # the blocks to propose anew
    log_uniform: jax.Array  # decide which proposals are accepted
    counts: jax.Array  # number of parts of each fresh block


class IterationChances(NamedTuple):
    """The random numbers of one iteration."""

    refresh: RefreshChances
    move: PathChances | jax.Array  # a key for moves that draw their own numbers


@dataclass(frozen=True)
class EnergyConservingKernel(Kernel[EnergyConservingState, EnergyConservingContext]):
    """HMC-ECS with any control variate, estimator, design and move.

    Parameters
    ----------
    control_variate
        Computes residuals of rows about the anchor.
    estimator
        Turns residuals into a log-likelihood estimate (see `modicum.kernels.likelihood_estimates`).
    design
        Draws the rows.
    move
        Moves the parameters at a fixed subsample.
    subsample, blocks, refreshes
        The subsample has m rows in G blocks, of which K are proposed anew per iteration.
    target_accept
        Target acceptance rate of the step-size adaptation.
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

        `subsample` ends with the coreset's rows. The residuals of certainty rows are added exactly:
        they do not depend on u.
        """
        proxy, cv = context.proxy, self.control_variate

        def density(z: jax.Array) -> tuple[jax.Array, jax.Array]:
            s, growth = proxy.where.straighten(z)
            values = cv.values(subsample, s, proxy)
            estimate = self.estimator.combine(*self._inputs(values, present, context))
            log = cv.log_proxy(s, proxy) + estimate.log  # eq. 4.1 within eq. 4.5, or eq. 5.1
            if context.certain is not None:
                log += jnp.sum(cv.values(context.certain, s, proxy))
            return (log if proxy.where.is_straight else log + growth), values

        return density

    def _inputs(
        self, values: jax.Array, present: jax.Array, context: EnergyConservingContext
    ) -> tuple[jax.Array, jax.Array, Pytree]:
        """Return what the estimator combines: D of its rows, and tables independent of u."""
        last = number_of_rows(context.coreset)
        if not last:
            return values, present, context.estimator
        own, residuals = values[:-last], values[-last:]
        tables = self.estimator.raise_expectation(context.estimator, jnp.sum(residuals))
        return own, present, tables

    def init(
        self, key: jax.Array, batch: Pytree, context: EnergyConservingContext
    ) -> EnergyConservingState:
        """Start at a draw about the anchor with a fresh subsample."""
        proxy = context.proxy
        size = proxy.where.point.shape[0]
        z = normal(symmetric_uniforms(key, (size,), proxy.where.point.dtype))
        counts = self.estimator.counts(key, self.blocks)
        subsample, owners = self.estimator.arrange(batch, counts)
        subsample = with_coreset(subsample, context)
        at, _ = proxy.where.straighten(z)
        values = self.control_variate.values(subsample, at, proxy)
        log = self.estimator.combine(*self._inputs(values, owners != EMPTY, context)).log
        adaptation = start_adaptation(size, self.first_step, adapt_mass=False)
        return EnergyConservingState(z, subsample, owners, values, log, adaptation)

    def chances(self, key: jax.Array, context: EnergyConservingContext) -> IterationChances:
        """Draw the random numbers of an iteration."""
        point, count = context.proxy.where.point, 2 * self.refreshes
        is_hmc = type(self.move) is HMCMove  # a subclass may do otherwise
        of_move = path_size(point) if is_hmc else 0
        uniform = symmetric_uniforms(key, (count + of_move,), point.dtype)
        place = (1 + uniform[: self.refreshes]) / 2 * self.blocks
        refresh = RefreshChances(
            jnp.minimum(place.astype(jnp.uint32), self.blocks - 1),
            log_uniform(uniform[self.refreshes : count]),
            self.estimator.counts(key, self.refreshes),
        )
        move = path_chances(uniform[count:]) if is_hmc else unrelated_key(key, 1)
        return IterationChances(refresh, move)

    def step(
        self,
        chances: IterationChances,
        state: EnergyConservingState,
        flags: AdaptationFlags,
        batch: Pytree,
        context: EnergyConservingContext,
    ) -> tuple[EnergyConservingState, Draw]:
        """Refresh some blocks of the subsample, then move the parameters."""
        subsample, owners, rate_u = self.refresh(chances.refresh, state, batch, context)
        present = owners != EMPTY
        density = self.log_density(subsample, present, context)
        learned = state.adaptation
        point, info, evaluations = move_afresh(  # eqs. 3.6 and 3.7 at fixed u
            self.move, chances.move, state.z, density, learned.step_size, learned.inverse_mass
        )
        rate, values = info.acceptance_rate, point.by_product
        adaptation = adapt(
            learned, flags, point.position, rate, self.target_accept, longest_step(self.move)
        )
        position, lp = context.proxy.where.to_record(point.position, point.logdensity)
        inputs = self._inputs(values, present, context)
        estimate = self.estimator.combine(*inputs)
        draw = {
            "position": position,
            "lp": lp + context.constant,
            "step_size": learned.step_size,
            "acceptance_rate_u": rate_u,
            "rows_touched": jnp.sum(chances.refresh.counts) * self.part
            + (jnp.sum(present) * self.part + certain_rows(context)) * evaluations,
            **self.estimator.describe(estimate, *inputs),
            **info._asdict(),
        }
        after = (point.position, subsample, owners, values, estimate.log, adaptation)
        return EnergyConservingState(*after), draw

    @property
    def part(self) -> int:
        """Rows in a part of a block."""
        return self.block // self.estimator.parts

    def refresh(
        self,
        chances: RefreshChances,
        state: EnergyConservingState,
        fresh: Pytree,
        context: EnergyConservingContext,
    ) -> tuple[Pytree, jax.Array, jax.Array]:
        """Propose K blocks one after the other, each accepted by eq. 3.5.

        Return the rows, the block of each slot, and the acceptance rate.
        """
        at, _ = context.proxy.where.straighten(state.z)
        fresh_values = self.control_variate.values(fresh, at, context.proxy)

        def propose(k: jax.Array, carry: Pytree) -> Pytree:
            (subsample, values, owners), log_now, accepted = carry
            k = k.astype(jnp.uint32)
            block, limit, count = entry(chances, k)
            rows, of_rows = jax.tree.map(
                lambda each: take(each, k * self.block, self.block), (fresh, fresh_values)
            )
            slots, owners_then, fits = self.estimator.place(block, count, owners)
            replace = partial(self.estimator.replace, slots=slots)
            inputs = self._inputs(replace(values, of_rows), owners_then != EMPTY, context)
            log_then = self.estimator.combine(*inputs).log
            accept = fits & (limit < log_then - log_now)  # eq. 3.5
            replace = partial(replace, accept=accept)
            subsample = jax.tree.map(replace, subsample, rows)
            values, owners = replace(values, of_rows), jnp.where(accept, owners_then, owners)
            log_now = jnp.where(accept, log_then, log_now)
            return (subsample, values, owners), log_now, accepted + accept

        start = (state.subsample, state.values, state.owners)
        carry = (start, state.log, jnp.zeros((), int))
        (subsample, _, owners), _, accepted = jax.lax.fori_loop(0, self.refreshes, propose, carry)
        return subsample, owners, accepted / self.refreshes


def certain_rows(context: EnergyConservingContext) -> int:
    """Number of rows that every evaluation reads."""
    return number_of_rows(context.certain) + number_of_rows(context.coreset)


def with_coreset(subsample: Pytree, context: EnergyConservingContext) -> Pytree:
    """Return the subsample followed by the coreset's rows, if there is a coreset."""
    if context.coreset is None:
        return subsample
    return jax.tree.map(
        lambda rows, last: jnp.concatenate([rows, last.astype(rows.dtype)]),
        subsample,
        context.coreset,
    )
