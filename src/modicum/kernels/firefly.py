"""Firefly Monte Carlo (Maclaurin and Adams 2014): exact, evaluating only the bright rows.

Each row has a light z_k, on with probability 1 - B_k / L_k given the parameters. One iteration
updates the lights at fixed parameters, then moves the parameters at fixed lights, where the
log-density is log p(t) + sum_k log B_k + sum over bright k of log r_k, r_k = (L_k - B_k) / B_k.

This file defines the kernel, then the updates of the lights, then the list of bright rows: row
numbers in ascending order, padded at the end with n, which means "no row". A binary search tells
whether a row is bright, and an update merges two sorted lists.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp

from modicum.kernels.bounds import BoundedRows, BoundSums
from modicum.kernels.moves import Adaptation, AdaptationFlags, adapt, at_point, start_adaptation
from modicum.kernels.protocols import Draw, Kernel, LogDensity, Move
from modicum.models.model import Batch
from modicum.runtime import Pytree


class FlyContext(NamedTuple):
    """Constant inputs of the kernel."""

    bound: BoundSums
    n: jax.Array  # number of rows
    rate: jax.Array  # the probability q with which an update tries a row
    start: Candidates


class Candidates(NamedTuple):
    """Rows that may be bright at the start, each included with a known probability."""

    row_ids: jax.Array
    number: jax.Array
    chance: jax.Array


class FlyState(NamedTuple):
    """State of the chain: parameters, bright rows, and adaptation."""

    z: jax.Array  # whitened coordinates
    bright: Bright
    adaptation: Adaptation


class PreparedRows(NamedTuple):
    """Requested rows, after they have been read: candidates, or those whose lights are tried."""

    rows: Bright
    known: jax.Array  # the chance of each candidate, or whether the rows tried are complete


@dataclass(frozen=True)
class FlyKernel(Kernel[FlyState, FlyContext]):
    """FlyMC with any lower bounds and any move.

    Parameters
    ----------
    bounded
        `cache`, `log_ratio` and `log_base` of rows (see `modicum.kernels.bounds`); hashable.
    move
        Moves the parameters at fixed lights.
    capacity
        Maximum number of bright rows.
    proposals
        Maximum number of rows that an update of the lights reads.
    update
        "implicit": every bright row may go dark, and each dark row is tried with probability q,
        the context's `rate`. "explicit": each row's light is drawn anew with that probability.
    target_accept
        Target acceptance rate of the step-size adaptation.
    first_step
        Initial step size; by default derived from the number of parameters.
    """

    bounded: BoundedRows
    move: Move
    capacity: int
    proposals: int
    update: Literal["implicit", "explicit"] = "implicit"
    target_accept: float = 0.8
    first_step: float | None = None

    def initial_row_request(self, key: jax.Array, context: FlyContext) -> Candidates:
        """Request the rows that may be bright, found by a pass before the run."""
        return context.start

    def row_request(self, key: jax.Array, context: FlyContext) -> Proposed:
        """Request the rows whose lights are tried, which depend on the key alone."""
        return skip_through(key, context.rate, context.n, self.proposals)

    def prepare(self, batch: Batch, context: FlyContext) -> PreparedRows:
        """Find where the rows' bounds are tight, and keep the request's other arrays."""
        cached = self.bounded.cache(batch, context.bound.where.point)
        rows = Bright(jnp.asarray(batch["number"]), cached)
        return PreparedRows(rows, jnp.asarray(batch["chance" if "chance" in batch else "complete"]))

    def init(self, key: jax.Array, batch: PreparedRows, context: FlyContext) -> FlyState:
        """Start at a draw about the anchor with lights drawn there."""
        where_key, light_key = jax.random.split(key)
        n, size = context.n, context.bound.where.point.shape[0]
        z = jax.random.normal(where_key, (size,))
        log_r = self.bounded.log_ratio(batch.rows.rows, z, context.bound)
        # divided by the probability with which the row became a candidate
        chance = jax.nn.sigmoid(log_r) / batch.known
        on = (jax.random.uniform(light_key, chance.shape) < chance) & (batch.rows.number < n)
        # the first rows that are on, as many as there is room for
        source = jnp.nonzero(on, size=self.capacity, fill_value=0)[0]
        number = jnp.where(jnp.arange(self.capacity) < jnp.sum(on), batch.rows.number[source], n)
        bright = Bright(number, jax.tree.map(lambda values: values[source], batch.rows.rows))
        return FlyState(z, bright, start_adaptation(size, self.first_step))

    def log_density(self, bright: Bright, context: FlyContext) -> LogDensity:
        """Log-density of the parameters given the lights, log prior included."""
        lit = bright.number < context.n

        def density(z: jax.Array) -> jax.Array:
            log_r = self.bounded.log_ratio(bright.rows, z, context.bound)
            return self.bounded.log_base(z, context.bound) + jnp.sum(jnp.where(lit, log_r, 0.0))

        return density

    def step(
        self,
        key: jax.Array,
        state: FlyState,
        flags: AdaptationFlags,
        batch: PreparedRows,
        context: FlyContext,
    ) -> tuple[FlyState, Draw]:
        """Update the lights, then move the parameters."""
        light_key, move_key = jax.random.split(key)
        bright, touched, refused = self.update_lights(light_key, state, batch, context)
        density = self.log_density(bright, context)
        learned = state.adaptation
        before = at_point(state.z, density)
        point, info = self.move(move_key, before, density, learned.step_size, learned.inverse_mass)
        adaptation = adapt(learned, flags, point.position, info.acceptance_rate, self.target_accept)
        count = jnp.sum(bright.number < context.n)
        draw = {
            "position": point.position,
            "lp": point.logdensity,
            "step_size": learned.step_size,
            "n_bright": count,
            "bright_refused": refused,
            # the update of the lights, then the density at its end and along the move
            "rows_touched": touched + count * (info.n_steps + 1),
            **info._asdict(),
            # A bright row's factor is zero where its bound is tight, and trajectories that come
            # near are rejected. No part of the posterior is missed, since the row is certain to go
            # dark there. Only non-finite energies count as divergences.
            "diverging": ~jnp.isfinite(info.energy),
        }
        return FlyState(point.position, bright, adaptation), draw

    def update_lights(
        self, key: jax.Array, state: FlyState, batch: PreparedRows, context: FlyContext
    ) -> tuple[Bright, jax.Array, jax.Array]:
        """Update the lights, unless the bright rows would exceed the capacity.

        Return the bright rows, how many rows were evaluated, and whether the capacity was exceeded.

        Such rejections make the update exact for the distribution conditional on at most `capacity`
        bright rows. As long as nothing is rejected, the two distributions are indistinguishable.
        """
        n, bright, tried = context.n, state.bright, batch.rows
        shared = overlap(bright.number, tried.number, n)
        lights = SeenLights(
            bright.number,
            self.bounded.log_ratio(bright.rows, state.z, context.bound),
            tried.number,
            self.bounded.log_ratio(tried.rows, state.z, context.bound),
            shared,
            batch.known,
            context.rate,
            n,
        )
        change = UPDATES[self.update](key, lights)
        after, count = merge(bright, change.stay, tried, change.join, shared, n)
        refused = count > self.capacity
        accepted = change.possible & ~refused
        next_bright = jax.tree.map(lambda a, b: jnp.where(accepted, a, b), after, bright)
        return next_bright, change.touched, refused


# Updates of the lights at fixed parameters ------------------------------------------------
#
# Row k is bright with odds r_k, independently of the others. Both updates leave that distribution
# invariant, and both change all lights simultaneously (section 3.2).


class SeenLights(NamedTuple):
    """Input of an update: the numbers of bright rows and proposed rows, with log r of each."""

    bright: jax.Array  # ascending, n where there is no row
    log_r_bright: jax.Array
    tried: jax.Array  # ascending, n where there is no row
    log_r_tried: jax.Array
    shared: Overlap
    complete: jax.Array  # whether `tried` holds all rows that were drawn to be tried
    rate: jax.Array  # the probability q with which a row was drawn
    n: jax.Array


class Change(NamedTuple):
    """The new lights."""

    stay: jax.Array  # which bright rows stay bright
    join: jax.Array  # which rows tried become bright
    possible: jax.Array  # False: nothing may change
    touched: jax.Array  # number of rows whose likelihood was needed


def implicit(key: jax.Array, lights: SeenLights) -> Change:
    """Turn bright rows dark with probability min(1, q/r), and dark rows tried bright with r/q.

    Arrays have room for a fixed number of proposals, and dropping the rest would break detailed
    balance. So an update is made only if all rows that were drawn fit, *and* those of the reverse
    update would fit too: it tries the rows gone dark with certainty, the rows gone bright with
    probability q, and the others tried here. Both directions are then equally likely.
    """
    dark_key, bright_key, back_key = jax.random.split(key, 3)
    n, log_q = lights.n, jnp.log(lights.rate)
    lit, real = lights.bright < n, lights.tried < n
    is_bright = lights.shared.is_bright
    goes_dark = lit & (_log_uniform(dark_key, lit) < log_q - lights.log_r_bright)
    goes_bright = real & ~is_bright & (_log_uniform(bright_key, real) < lights.log_r_tried - log_q)
    not_again = jax.random.uniform(back_key, real.shape, jnp.float32) >= lights.rate
    unseen = goes_dark & ~lights.shared.is_tried
    way_back = jnp.sum(real) - jnp.sum(goes_bright & not_again) + jnp.sum(unseen)
    possible = lights.complete & (way_back <= real.shape[0])
    return Change(
        lit & ~goes_dark, goes_bright, possible, jnp.sum(lit) + jnp.sum(real & ~is_bright)
    )


def explicit(key: jax.Array, lights: SeenLights) -> Change:
    """Draw the lights of the rows tried anew, on with probability r / (1 + r).

    This is valid for any rows chosen independently of the lights, so it does not matter whether all
    rows that were drawn fit.
    """
    lit, real = lights.bright < lights.n, lights.tried < lights.n
    on = real & (_log_uniform(key, real) < jax.nn.log_sigmoid(lights.log_r_tried))
    still_on = on[jnp.minimum(lights.shared.place_in_tried, len(on) - 1)]
    stay = lit & (~lights.shared.is_tried | still_on)
    return Change(stay, on & ~lights.shared.is_bright, jnp.asarray(True), jnp.sum(real))


def _log_uniform(key: jax.Array, like: jax.Array) -> jax.Array:
    return jnp.log(jax.random.uniform(key, like.shape))


UPDATES = {"implicit": implicit, "explicit": explicit}


# The list of bright rows, and rows proposed for it -----------------------------------------


class Bright(NamedTuple):
    """Rows with their numbers; an empty slot has the number n."""

    number: jax.Array
    rows: Pytree  # with one entry per row


class Proposed(NamedTuple):
    """Rows whose lights are to be tried."""

    row_ids: jax.Array  # rows to read; an empty slot reads row n - 1
    number: jax.Array  # row numbers in ascending order, n in an empty slot
    complete: jax.Array  # False if more rows were drawn than fit


def skip_through(key: jax.Array, rate: jax.Array, n: jax.Array, most: int) -> Proposed:
    """Draw each of n rows with probability `rate`, independently; keep the first `most`.

    The gaps between such rows are geometric, so the cost is proportional to the rows drawn
    (Maclaurin and Adams 2014, section 3.2). They come in ascending order.
    """
    u = jax.random.uniform(key, (most + 1,))
    gap = jnp.floor(jnp.log1p(-u) / jnp.log1p(-rate)).astype(int) + 1
    number = jnp.minimum(jnp.cumsum(gap) - 1, n)
    return Proposed(jnp.minimum(number[:-1], n - 1), number[:-1], number[-1] >= n)


class Overlap(NamedTuple):
    """Positions of the rows of two ascending lists, bright and tried, in each other."""

    place_in_tried: jax.Array  # for each bright row, the number of rows tried before it
    is_tried: jax.Array  # which bright rows are tried too
    place_in_bright: jax.Array
    is_bright: jax.Array


def overlap(bright: jax.Array, tried: jax.Array, n: jax.Array | int) -> Overlap:
    """Compare two ascending lists of row numbers by binary search."""
    return Overlap(*_places(bright, tried, n), *_places(tried, bright, n))


def _places(sought: jax.Array, among: jax.Array, n: jax.Array | int) -> tuple[jax.Array, jax.Array]:
    place = jnp.searchsorted(among, sought)
    return place, (among[jnp.minimum(place, len(among) - 1)] == sought) & (sought < n)


def merge(
    bright: Bright,
    stay: jax.Array,
    tried: Bright,
    join: jax.Array,
    shared: Overlap,
    n: jax.Array | int,
) -> tuple[Bright, jax.Array]:
    """Merge the rows of `bright` that stay and those of `tried` that join, in ascending order.

    Return them and their count. No row may both stay and join. Rows beyond the room are dropped.
    """
    room, size = bright.number.shape[0], tried.number.shape[0]
    staying, joining = _running(stay), _running(join)
    # a row's new place: the number of kept rows before it, in its own list and in the other
    old_place = staying[:-1] + joining[shared.place_in_tried]
    new_place = joining[:-1] + staying[shared.place_in_bright]
    place = jnp.concatenate([jnp.where(stay, old_place, room), jnp.where(join, new_place, room)])
    source = jnp.zeros(room, place.dtype).at[place].set(jnp.arange(room + size), mode="drop")
    count = staying[-1] + joining[-1]

    def pick(old: jax.Array, new: jax.Array) -> jax.Array:
        return jnp.concatenate([old, new])[source]

    number = jnp.where(jnp.arange(room) < count, pick(bright.number, tried.number), n)
    return Bright(number, jax.tree.map(pick, bright.rows, tried.rows)), count


def _running(mask: jax.Array) -> jax.Array:
    """Count the True entries before each place, and in total."""
    return jnp.concatenate([jnp.zeros(1, int), jnp.cumsum(mask)])
