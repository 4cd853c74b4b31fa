"""Firefly Monte Carlo (Maclaurin and Adams 2014): exact, at the price of the bright rows.

Each row has a light z_k, on with probability 1 - B_k / L_k given the parameters. One iteration
updates the lights at fixed parameters, then moves the parameters at fixed lights, where the
log-density is log p(t) + sum_k log B_k + sum over bright k of log r_k, r_k = (L_k - B_k) / B_k.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp

from modicum.kernels.adaptation import Adaptation, Signal, adapt, start_adaptation
from modicum.kernels.base import Context, Draw
from modicum.kernels.bright import Bright, Proposed, first_lit, merge, overlap, skip_through
from modicum.kernels.lights import Seen, explicit, implicit
from modicum.kernels.moves import Move, at_point

__all__ = ["Candidates", "FlyKernel", "FlyState"]

UPDATES = {"implicit": implicit, "explicit": explicit}


class FlyState(NamedTuple):
    """Where the chain is: parameters, bright rows, and what warm-up knows."""

    z: jax.Array  # whitened coordinates
    bright: Bright
    adaptation: Adaptation


class Candidates(NamedTuple):
    """Rows that may be bright at the start, each kept with a known chance."""

    rows: jax.Array
    number: jax.Array
    chance: jax.Array


class Update(NamedTuple):
    """What an update of the lights did."""

    bright: Bright
    touched: jax.Array  # rows evaluated
    refused: jax.Array  # there was no room for the bright rows


@dataclass(frozen=True)
class FlyKernel:
    """FlyMC over any bounded rows and any move.

    Parameters
    ----------
    bounded
        `cache`, `log_ratio` and `log_base` of rows (see `estimators.BoundedRows`); hashable.
    move
        The step in the parameters at fixed lights.
    capacity
        The most bright rows there is room for.
    proposals
        The most rows an update of the lights may read.
    update
        "implicit": every bright row may go dark, and each dark row is tried with probability q,
        the context's `rate`. "explicit": each row's light is drawn anew with that probability.
    target_accept
        The acceptance rate the step size is tuned for.
    spread
        Chains start at `spread` posterior standard deviations about the anchor.
    first_step
        Step size to start from; by default guessed from the number of parameters.
    """

    bounded: Any
    move: Move
    capacity: int
    proposals: int
    update: Literal["implicit", "explicit"] = "implicit"
    target_accept: float = 0.8
    spread: float = 1.0
    first_step: float | None = None

    def wants_at_start(self, key: jax.Array, context: Context) -> Candidates:
        """Rows that are likely to be bright, found by a pass before the run."""
        del key
        return Candidates(**context["start"])

    def wants(self, key: jax.Array, context: Context) -> Proposed:
        """The rows whose lights are tried; they depend on the key alone."""
        return skip_through(key, context["rate"], context["n"], self.proposals)

    def prepare(self, batch: Any, context: Context) -> Any:
        """Find where the rows' bounds are tight; keep what travelled with them."""
        names = {*Proposed._fields, *Candidates._fields} - {"rows"}
        travelled = {name: batch[name] for name in names if name in batch}
        return travelled | {"rows": self.bounded.cache(batch, context["bound"])}

    def init(self, key: jax.Array, batch: Any, context: Context) -> FlyState:
        """Start at a draw about the anchor with lights drawn there."""
        where_key, light_key = jax.random.split(key)
        n, size = context["n"], context["bound"]["point"].shape[0]
        z = self.spread * jax.random.normal(where_key, (size,))
        log_r = self.bounded.log_ratio(batch["rows"], z, context["bound"])
        # a candidate was kept with a chance of its own, which is taken off here
        chance = jax.nn.sigmoid(log_r) / batch["chance"]
        on = (jax.random.uniform(light_key, chance.shape) < chance) & (batch["number"] < n)
        bright = first_lit(Bright(batch["number"], batch["rows"]), on, self.capacity, n)
        return FlyState(z, bright, start_adaptation(size, self.first_step))

    def log_density(self, bright: Bright, context: Context) -> Callable[[jax.Array], jax.Array]:
        """Log-density of the parameters given the lights, log prior included."""
        lit = bright.number < context["n"]

        def density(z: jax.Array) -> jax.Array:
            log_r = self.bounded.log_ratio(bright.rows, z, context["bound"])
            return self.bounded.log_base(z, context["bound"]) + jnp.sum(jnp.where(lit, log_r, 0.0))

        return density

    def step(
        self, key: jax.Array, state: FlyState, signal: Signal, batch: Any, context: Context
    ) -> tuple[FlyState, Draw]:
        """Update the lights, then move the parameters."""
        light_key, move_key = jax.random.split(key)
        bright, touched, refused = self.update_lights(light_key, state, batch, context)
        density = self.log_density(bright, context)
        learned = state.adaptation
        before = at_point(state.z, density)
        point, info = self.move(move_key, before, density, learned.step_size, learned.inverse_mass)
        adaptation = adapt(
            learned, signal, point.position, info.acceptance_rate, self.target_accept
        )
        count = jnp.sum(bright.number < context["n"])
        draw = {
            "position": point.position,
            "lp": point.logdensity,
            "step_size": learned.step_size,
            "n_bright": count,
            "bright_refused": refused,
            # the update of the lights; the density after it, and those of the move
            "rows_touched": touched + count * (info.n_steps + 1),
            **info._asdict(),
            # A bright row has no density where its bound is tight. A trajectory that comes near is
            # thrown far and rejected, which is no sign that a part of the posterior is missing:
            # the row goes dark there for certain. What counts are energies that are no numbers.
            "diverging": ~jnp.isfinite(info.energy),
        }
        return FlyState(point.position, bright, adaptation), draw

    def update_lights(
        self, key: jax.Array, state: FlyState, batch: Any, context: Context
    ) -> Update:
        """Let the lights change, unless there is no room for the bright rows.

        Refusing then is exact for another law: that of parameters and lights given that no more
        than `capacity` rows are bright. As long as nothing was refused the two cannot be told
        apart.
        """
        n, bright = context["n"], state.bright
        tried = Bright(batch["number"], batch["rows"])
        both = overlap(bright.number, tried.number, n)
        seen = Seen(
            bright.number,
            self.bounded.log_ratio(bright.rows, state.z, context["bound"]),
            tried.number,
            self.bounded.log_ratio(tried.rows, state.z, context["bound"]),
            both,
            batch["complete"],
            context["rate"],
            n,
        )
        change = UPDATES[self.update](key, seen)
        after, count = merge(bright, change.stay, tried, change.join, both, n)
        refused = count > self.capacity
        made = change.possible & ~refused
        kept = jax.tree.map(lambda a, b: jnp.where(made, a, b), after, bright)
        return Update(kept, change.touched, refused)
