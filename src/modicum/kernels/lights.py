"""How the lights of a FlyMC chain change at fixed parameters: implicit and explicit updates.

Row k is bright with odds r_k = (L_k - B_k) / B_k, independently of the others. Both updates leave
that law invariant, and both see the lights as they were before the update (Maclaurin and Adams
2014, section 3.2).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from modicum.kernels.bright import Overlap

__all__ = ["Change", "Seen", "explicit", "implicit"]


class Seen(NamedTuple):
    """What an update looks at: bright rows and rows tried, by number, with log r of each."""

    bright: jax.Array  # ascending, n where there is no row
    log_r_bright: jax.Array
    tried: jax.Array  # ascending, n where there is no row
    log_r_tried: jax.Array
    both: Overlap
    complete: jax.Array  # whether all rows that were drawn to be tried are here
    rate: jax.Array  # the probability q with which a row was drawn
    n: jax.Array


class Change(NamedTuple):
    """What becomes of the lights."""

    stay: jax.Array  # of the bright rows
    join: jax.Array  # of the rows tried
    possible: jax.Array  # False: nothing is to change
    touched: jax.Array  # rows whose likelihood had to be known


def implicit(key: jax.Array, seen: Seen) -> Change:
    """Every bright row goes dark with probability min(1, q/r), dark rows tried light up with r/q.

    Only so many rows can be tried. To forget the rest would spoil the balance: too many rows could
    go dark at once to come back at once. So an update is made only if all rows that were drawn are
    here, *and* the way back would fit too: it tries the rows gone dark for certain, those gone
    bright with probability q, and the others tried here. Both ways are then equally likely.
    """
    dark_key, bright_key, back_key = jax.random.split(key, 3)
    n, log_q = seen.n, jnp.log(seen.rate)
    lit, real = seen.bright < n, seen.tried < n
    held = seen.both.is_bright
    goes_dark = lit & (_log_uniform(dark_key, lit) < log_q - seen.log_r_bright)
    goes_bright = real & ~held & (_log_uniform(bright_key, real) < seen.log_r_tried - log_q)
    not_again = jax.random.uniform(back_key, real.shape, jnp.float32) >= seen.rate
    way_back = (
        jnp.sum(real) - jnp.sum(goes_bright & not_again) + jnp.sum(goes_dark & ~seen.both.is_tried)
    )
    possible = seen.complete & (way_back <= real.shape[0])
    return Change(lit & ~goes_dark, goes_bright, possible, jnp.sum(lit) + jnp.sum(real & ~held))


def explicit(key: jax.Array, seen: Seen) -> Change:
    """The lights of the rows tried are drawn anew, on with probability r / (1 + r).

    That is right for any rows chosen without regard to the lights, so it does not matter whether
    all that were drawn are here.
    """
    lit, real = seen.bright < seen.n, seen.tried < seen.n
    on = real & (_log_uniform(key, real) < jax.nn.log_sigmoid(seen.log_r_tried))
    still_on = on[jnp.minimum(seen.both.place_in_tried, len(on) - 1)]
    stay = lit & (~seen.both.is_tried | still_on)
    return Change(stay, on & ~seen.both.is_bright, jnp.asarray(True), jnp.sum(real))


def _log_uniform(key: jax.Array, like: Any) -> jax.Array:
    return jnp.log(jax.random.uniform(key, like.shape))
