"""Lights of FlyMC: updates leave their distribution exactly invariant, however little room."""

from functools import partial
from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from helpers.cases import cases
from helpers.slow import slowly
from helpers.targets import TIMES
from modicum.kernels.firefly import (
    Bright,
    SeenLights,
    explicit,
    implicit,
    merge,
    overlap,
    skip_through,
)

# The law of the lights ---------------------------------------------------------------------

ODDS = np.array([0.05, 0.3, 1.2, 4.0])
N = len(ODDS)
LIGHTS = np.array(list(product([0, 1], repeat=N)))


def law(capacity=N):
    """Return the probabilities of all states with at most `capacity` bright rows."""
    chance = np.prod(np.where(LIGHTS, ODDS, 1.0), axis=1) * (LIGHTS.sum(1) <= capacity)
    return chance / chance.sum()


@partial(jax.jit, static_argnums=(0, 2, 3))
def one_update(update, key, proposals, capacity, lights, rate):
    """Return the lights after one update, as zeros and ones."""
    log_odds = jnp.log(jnp.asarray(np.r_[ODDS, 1.0]))
    rows = jnp.arange(N)
    bright = jnp.sort(jnp.where(lights, rows, N))[:capacity]
    draw_key, light_key = jax.random.split(key)
    tried = skip_through(draw_key, rate, jnp.asarray(N), proposals)
    both = overlap(bright, tried.number, N)
    before = SeenLights(
        bright, log_odds[bright], tried.number, log_odds[tried.number], both, tried.complete,
        jnp.asarray(rate), jnp.asarray(N),
    )  # fmt: skip
    change = update(light_key, before)
    after, count = merge(
        Bright(bright, None), change.stay, Bright(tried.number, None), change.join, both, N
    )
    number = jnp.where(change.possible & (count <= capacity), after.number, bright)
    return (number[:, None] == rows).any(0)


def wrong_by(update, rate, proposals=N, capacity=N, many=20_000):
    """Return the largest error of a state's frequency after an update, in standard errors."""
    right = law(capacity)
    rng = np.random.default_rng(1)
    start = LIGHTS[rng.choice(len(LIGHTS), many, p=right)].astype(bool)
    keys = jax.random.split(jax.random.key(3), many)
    step = jax.vmap(lambda key, lights: one_update(update, key, proposals, capacity, lights, rate))
    after = np.asarray(step(keys, start))
    found = np.bincount(after @ [8, 4, 2, 1], minlength=16) / many
    order = LIGHTS @ [8, 4, 2, 1]
    expected = np.zeros(16)
    expected[order] = right
    impossible = expected == 0
    assert np.all(found[impossible] == 0)
    moved = np.mean(np.any(after != start, axis=1))
    assert moved > 0.02  # the update does something
    error = np.sqrt(expected * (1 - expected) / many)
    return np.max(np.abs(found - expected)[~impossible] / error[~impossible])


SLOW = pytest.mark.slow


@cases(
    "update rate room",
    *((implicit, 0.1, {}), (explicit, 0.6, {})),
    *((implicit, 0.4, {"proposals": 1}), (implicit, 0.4, {"capacity": 2})),
    *slowly((implicit, 0.6, {}), (explicit, 0.1, {})),
    *slowly((implicit, 0.4, {"proposals": 2}), (implicit, 0.4, {"capacity": 1})),
    *slowly(*((explicit, 0.4, {name: k}) for name in ("proposals", "capacity") for k in (1, 2))),
)
def test_an_update_leaves_the_law_invariant_however_little_room_there_is(update, rate, room, x64):
    """Without room for more bright rows, the law is that of fewer."""
    assert wrong_by(update, rate, **room) < TIMES


def without_ratio(key, seen):
    """A mistake: lights go on with probability r, ignoring that they are tried with chance q."""
    raised = seen.log_r_tried + jnp.log(seen.rate)
    return implicit(key, seen._replace(log_r_tried=raised))


def one_after_the_other(key, seen):
    """A mistake: rows that have just gone dark may go bright in the same update."""
    change = implicit(key, seen)
    left = jnp.where(change.stay, seen.bright, seen.n)
    back = (seen.tried[:, None] == seen.bright).any(1) & ~(seen.tried[:, None] == left).any(1)
    u = jax.random.uniform(jax.random.fold_in(key, 1), back.shape)
    again = back & (jnp.log(u) < seen.log_r_tried - jnp.log(seen.rate)) & (seen.tried < seen.n)
    return change._replace(join=change.join | again)


def heedless_of_room(key, seen):
    """A mistake: rows that do not fit are dropped."""
    return implicit(key, seen)._replace(possible=jnp.asarray(True))


def heedless_of_the_way_back(key, seen):
    return implicit(key, seen)._replace(possible=seen.complete)


@cases(
    "update proposals",
    (without_ratio, N),
    *slowly((one_after_the_other, N), (heedless_of_room, 1)),
    (heedless_of_the_way_back, 1),
)
def test_careless_updates_are_caught(update, proposals, x64):
    assert wrong_by(update, 0.4, proposals) > 2 * TIMES
