"""Records come to the host whole, in pieces, whatever the number of slots."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from modicum.run import advance as compiled
from modicum.run.chains import _to_host


@pytest.mark.parametrize("slots", [5, 64, 130, 192])
@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_the_beginning_of_a_record(slots, share, x64):
    rng = np.random.default_rng(1)
    record = {"position": rng.normal(size=(3, slots, 2)), "steps": rng.integers(0, 9, (3, slots))}
    count = int(share * slots)
    found = _to_host(jax.tree.map(jnp.asarray, record), count)
    for name, values in record.items():
        np.testing.assert_array_equal(found[name], values[:, :count])
        assert found[name].dtype == values.dtype


def test_pieces_have_the_size_of_blocks():
    assert compiled.BLOCK == 64  # the slots above straddle it
