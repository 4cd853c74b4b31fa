"""Random numbers of a step, which come from one call of the generator, and keys of iterations."""

import re
from collections import defaultdict
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import modicum
from helpers.architecture import read_sources
from modicum.random import (
    iteration_keys,
    log_uniform,
    normal,
    symmetric_uniforms,
    unrelated_key,
    words_of_iterations,
)

COUNT = 20_000
LIMIT = 1e-4  # p-value below which a test fails; seeds are fixed

# Streams that several files draw from for one purpose: the points of a run's only pilot study, its
# short chains (with the seed of the run, or one that all runs share), the mini-batches of its rows,
# draws of the prior, and effects of groups that the fit did not have.
SHARED = {"NEW_GROUPS", "PILOT_CHAINS", "PILOT_DRAWS", "PRIOR_DRAWS", "SIGN_BATCHES"}


def shared_streams(sources):
    """Return the streams that more than one module draws from."""
    places = defaultdict(set)
    for module, source in sources.items():
        if module != "modicum.random":
            for stream in re.findall(r"\bStream\.([A-Z_]+)", source):
                places[stream].add(module)
    return {stream for stream, modules in places.items() if len(modules) > 1}


def test_no_two_purposes_share_a_stream():
    sources = read_sources(Path(modicum.__file__).parent)
    assert shared_streams(sources) == SHARED
    another = sources | {"modicum.made_up": "generator(seed, Stream.CLUSTERS)"}
    assert shared_streams(another) == SHARED | {"CLUSTERS"}  # is caught


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_normal_numbers_are_those_of_jax(dtype, x64):
    key = jax.random.key(3)

    @jax.jit
    def both(key):
        ours = normal(symmetric_uniforms(key, (COUNT,), dtype))
        return ours, jax.random.normal(key, (COUNT,), dtype)

    np.testing.assert_allclose(*both(key), rtol=1e-6)


def test_numbers_have_the_laws_they_should_have(x64):

    @jax.jit
    def drawn(key):
        uniform = symmetric_uniforms(key, (3, COUNT), jnp.float64)
        return uniform[0], normal(uniform[1]), -log_uniform(uniform[2])

    uniform, normals, exponential = map(np.asarray, drawn(jax.random.key(3)))
    assert stats.kstest(uniform, "uniform", (-1, 2)).pvalue > LIMIT
    assert stats.kstest(normals, "norm").pvalue > LIMIT
    assert stats.kstest(exponential, "expon").pvalue > LIMIT
    # negative control: a law that is off by a twentieth
    assert stats.kstest(normals * 1.05, "norm").pvalue < LIMIT


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_ends_of_the_interval_are_finite(dtype, x64):
    inside = np.nextafter(np.array([-1, 1], dtype), np.zeros(2, dtype))
    numbers = jax.jit(lambda u: (normal(u), log_uniform(u)))
    assert np.isfinite(numbers(inside)).all()
    assert not np.isfinite(numbers(np.ones(2, dtype))[0]).any()


def test_keys_for_other_purposes_share_nothing_with_the_numbers(x64):
    key = jax.random.key(3)
    drawn = np.asarray(jax.random.bits(key, (COUNT,), jnp.uint64))

    def word(other):
        high, low = np.asarray(jax.random.key_data(other), np.uint64)
        return high << np.uint64(32) | low

    numbers = jax.jit(lambda key: symmetric_uniforms(key, (COUNT,), jnp.float64))
    for other in (unrelated_key(key), unrelated_key(key, 1)):
        assert word(other) not in drawn
        both = [np.asarray(numbers(k)) for k in (key, other)]
        assert abs(np.corrcoef(*both)[0, 1]) < 4 / np.sqrt(COUNT)
    assert word(unrelated_key(key)) != word(unrelated_key(key, 1))
    # negative control: a small number is also the counter of a number that is drawn
    assert word(jax.random.fold_in(key, 7)) in drawn


@pytest.mark.parametrize("iteration", [0, 1, 77, 2**31, 2**32 - 1])
def test_keys_of_iterations_are_the_same_on_the_host(iteration, x64):
    for chain in np.array([[0, 0], [1, 2**32 - 1], [0xDEADBEEF, 0x12345678]], np.uint32):
        on_device = [jax.random.key_data(key) for key in iteration_keys(chain, iteration)]
        np.testing.assert_array_equal(
            words_of_iterations(chain, np.array([3, iteration]))[1], on_device
        )
