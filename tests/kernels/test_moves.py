"""Moves leave their target invariant, report correctly, and adapt only during warm-up."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from modicum.kernels.moves import (
    HMCMove,
    NUTSMove,
    RandomWalkMove,
    adapt,
    at_point,
    longest_step,
    schedule,
    start_adaptation,
)

COV = np.array([[1.0, 0.6], [0.6, 2.0]])
PRECISION = np.linalg.inv(COV)
COUNT = 5_000
MOVES = pytest.mark.parametrize(
    "move",
    [
        *(HMCMove(), HMCMove(jitter=0.5), HMCMove(1.5, split=True)),
        *(NUTSMove(max_depth=5), HMCMove(max_steps=1), RandomWalkMove()),
    ],
    ids=["hmc", "hmc-jitter", "hmc-split", "nuts", "mala", "random-walk"],
)


@partial(jax.jit, static_argnums=0)
def one_step(move, key, start, precision, wall, inverse_mass):
    """Step once from each start; the density is normal, and NaN beyond `wall`."""

    def density(z):
        return jnp.where(jnp.abs(z).max() > wall, jnp.nan, -0.5 * z @ precision @ z)

    def each(key, z):
        return move(key, at_point(z, density), density, jnp.asarray(0.6), inverse_mass)

    return jax.vmap(each)(jax.random.split(key, COUNT), start)


def step(move, start, precision=PRECISION, wall=np.inf, inverse_mass=(1.0, 1.0)):
    given = (start, precision, wall, jnp.asarray(inverse_mass))
    point, info = one_step(move, jax.random.key(2), *given)
    return np.asarray(point.position), point, jax.tree.map(np.asarray, info)


@MOVES
def test_one_step_from_the_target_stays_in_the_target(move, x64):
    # starts are independent, so errors are those of independent draws
    start = np.random.default_rng(1).multivariate_normal(np.zeros(2), COV, COUNT)
    split = isinstance(move, HMCMove) and move.split  # whose mass is 1
    z, point, info = step(move, start, inverse_mass=(1.0, 1.0) if split else (1.5, 0.7))
    assert np.mean(z != start) > 0.5
    assert np.all(np.abs(z.mean(0)) < 4.5 * np.sqrt(np.diag(COV) / COUNT))
    for i, j in ((0, 0), (0, 1), (1, 1)):
        error = np.sqrt((COV[i, i] * COV[j, j] + COV[i, j] ** 2) / COUNT)
        assert abs(np.mean(z[:, i] * z[:, j]) - COV[i, j]) < 4.5 * error
    assert not info.diverging.any()
    assert not info.reached_max_treedepth.any()
    assert info.acceptance_rate.min() >= 0
    assert info.acceptance_rate.max() <= 1 + 1e-12
    truth = -0.5 * np.einsum("ni,ij,nj->n", z, PRECISION, z)
    np.testing.assert_allclose(point.logdensity, truth, rtol=1e-9, atol=1e-12)


@MOVES
def test_nan_is_refused_and_never_entered(move, x64):
    z, _, info = step(move, np.ones((COUNT, 2)), wall=1.5)
    assert np.isfinite(z).all()
    assert np.abs(z).max() <= 1.5
    assert np.isfinite(info.acceptance_rate).all()
    # a random walk has no trajectory that could diverge
    assert info.diverging.any() == (move != RandomWalkMove())


def test_nuts_says_when_a_trajectory_is_cut_off(x64):
    _, _, info = step(NUTSMove(max_depth=5), np.zeros((COUNT, 2)), 1e-8 * PRECISION)
    assert info.reached_max_treedepth.all()
    assert (info.n_steps == 31).all()


@pytest.mark.parametrize(("trajectory", "most", "steps"), [(1.2, 100, 2), (6.0, 4, 4)])
def test_hmc_takes_as_many_steps_as_the_trajectory_needs(trajectory, most, steps, x64):
    _, _, info = step(HMCMove(trajectory, most), np.zeros((COUNT, 2)))
    assert (info.n_steps == steps).all()


def test_jitter_varies_the_length_of_trajectories(x64):
    _, _, info = step(HMCMove(1.2, jitter=0.6), np.zeros((COUNT, 2)))
    # lengths of .48 to 1.92 at a step of .6, evenly spread: ceil gives 1 to 4
    share = np.bincount(info.n_steps, minlength=5)[1:] / COUNT
    np.testing.assert_allclose(share, [1 / 12, 5 / 12, 5 / 12, 1 / 12], atol=0.02)


def test_a_split_step_follows_a_standard_normal_exactly(x64):
    start = np.random.default_rng(3).normal(size=(COUNT, 2))
    quarter = HMCMove(np.pi / 2, split=True)
    z, _, info = step(quarter, start, np.eye(2))
    assert (info.n_steps == 3).all()  # of pi / 6 each, the longest steps below .6 that add up to it
    np.testing.assert_allclose(info.acceptance_rate, 1.0, rtol=1e-12)
    # after a quarter turn the position is the former momentum
    error = 4.5 / np.sqrt(COUNT)
    assert np.abs(np.mean(z * start, axis=0)).max() < error
    assert np.abs(np.mean(z**2 * (start**2 - 1), axis=0)).max() < np.sqrt(8) * error
    half, _, _ = step(HMCMove(np.pi, split=True), start, np.eye(2))
    np.testing.assert_allclose(half, -start, atol=1e-12)
    leapfrog, _, info = step(HMCMove(np.pi), start, np.eye(2))
    assert info.acceptance_rate.min() < 1
    assert np.abs(leapfrog + start).max() > 0.1


def test_a_split_step_is_not_tuned_beyond_its_trajectory(x64):
    move = HMCMove(1.5, jitter=0.25, split=True)
    assert longest_step(move) == 1.875
    assert longest_step(HMCMove()) is None
    flags = schedule(20, 1, adapt_mass=False)
    learned = free = start_adaptation(2, adapt_mass=False)
    follow = jax.jit(adapt, static_argnums=(4, 5))
    for k in range(20):
        now = jax.tree.map(lambda part, k=k: part[k], flags)
        learned = follow(learned, now, jnp.zeros(2), 1.0, 0.8, longest_step(move))
        free = follow(free, now, jnp.zeros(2), 1.0, 0.8)
    assert free.step_size > 1.875
    # the average of truncated steps is just below the longest, and rounds to one step
    assert 0.98 * 1.875 < learned.step_size <= 1.875 * (1 + 1e-12)
