"""HMC and NUTS with all rows, in whitened coordinates about the anchor: the reference method."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.scipy.linalg import solve_triangular

from modicum.kernels.adaptation import Adaptation, AdaptationFlags, adapt, start_adaptation
from modicum.kernels.base import (
    Draw,
    LogDensity,
    LogPosterior,
    Move,
    MoveInfo,
    Point,
    Warp,
)
from modicum.kernels.coordinates import (
    coordinates_to_record,
    displacement,
    is_straight,
    straighten,
    unwhiten,
)
from modicum.kernels.curved_axes import Curves
from modicum.kernels.moves import at_point
from modicum.models.arrow import ArrowFactor
from modicum.models.base import Batch
from modicum.runtime import Pytree


class FullDataContext(NamedTuple):
    """Constant inputs of the kernel."""

    point: jax.Array  # t*
    factor: jax.Array | ArrowFactor  # L
    n: jax.Array  # number of rows
    data: Pytree  # the rows, in the form that the log-posterior takes
    starts: ModeStarts | None = None  # starting points if there are several modes
    warp: Warp | None = None  # entries that a chain moves with a scale
    curves: Curves | None = None  # curved axes, along which the posterior is skewed


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


@dataclass(frozen=True)
class FullDataKernel:
    """A Hamiltonian move on a log-posterior that reads every row.

    Parameters
    ----------
    log_posterior
        `log_posterior(t, data)`; hashable.
    move
        HMC or NUTS.
    target_accept
        Target acceptance rate of the step-size adaptation.
    spread
        Chains start at `spread` posterior standard deviations about the anchor.
    first_step
        Initial step size; by default derived from the number of parameters.
    dense
        Whether warm-up learns a dense mass matrix rather than a diagonal one.
    """

    log_posterior: LogPosterior
    move: Move
    target_accept: float = 0.8
    spread: float = 1.0
    first_step: float | None = None
    dense: bool = False

    def initial_row_request(self, key: jax.Array, context: FullDataContext) -> None:
        """Request nothing: all rows are in the context."""

    def row_request(self, key: jax.Array, context: FullDataContext) -> None:
        """Request nothing: all rows are in the context."""

    def prepare(self, batch: Batch, context: FullDataContext) -> None:
        """Return nothing: no rows are requested."""
        del batch, context

    def _log_density(self, context: FullDataContext) -> LogDensity:
        if is_straight(context):
            return lambda z: self.log_posterior(unwhiten(z, context), context.data)

        def density(z: jax.Array) -> jax.Array:
            s, growth = straighten(z, context)
            t = context.point + displacement(s, context)
            return self.log_posterior(t, context.data) + growth

        return density

    def init(self, key: jax.Array, batch: None, context: FullDataContext) -> FullDataState:
        """Start at a draw about the anchor, or about the mode assigned to this chain."""
        del batch
        size = context.point.shape[0]
        z = self.spread * jax.random.normal(key, (size,))
        if context.starts is not None:
            starts = context.starts
            chain = jnp.argmax(jnp.all(starts.keys == jax.random.key_data(key), axis=1))
            mode = starts.mode[chain]
            away = 0.0 if starts.spread is None else starts.spread[mode] @ z
            z = starts.centre[mode] + away
        point = at_point(z, self._log_density(context))
        return FullDataState(point, start_adaptation(size, self.first_step, dense=self.dense))

    def chances(self, key: jax.Array, context: FullDataContext) -> jax.Array:
        """Return the key: a step draws its own random numbers."""
        del context
        return key

    def step(
        self,
        key: jax.Array,
        state: FullDataState,
        flags: AdaptationFlags,
        batch: None,
        context: FullDataContext,
    ) -> tuple[FullDataState, Draw]:
        """Follow one trajectory, and adapt to it during warm-up."""
        del batch
        learned = state.adaptation
        move = partial(_move_dense, self.move) if self.dense else self.move
        point, info = move(
            key, state.point, self._log_density(context), learned.step_size, learned.inverse_mass
        )
        adaptation = adapt(learned, flags, point.position, info.acceptance_rate, self.target_accept)
        at, growth = straighten(point.position, context)
        draw = {
            "position": coordinates_to_record(at, context),
            "lp": point.logdensity if is_straight(context) else point.logdensity - growth,
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
