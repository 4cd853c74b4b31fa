"""Simulated tables in the shape of real ones, for machines without the data."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from modicum.models import Logistic
from modicum.rows import Rows, ingest
from modicum_lab.datasets import Dataset, splines

BLOCK = 1_000_000
CENSUS = 199_523  # rows of the real table


def plain_blocks(n: int, columns: int, seed: int = 1) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield normal columns and outcomes of a logistic regression, a million rows at a time."""
    truth, *blocks = np.random.default_rng(seed).spawn(1 + -(-n // BLOCK))
    # the log-odds have the same spread for any number of columns
    beta = (1.6 / np.sqrt(columns) * truth.standard_normal(columns)).astype(np.float32)
    for number, rng in enumerate(blocks):
        count = min(BLOCK, n - number * BLOCK)
        x = rng.standard_normal((count, columns), dtype=np.float32)
        chance = 1 / (1 + np.exp(1 - x @ beta))
        yield x, (rng.random(count, dtype=np.float32) < chance).astype(np.float32)


def plain(n: int, columns: int = 28) -> Dataset:
    """Return `n` rows of normal columns, in memory."""
    x, y = np.empty((n, columns), np.float32), np.empty(n, np.float32)
    for number, (block, outcomes) in enumerate(plain_blocks(n, columns)):
        part = slice(number * BLOCK, number * BLOCK + len(outcomes))
        x[part], y[part] = block, outcomes
    return _dataset("plain", Rows(x=x, y=y), f"a made-up table of {columns} normal columns")


def plain_store(n: int, folder: Path, columns: int = 28) -> Path:
    """Write the rows of `plain` as a row store, without holding them all; return its path."""
    import pyarrow as pa

    raw, names = folder / "raw.arrow", [f"x{j}" for j in range(columns)]
    schema = pa.schema([(name, pa.float32()) for name in [*names, "y"]])
    with pa.OSFile(str(raw), "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
        for x, y in plain_blocks(n, columns):
            arrays = [pa.array(x[:, j]) for j in range(columns)]
            writer.write_batch(pa.record_batch([*arrays, pa.array(y)], schema=schema))
    ingest(str(raw), folder / "store", outcome="y", progressbar=False)
    raw.unlink()
    return folder / "store"


def spline_shaped(n: int, seed: int = 1) -> Dataset:
    """Return `n` rows of ten spline functions of each of eight normal columns: d = 81."""
    rng = np.random.default_rng(seed)
    parts = [splines(rng.standard_normal(n), 11) for _ in range(8)]
    x = np.concatenate(parts, axis=1)
    eta = x @ rng.standard_normal(80).astype(np.float32) - 3
    y = (rng.random(n, dtype=np.float32) < 1 / (1 + np.exp(-eta))).astype(np.float32)
    return _dataset("splines", Rows(x=x, y=y), "a made-up table of splines of 8 normal columns")


def census_shaped(n: int = CENSUS, seed: int = 0) -> Dataset:
    """Return `n` rows of five numbers and seven factors with rare levels: about 120 columns.

    About one outcome in twenty is positive, and some levels have a handful of rows with equal
    outcomes: the hardest table for a subsample.
    """
    rng = np.random.default_rng(seed)
    numbers = rng.standard_normal((n, 5))
    numbers[:, 3] = (rng.random(n) < 0.05) * np.exp(rng.standard_normal(n))
    numbers[:, 4] = (rng.random(n) < 0.1) * np.exp(rng.standard_normal(n))
    parts, beta = [numbers], [np.array([0.5, -0.3, 0.2, 0.4, 0.3])]
    for levels in (9, 17, 24, 15, 38, 10, 9):
        chance = 1 / np.arange(1, levels + 1) ** 2.8
        code = rng.choice(levels, n, p=chance / chance.sum())
        parts.append((code[:, None] == np.arange(1, levels)) * 1.0)
        beta.append(0.7 * rng.standard_normal(levels - 1))
    x = np.concatenate(parts, axis=1)
    x = x[:, x.any(axis=0)].astype(np.float32)  # drop levels without rows
    eta = np.concatenate(parts, axis=1) @ np.concatenate(beta)
    y = rng.random(n) < 1 / (1 + np.exp(3.6 + eta.mean() - eta))
    return _dataset("census-shaped", Rows(x=x, y=y), "a made-up table of rare levels")


def _dataset(name: str, rows: Rows, description: str) -> Dataset:
    return Dataset(
        name,
        rows,
        Logistic(prior_scale=2.5, intercept_scale=10.0),
        f"{description} (a stand-in)",
        "generated",
    )
