"""Lights of FlyMC: updates leave their distribution exactly invariant, however little room."""

from functools import partial
from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from helpers.targets import TIMES
from modicum.kernels.firefly import (
    Bright,
    SeenLights,
    explicit,
    first_lit,
    implicit,
    merge,
    overlap,
    skip_through,
)

# Lists of rows -----------------------------------------------------------------------------


def ascending(rng, count, room, n):
    return np.sort(np.r_[rng.choice(n, count, replace=False), np.full(room - count, n)])


@pytest.mark.parametrize("room", [6, pytest.param(20, marks=pytest.mark.slow)])
def test_merging_is_what_sets_do(room):
    rng, n = np.random.default_rng(1), 25
    merged = jax.jit(partial(merge_both, n=n))
    for _ in range(50):
        bright = ascending(rng, rng.integers(0, 7), room, n)
        tried = ascending(rng, rng.integers(0, 11), 10, n)
        stay = (rng.random(room) < 0.6) & (bright < n)
        join = (rng.random(10) < 0.6) & (tried < n) & ~np.isin(tried, bright)
        after, count = merged(bright, stay, tried, join)
        right = np.sort(np.r_[bright[stay], tried[join]])
        assert int(count) == len(right)
        kept = right[:room]
        np.testing.assert_array_equal(after.number, np.r_[kept, np.full(room - len(kept), n)])
        np.testing.assert_array_equal(after.rows["x"][: len(kept)], 10.0 * kept)


def merge_both(bright, stay, tried, join, n):
    lists = [Bright(number, {"x": 10.0 * number}) for number in (bright, tried)]
    return merge(lists[0], stay, lists[1], join, overlap(bright, tried, n), n)


def test_the_first_lit_rows_fill_the_room():
    rows = Bright(np.array([3, 4, 8, 10]), np.array([0.3, 0.4, 0.8, 1.0]))
    first = jax.jit(first_lit, static_argnums=2)
    lit = first(rows, np.array([True, False, True, False]), 3, 10)
    assert lit.number.tolist() == [3, 8, 10]
    assert lit.rows[:2].tolist() == pytest.approx([0.3, 0.8])
    assert first(rows, np.ones(4, bool), 2, 11).number.tolist() == [3, 4]


@pytest.mark.parametrize("rate", [pytest.param(0.02, marks=pytest.mark.slow), 0.3])
def test_rows_are_drawn_independently_and_in_order(rate, x64):
    n, many = 60, 20_000
    draw = jax.jit(jax.vmap(lambda key: skip_through(key, rate, n, n)))
    drawn = draw(jax.random.split(jax.random.key(1), many))
    number = np.asarray(drawn.number)
    assert drawn.complete.all()
    assert np.all((np.diff(number) > 0) | (number[:, 1:] == n))
    assert np.all(drawn.row_ids == np.minimum(number, n - 1))
    there = (number[..., None] == np.arange(n)).any(1) * 1.0
    error = np.sqrt(rate * (1 - rate) / many)
    assert np.all(np.abs(there.mean(0) - rate) < TIMES * error)
    pairs = there.T @ there / many
    off = pairs[~np.eye(n, dtype=bool)] - rate**2
    assert np.all(np.abs(off) < 5.5 * np.sqrt(rate**2 * (1 - rate**2) / many))


def test_drawing_says_when_there_is_no_room(x64):
    draw = jax.jit(jax.vmap(lambda key: skip_through(key, 0.5, 10, 4)))
    complete = np.asarray(draw(jax.random.split(jax.random.key(2), 20_000)).complete)
    right = 386 / 1024  # Binomial(10, 1/2) is at most 4
    assert abs(complete.mean() - right) < TIMES * np.sqrt(right * (1 - right) / len(complete))


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


def wrong_by(update, rate, proposals=N, capacity=N, many=40_000):
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


@pytest.mark.parametrize(
    ("update", "rate"),
    [
        (implicit, 0.1),
        (explicit, 0.6),
        pytest.param(implicit, 0.6, marks=SLOW),
        pytest.param(explicit, 0.1, marks=SLOW),
    ],
)
def test_an_update_leaves_the_law_invariant(update, rate, x64):
    assert wrong_by(update, rate) < TIMES


@pytest.mark.parametrize("proposals", [1, pytest.param(2, marks=SLOW)])
@pytest.mark.parametrize("update", [implicit, pytest.param(explicit, marks=SLOW)])
def test_updates_leave_the_law_invariant_with_little_room_for_rows(update, proposals, x64):
    assert wrong_by(update, 0.4, proposals) < TIMES


@pytest.mark.parametrize("capacity", [pytest.param(1, marks=SLOW), 2])
@pytest.mark.parametrize("update", [implicit, pytest.param(explicit, marks=SLOW)])
def test_without_room_for_bright_rows_the_law_is_that_of_fewer(update, capacity, x64):
    assert wrong_by(update, 0.4, capacity=capacity) < TIMES


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


@pytest.mark.parametrize(
    ("update", "proposals"),
    [
        (without_ratio, N),
        pytest.param(one_after_the_other, N, marks=SLOW),
        pytest.param(heedless_of_room, 1, marks=SLOW),
        (heedless_of_the_way_back, 1),
    ],
)
def test_careless_updates_are_caught(update, proposals, x64):
    assert wrong_by(update, 0.4, proposals) > 2 * TIMES
