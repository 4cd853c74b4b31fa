"""Records are packed, come to the host whole, in pieces, and are taken apart again."""

from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from modicum.run import records


def some_record(slots, chains=3):
    rng = np.random.default_rng(1)
    return {
        ("position",): rng.normal(size=(chains, slots, 2)),
        ("n_steps", "rows"): rng.integers(0, 9, (chains, slots, 2)),
    }


@pytest.mark.parametrize("slots", [5, 64, 130, 192])
@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("threads", [1, 8])
def test_the_beginning_of_a_record(slots, share, threads, x64, monkeypatch):
    record, count, at = some_record(slots), int(share * slots), 7
    monkeypatch.setattr(records, "COPY_THREADS", threads)
    monkeypatch.setattr(records, "PIECE", 64 * 3 * 4 * 8)  # 64 slots, which those above straddle
    room = records.room_for(record, at + count + 2)
    for values in room.values():
        values[:] = -1
    with ThreadPoolExecutor(threads) as pool:
        records.copy_to(room, at, jax.tree.map(jnp.asarray, record), count, pool)
    for names, values in record.items():
        found = room[names]
        np.testing.assert_array_equal(found[:, at : at + count], values[:, :count])
        assert np.all(found[:, :at] == -1)
        assert np.all(found[:, at + count :] == -1)
        assert found.dtype == values.dtype


def test_numbers_are_packed_by_type_and_unpacked_by_name(x64):
    draw = {
        "position": jnp.arange(3.0),
        "lp": jnp.asarray(-1.5),
        "n_steps": jnp.asarray(4),
        "energy": jnp.asarray(2.5),
        "diverging": jnp.asarray(True),
    }
    whole = {names: np.asarray(v)[None, None] for names, v in records.packed(draw).items()}
    assert set(whole) == {("position",), ("energy", "lp"), ("n_steps",), ("diverging",)}
    apart = records.unpacked(whole)
    assert set(apart) == set(draw)
    for name, values in draw.items():
        np.testing.assert_array_equal(apart[name][0, 0], values)
        assert apart[name].dtype == values.dtype
