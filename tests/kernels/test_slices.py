"""Slices at computed positions are what indexing returns."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from modicum.kernels.slices import entry, locate, put, set_entry, starts, take

TREE = {"x": np.arange(24.0).reshape(6, 2, 2), "y": np.arange(6), "flag": np.arange(6) % 2 == 0}


@pytest.mark.parametrize("kind", [int, jnp.int32, jnp.uint32])
def test_entries_are_read_and_written(kind):
    for k in (0, 3, 5):
        got = jax.jit(entry)(TREE, kind(k))
        new = {"x": -np.ones((2, 2)), "y": np.asarray(-1), "flag": np.asarray(True)}
        after = jax.jit(set_entry)(TREE, kind(k), new)
        for name, values in TREE.items():
            np.testing.assert_array_equal(got[name], values[k])
            expected = values.copy()
            expected[k] = new[name]
            np.testing.assert_array_equal(after[name], expected)
            assert after[name].dtype == jnp.asarray(values).dtype


def test_parts_are_taken_and_put_at_positions_of_their_own():
    # chains side by side, each with its own position
    arrays, places = np.arange(20.0).reshape(2, 10), np.array([2, 7])
    parts = jax.vmap(lambda array, place: take(array, place, 3))(arrays, places)
    np.testing.assert_array_equal(parts, [arrays[0, 2:5], arrays[1, 7:10]])
    back = jax.vmap(put)(np.zeros((2, 10)), parts, places)
    np.testing.assert_array_equal(np.flatnonzero(np.asarray(back)[1]), [7, 8, 9])
    np.testing.assert_array_equal(np.asarray(back)[0, 2:5], arrays[0, 2:5])


def test_keys_are_entries_too():
    keys = jax.random.split(jax.random.key(1), 4)
    got = jax.jit(entry)(keys, 2)
    np.testing.assert_array_equal(jax.random.key_data(got), jax.random.key_data(keys[2]))


@pytest.mark.parametrize("counts", [[3, 0, 2, 0], [0, 0, 4], [5]])
def test_positions_are_found_in_blocks_some_of_which_are_empty(counts):
    owner = np.repeat(np.arange(len(counts)), counts)
    block, within, inside = map(np.asarray, locate(jnp.arange(7), jnp.array(counts)))
    np.testing.assert_array_equal(inside, np.arange(7) < owner.size)
    np.testing.assert_array_equal(block[inside], owner)
    np.testing.assert_array_equal(block[~inside], len(counts) - 1)
    np.testing.assert_array_equal(np.asarray(starts(jnp.array(counts)))[block] + within, range(7))
