"""Sums and maps over blocks of a chunk are those over the chunk."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from helpers.targets import logistic_rows
from modicum.passes import engine

pytestmark = pytest.mark.usefixtures("x64")


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(engine, "BLOCK", 8)
    monkeypatch.setattr(engine, "BLOCK", 8)


@pytest.mark.parametrize("rows", [5, 8, 13, 24])  # also one block, or a partial one
def test_blocks_add_up_to_the_chunk(small, rows):
    rng = np.random.default_rng(1)
    batch = {"x": rng.normal(size=(rows, 3)), "y": rng.normal(size=rows)}
    present = rng.uniform(size=rows) < 0.7
    calls = []

    def weighed(batch, present):
        calls.append(present.shape[0])
        kept = jnp.where(present, batch["y"], 0.0)
        return kept.sum(), kept @ batch["x"]

    total, vector = jax.jit(lambda b, p: engine.sum_in_blocks(weighed, b, p))(batch, present)
    kept = np.where(present, batch["y"], 0)
    assert float(total) == pytest.approx(kept.sum(), rel=1e-12)
    np.testing.assert_allclose(vector, kept @ batch["x"], rtol=1e-12)
    assert set(calls) == {8 if rows == 24 else rows}

    def squares(batch, present):
        return batch["y"] ** 2 + present

    found = jax.jit(lambda b, p: engine.map_in_blocks(squares, b, p))(batch, present)
    np.testing.assert_allclose(found, batch["y"] ** 2 + present, rtol=1e-14)


@pytest.mark.parametrize("n", [7, 1_024, 1_025, 70_000, 1_000_000])
def test_large_chunks_are_whole_blocks(n):
    rows = logistic_rows(7, 3)
    size = engine.chunk_rows(_many(rows, n))
    assert size % engine.BLOCK == 0 or size == n
    assert size < n + engine.BLOCK


def _many(rows, n):
    about = {"fields": rows.fields, "dtypes": rows.dtypes, "coding": rows.coding}
    return type("Many", (), about | {"__len__": lambda _: n})()
